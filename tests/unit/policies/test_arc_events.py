"""ARC for requests: causes, weights, refusals, room, removals, hints; whole state shown after each step."""

from dataclasses import replace

import pytest

from tests.unit.policies.request_rig import Requests, state
from tierkv.policies import Admission, Cause, PolicyState, Rule, Shortfall


def test_a_prefetched_ghost_returns_to_the_list_it_left_and_teaches_nothing() -> None:
    requests = Requests(2, (1,), (1,), (2,), (3,), (4,))
    assert requests.ask(2, cause=Cause.PREFETCH) == Admission(1, (3,))
    assert requests.state == state(t1=(2, 4), b1=(3,), b2=(1,))
    assert requests.ask(1, cause=Cause.PREFETCH) == Admission(1, (4,))
    assert requests.state == state(t1=(2,), t2=(1,), b1=(4, 3))
    assert requests.policy.state().ghost_hits_b1 == requests.policy.state().ghost_hits_b2 == 0


def test_a_load_is_an_access() -> None:
    requests = Requests(2, (1,), (1,), (2,), (3,), (4,))
    assert requests.ask(2, cause=Cause.LOAD) == Admission(1, (3,))
    assert requests.state == state(t1=(4,), t2=(2,), b1=(3,), b2=(1,), p=1.0, w=0.6)


def test_a_prefetched_tail_makes_its_head_as_young_as_itself() -> None:
    requests = Requests(4, (1,), (1,))
    requests.pass_time(6)
    requests.ask(5)
    requests.ask(6)
    assert requests.ask(1, 2, cause=Cause.PREFETCH) == Admission(1)
    assert requests.state == state(t1=(2, 6, 5), t2=(1,))
    # Key 1 was not used for longer than twice the time that key 5 has waited; but 2 came for 1.
    assert requests.ask(7) == Admission(1, (5,))


def test_a_step_is_scaled_by_the_weight_of_the_ghost() -> None:
    requests = Requests(10, (1,), (1,), (2,), (3,), rule=Rule.SIZE, weights={1: 4, 2: 3, 3: 3, 4: 1})
    assert requests.ask(4) == Admission(1, (2,))
    assert requests.state == state(t1=(4, 3), t2=(1,), b1=(2,))
    # T1 weighs 4 now, more than p.
    assert requests.ask(2, cause=Cause.LOAD) == Admission(1, (3,))
    assert requests.state == state(t1=(4,), t2=(2, 1), b1=(3,), p=3.0, w=0.76)


def test_a_step_grows_with_the_ratio_of_the_ghost_weights() -> None:
    requests = Requests(10, (1,), (1,), (2,), (3,), rule=Rule.SIZE, weights={1: 6} | dict.fromkeys((2, 3, 4, 5), 2))
    assert requests.ask(4) == Admission(1, (2,))
    assert requests.ask(2) == Admission(1, (3,))
    assert requests.state == state(t1=(4,), t2=(2, 1), b1=(3,), p=2.0, w=0.84)
    # T1 weighs no more than p, so the heavy entry of T2 leaves; its ghost outweighs B1's three times.
    assert requests.ask(5) == Admission(1, (1,))
    assert requests.state == state(t1=(5, 4), t2=(2,), b1=(3,), b2=(1,), p=2.0, w=0.84)
    assert requests.ask(3) == Admission(1)
    assert requests.state == state(t1=(5, 4), t2=(3, 2), b2=(1,), p=8.0, w=0.84 - 0.8 * 6 / 10)


def test_p_is_looked_at_after_each_victim() -> None:
    requests = Requests(8, *((key,) for key in (1, 1, 2, 2, 3, 4, 5, 6, 7, 8)), rule=Rule.SIZE)
    requests.ask(9)
    requests.ask(3)
    assert requests.state == state(t1=(9, 8, 7, 6, 5), t2=(3, 2, 1), b1=(4,), p=1.0, w=0.9)
    assert requests.room(6) == (5, 6, 7, 8, 1, 2)
    assert requests.state == state(t1=(9,), t2=(3,), b1=(8, 7, 6, 5, 4), b2=(2, 1), p=1.0, w=0.9)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("weight", [5, 3])
