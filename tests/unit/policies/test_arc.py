"""ARC beyond the figure: weights, pins, refusals, repeated selections; whole state shown after each step."""

import pytest

from tierkv.errors import InvalidRequestError
from tierkv.policies import ArcPolicy, ArcSnapshot, Selection

S = ArcSnapshot


def nothing_pinned(_: int) -> bool:
    return False


def access(policy: ArcPolicy[int], key: int, weight: int = 1, pins: tuple[int, ...] = ()) -> Selection[int]:
    if key in policy:
        policy.on_access(key)
        return Selection()
    selection = policy.select_victims(key, weight, pins.__contains__)
    if not selection.refused:
        policy.on_insert(key, weight)
    policy.check_integrity()
    return selection


def arc(capacity: int, *accesses: tuple[int, int]) -> ArcPolicy[int]:
    """A policy after (key, weight) accesses."""
    policy: ArcPolicy[int] = ArcPolicy(capacity)
    for key, weight in accesses:
        access(policy, key, weight)
    return policy


def test_a_step_is_scaled_by_the_weight_the_ghost_had() -> None:
    policy = arc(10, (1, 4), (1, 4), (2, 3), (3, 3))
    assert access(policy, 4, 2) == Selection((2,))
    assert policy.snapshot() == S(t1=(4, 3), t2=(1,), b1=(2,), b2=(), p=0.0)
    access(policy, 2, 3)
    assert policy.snapshot() == S(t1=(4,), t2=(2, 1), b1=(3,), b2=(), p=3.0)


def test_a_step_grows_with_the_ratio_of_the_ghost_weights() -> None:
    policy = arc(10, (1, 6), (1, 6), (2, 2), (3, 2))
    assert access(policy, 4, 2) == Selection((2,))
    assert access(policy, 2, 2) == Selection((3,))
    assert policy.snapshot() == S(t1=(4,), t2=(2, 1), b1=(3,), b2=(), p=2.0)
    # T1 weighs no more than p, so the heavy entry of T2 leaves; its ghost outweighs B1's three times.
    assert access(policy, 5, 2) == Selection((1,))
    assert policy.snapshot() == S(t1=(5, 4), t2=(2,), b1=(3,), b2=(1,), p=2.0)
    assert access(policy, 3, 2) == Selection()
    assert policy.snapshot() == S(t1=(5, 4), t2=(3, 2), b1=(), b2=(1,), p=8.0)


def test_a_ghost_hit_enters_t2_with_its_new_weight() -> None:
    policy = arc(6, (1, 2), (1, 2), (2, 2), (3, 2))
    assert access(policy, 4, 2) == Selection((2,))
    assert access(policy, 2, 4).refused is False
    assert policy.used <= 6
    assert 2 in policy.snapshot().t2


def test_replace_is_repeated_and_looks_at_p_each_time() -> None:
    policy = arc(4, (1, 1), (1, 1), (2, 1), (2, 1), (3, 1), (4, 1))
    access(policy, 5)
    access(policy, 3)
    assert policy.snapshot() == S(t1=(5,), t2=(3, 2, 1), b1=(4,), b2=(), p=1.0)
    # T1 weighs no more than p, so T2 gives until only T1 is left.
    assert access(policy, 6, 4) == Selection((1, 2, 3, 5))


def test_without_room_for_a_ghost_the_oldest_ghost_goes() -> None:
    policy = arc(3, (1, 1), (2, 1), (3, 1))
    assert access(policy, 4) == Selection((1,))
    assert policy.snapshot() == S(t1=(4, 3, 2), t2=(), b1=(), b2=(), p=0.0)


def test_pinned_entries_keep_their_rank_and_the_other_list_gives() -> None:
    policy = arc(4, (1, 1), (1, 1), (2, 1), (2, 1), (3, 1), (4, 1))
    assert access(policy, 5, 1, pins=(3, 4)) == Selection((1,))
    assert policy.snapshot() == S(t1=(5, 4, 3), t2=(2,), b1=(), b2=(1,), p=0.0)
    assert access(policy, 6, 1, pins=(3,)) == Selection((4,))
    assert policy.snapshot() == S(t1=(6, 5, 3), t2=(2,), b1=(4,), b2=(1,), p=0.0)


def test_pins_are_asked_about_from_the_oldest_and_no_further_than_needed() -> None:
    policy = arc(4, (1, 1), (2, 1), (3, 1), (4, 1))
    asked: list[int] = []

    def is_pinned(key: int) -> bool:
        asked.append(key)
        return key == 1

    policy.select_victims(5, 1, is_pinned)
    assert asked == [1, 2]


@pytest.mark.parametrize("weight", [5, 3])
def test_a_refused_ghost_hit_changes_nothing(weight: int) -> None:
    policy = arc(4, (1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1))
    before = policy.snapshot()
    assert before == S(t1=(5, 4, 3), t2=(1,), b1=(2,), b2=(), p=0.0)
    assert access(policy, 2, weight, pins=(1, 4)).refused
    assert policy.snapshot() == before


def test_more_room_for_the_same_ghost_hit_is_one_step() -> None:
    policy = arc(4, (1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1))
    assert policy.select_victims(2, 1, nothing_pinned) == Selection((3,))
    assert policy.select_victims(2, 2, nothing_pinned) == Selection((4,))
    policy.on_insert(2, 1)
    assert policy.snapshot() == S(t1=(5,), t2=(2, 1), b1=(4, 3), b2=(), p=1.0)


def test_a_ghost_hit_that_never_entered_counts_again_later() -> None:
    policy = arc(4, (1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1))
    policy.select_victims(2, 1, nothing_pinned)
    policy.on_access(1)
    policy.select_victims(2, 1, nothing_pinned)
    assert policy.snapshot() == S(t1=(5, 4), t2=(1,), b1=(3, 2), b2=(), p=2.0)


def test_a_removed_entry_leaves_no_ghost() -> None:
    policy = arc(4, (1, 1), (1, 1), (2, 1), (3, 1))
    policy.on_remove(1)
    policy.on_remove(2)
    assert policy.snapshot() == S(t1=(3,), t2=(), b1=(), b2=(), p=0.0)


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="capacity='0'"):
        ArcPolicy(0)
