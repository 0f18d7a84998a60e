"""Ghosts: both lists after each step, the shared bound, and what the integrity check sees."""

import pytest

from tierkv.policies.ghosts import GhostLists


def ghosts_of(*entries: tuple[int, int, bool]) -> GhostLists[int]:
    """Ghosts that left in this order: key, weight, whether from T2."""
    ghosts: GhostLists[int] = GhostLists()
    for key, weight, to_b2 in entries:
        ghosts.append(key, weight, to_b2=to_b2)
    ghosts.check_integrity()
    return ghosts


def lists(ghosts: GhostLists[int]) -> tuple[list[int], list[int], int]:
    """B1 and B2, who left longest ago first, and their weight."""
    ghosts.check_integrity()
    return list(ghosts.b1), list(ghosts.b2), ghosts.total


def test_keys_are_kept_by_the_list_they_left() -> None:
    ghosts = ghosts_of((1, 2, False), (2, 3, True), (3, 1, False))
    assert lists(ghosts) == ([1, 3], [2], 6)
    assert (len(ghosts), 2 in ghosts, 4 in ghosts) == (3, True, False)
    assert ghosts.pop(2) == 3
    assert lists(ghosts) == ([1, 3], [], 3)
    assert ghosts.pop(1) == 2
    assert lists(ghosts) == ([3], [], 1)
    assert (len(ghosts), 1 in ghosts) == (1, False)


def test_trimming_forgets_who_left_longest_ago_by_whichever_list() -> None:
    ghosts = ghosts_of((1, 2, True), (2, 1, False), (3, 1, True), (4, 1, True), (5, 2, False))
    ghosts.trim(7)
    assert lists(ghosts) == ([2, 5], [1, 3, 4], 7)
    ghosts.trim(6)
    assert lists(ghosts) == ([2, 5], [3, 4], 5)
    ghosts.trim(4)
    assert lists(ghosts) == ([5], [3, 4], 4)
    ghosts.trim(2)
    assert lists(ghosts) == ([5], [], 2)
    ghosts.trim(1)
    assert lists(ghosts) == ([], [], 0)


def test_a_ghost_that_leaves_again_is_the_latest() -> None:
    ghosts = ghosts_of((1, 1, False), (2, 1, True))
    ghosts.append(1, ghosts.pop(1), to_b2=False)
    ghosts.trim(1)
    assert lists(ghosts) == ([1], [], 1)


def test_the_oldest_of_one_list_can_be_dropped() -> None:
    ghosts = ghosts_of((1, 1, False), (2, 1, True), (3, 1, True))
    ghosts.drop_oldest_of(ghosts.b2)
    assert lists(ghosts) == ([1], [3], 2)
    assert 2 not in ghosts


def test_the_integrity_check_sees_lists_that_do_not_agree() -> None:
    ghosts = ghosts_of((1, 1, False), (2, 1, False))
    ghosts.b1.touch_all((1,))
    with pytest.raises(AssertionError, match="order in which they left"):
        ghosts.check_integrity()
    ghosts = ghosts_of((1, 1, False))
    ghosts.b2.append(2, 1)
    with pytest.raises(AssertionError, match="without its moment"):
        ghosts.check_integrity()
    ghosts = ghosts_of((1, 1, False))
    ghosts.b2.append(1, 1)
    with pytest.raises(AssertionError, match="in two lists"):
        ghosts.check_integrity()