def test_a_refused_ghost_changes_nothing(rule: Rule, weight: int) -> None:
    requests = Requests(4, (1,), (1,), (2,), (3,), (4,), rule=rule)
    requests.room(1, pins={1})
    before, summary = requests.state, requests.policy.state()
    assert before == state(t1=(4, 3), t2=(1,), b1=(2,))
    requests.weights = {2: weight}
    assert requests.ask(2, pins=(1, 4), cause=Cause.LOAD) == Admission(0, (), Shortfall.PINNED)
    assert requests.state == before
    assert requests.policy.state() == replace(summary, events=summary.events + 1), "only time has passed"


def test_who_stays_outside_for_want_of_room_has_taught_nothing() -> None:
    requests = Requests(4, (1, 2, 3, 4))
    requests.room(2)
    requests.ask(5)
    requests.ask(6)
    assert requests.state == state(t1=(6, 5, 1, 2), b1=(3, 4))
    assert requests.ask(3, 4, pins=(5, 6, 1), cause=Cause.LOAD) == Admission(1, (2,), Shortfall.PINNED)
    assert requests.state == state(t1=(6, 5, 1), t2=(3,), b1=(2, 4), p=1.0, w=0.8)
    assert requests.policy.state().ghost_hits_b1 == 1


def test_pinned_entries_keep_their_rank_and_the_other_list_gives() -> None:
    requests = Requests(4, (1,), (2,), (1,), (2,), (3,), (4,), rule=Rule.SIZE)
    assert requests.ask(5, pins=(3, 4)) == Admission(1, (1,))
    assert requests.state == state(t1=(5, 4, 3), t2=(2,), b2=(1,))
    assert requests.ask(6, pins=(3,)) == Admission(1, (4,))
    assert requests.state == state(t1=(6, 5, 3), t2=(2,), b1=(4,), b2=(1,))


@pytest.mark.parametrize("rule", Rule)
def test_pins_are_asked_about_from_the_oldest_and_no_further_than_needed(rule: Rule) -> None:
    requests = Requests(4, (1,), (2,), (3,), (4,), rule=rule)
    asked: list[int] = []

    def is_pinned(key: int) -> bool:
        asked.append(key)
        return key == 1

    requests.policy.admit((5,), (1,), is_pinned, cause=Cause.SAVE)
    assert asked == [1, 2]


def test_who_makes_room_becomes_a_ghost_who_is_removed_does_not() -> None:
    requests = Requests(4, (1,), (1,), (2,), (3,), (4,))
    assert requests.room(2, pins={1}) == (2, 3)
    assert requests.state == state(t1=(4,), t2=(1,), b1=(3, 2))
    requests.policy.on_remove(1)
    requests.policy.on_remove(4)
    assert requests.state == state(b1=(3, 2))


def test_ghosts_weigh_at_most_twice_the_capacity_and_the_earliest_go_first() -> None:
    requests = Requests(4, (1,), (1,), (2,), rule=Rule.SIZE, weights={9: 3})
    for key in range(3, 13):
        requests.ask(key)
    assert requests.state == state(t1=(12, 11, 10), t2=(1,), b1=(9, 8, 7, 6, 5, 4))
    requests.policy.expect((1,), None)
    assert requests.room(1) == (1,)
    assert requests.state == state(t1=(12, 11, 10), b1=(9, 8, 7, 6, 5), b2=(1,))
    requests.ask(13)
    requests.ask(14)
    assert requests.state == state(t1=(14, 13, 12, 11), b1=(10, 9, 8, 7, 6), b2=(1,))


@pytest.mark.parametrize("rule", Rule)
def test_expired_entries_leave_first_from_whichever_list(rule: Rule) -> None:
    requests = Requests(4, (1,), (2,), (1,), (2,), (3,), (4,), rule=rule)
    requests.policy.expect((2, 4), None)
    assert requests.room(2) == (4, 2)
    requests.ask(5)
    requests.ask(6)
    requests.policy.expect((5,), None)
    requests.policy.expect((1,), None)
    assert requests.room(2) == (1, 5)


def test_the_summary_counts_what_the_lists_hold() -> None:
    requests = Requests(4, (1,), (1,), (2,), (3,), weights={1: 2})
    requests.ask(4)
    assert requests.state == state(t1=(4, 3), t2=(1,), b1=(2,))
    requests.ask(2)
    assert requests.state == state(t1=(4, 3), t2=(2,), b2=(1,), p=1.0, w=0.8)
    assert requests.policy.state() == PolicyState(
        "arc-age",
        t1_weight=2,
        t2_weight=1,
        b1_keys=0,
        b2_keys=1,
        ghost_hits_b1=1,
        ghost_hits_b2=0,
        p=1.0,
        w=0.8,
        events=6,
    )
