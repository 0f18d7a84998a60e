"""LRU: whole state after each step, and the naive list it must agree with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierkv.errors import InvalidRequestError
from tierkv.policies import LruPolicy, Selection


def insert(policy: LruPolicy[int], key: int, weight: int, pins: frozenset[int] = frozenset()) -> Selection[int]:
    selection = policy.select_victims(key, weight, pins.__contains__)
    if not selection.refused:
        policy.on_insert(key, weight)
    return selection


def test_the_oldest_entries_leave_first_until_the_new_one_fits() -> None:
    policy: LruPolicy[int] = LruPolicy(10)
    for key, weight in ((1, 4), (2, 3), (3, 3)):
        assert insert(policy, key, weight) == Selection()
    policy.on_access(1)
    assert list(policy) == [2, 3, 1]
    assert insert(policy, 4, 5) == Selection((2, 3))
    assert (list(policy), policy.used) == ([1, 4], 9)


def test_pins_are_asked_about_from_the_oldest_and_no_further_than_needed() -> None:
    policy: LruPolicy[int] = LruPolicy(3)
    for key in (1, 2, 3):
        insert(policy, key, 1)
    asked: list[int] = []

    def is_pinned(key: int) -> bool:
        asked.append(key)
        return key == 1

    policy.select_victims(4, 1, is_pinned)
    assert asked == [1, 2]


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="capacity='0'"):
        LruPolicy(0)


class NaiveLru:
    """A list of (key, weight), oldest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[tuple[int, int]] = []

    def access(self, key: int, weight: int, pins: set[int]) -> Selection[int]:
        found = [entry for entry in self.entries if entry[0] == key]
        if found:
            self.entries.remove(found[0])
            self.entries.append(found[0])
            return Selection()
        kept, victims = list(self.entries), []
        while sum(entry[1] for entry in kept) + weight > self.capacity:
            candidates = [entry for entry in kept if entry[0] not in pins]
            if not candidates:
                return Selection(refused=True)
            kept.remove(candidates[0])
            victims.append(candidates[0][0])
        self.entries = [*kept, (key, weight)]
        return Selection(tuple(victims))


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(0, 12), st.sets(st.integers(0, 12), max_size=4)), max_size=150))
def test_agrees_with_a_naive_list(capacity: int, accesses: list[tuple[int, set[int]]]) -> None:
    policy: LruPolicy[int] = LruPolicy(capacity)
    naive = NaiveLru(capacity)
    for key, pins in accesses:
        weight = 1 + key % 4
        expected = naive.access(key, weight, pins)
        if key in policy:
            policy.on_access(key)
        else:
            assert insert(policy, key, weight, frozenset(pins)) == expected
        policy.check_integrity()
        assert list(policy) == [entry[0] for entry in naive.entries]
