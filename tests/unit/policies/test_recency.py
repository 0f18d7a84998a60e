"""The recency list: order and weight after each step."""

import pytest

from tierkv.policies.recency import RecencyList


def filled(*keys: int) -> RecencyList[int]:
    """Keys from least to most recent; a key weighs what it says."""
    entries: RecencyList[int] = RecencyList()
    for key in keys:
        entries.append(key, key)
    return entries


def test_order_and_weight_after_each_step() -> None:
    entries = filled(1, 2, 3, 4)
    assert (list(entries), list(reversed(entries)), len(entries), entries.total) == ([1, 2, 3, 4], [4, 3, 2, 1], 4, 10)
    entries.touch_all((2, 1))
    assert list(entries) == [3, 4, 2, 1]
    entries.make_oldest((2, 1))
    assert list(entries) == [1, 2, 3, 4]
    assert (entries.pop(3), list(entries), entries.total) == (3, [1, 2, 4], 7)
    assert (entries.oldest(), entries.pop_oldest(), list(entries), entries.total) == (1, 1, [2, 4], 6)
    assert (entries.weight(4), 4 in entries, 3 in entries) == (4, True, False)
    entries.check_integrity()


def test_an_empty_list_has_no_oldest() -> None:
    assert filled().oldest() is None


def test_the_integrity_check_sees_a_wrong_weight() -> None:
    entries = filled(1, 2)
    entries.total += 1
    with pytest.raises(AssertionError, match="total 4"):
        entries.check_integrity()
    entries = filled(1)
    entries.append(0, 0)
    with pytest.raises(AssertionError, match="not positive"):
        entries.check_integrity()
