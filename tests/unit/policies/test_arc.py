"""ARC for requests: chains, the cap, ages; whole state shown after each step."""

import pytest

from tests.unit.policies.request_rig import Requests, state
from tierkv.policies import Admission, Cause, Rule, Shortfall

OLD = tuple(range(1, 17))
NEW = tuple(range(21, 31))


def test_a_request_is_one_access_to_each_block_and_ends_with_its_head() -> None:
    requests = Requests(16, (1, 2, 3))
    assert requests.state == state(t1=(1, 2, 3))
    assert requests.ask(1, 2, 3, 4) == Admission(1)
    assert requests.state == state(t1=(4,), t2=(1, 2, 3))
    requests.ask(1, 2, 7)
    assert requests.state == state(t1=(7, 4), t2=(1, 2, 3))
    requests.ask(1, 2, 3, 4)
    assert requests.state == state(t1=(7,), t2=(1, 2, 3, 4))


def test_a_victim_takes_along_what_follows_it_each_into_the_ghosts_of_its_own_list() -> None:
    requests = Requests(8, (1, 2), (1, 2, 3), (5,))
    assert requests.state == state(t1=(5, 3), t2=(1, 2))
    requests.policy.expect((1,), None)
    assert requests.room(1) == (3, 2, 1)
    assert requests.state == state(t1=(5,), b1=(3,), b2=(1, 2))


def test_a_request_adds_an_eighth_of_a_full_cache_and_the_rest_becomes_ghosts() -> None:
    requests = Requests(16, OLD)
    assert requests.ask(*NEW) == Admission(2, (16, 15), Shortfall.CAP)
    after = state(t1=(21, 22, *OLD[:14]), b1=(23, 24, 25, 26, 27, 28, 29, 30, 15, 16))
    assert requests.state == after
    # A second call of the same request finds its share used up; what stays outside teaches nothing, it only leaves once more.
    again = requests.policy.admit(NEW[2:], [1] * 8, NEW.__contains__, cause=Cause.SAVE, head=NEW[:2], spent=2)
    assert again == Admission(0, (), Shortfall.CAP)
    assert requests.state == after


def test_what_is_left_of_a_share_is_added() -> None:
    requests = Requests(16, OLD)
    assert requests.ask(*NEW, spent=1) == Admission(1, (16,), Shortfall.CAP)
    assert requests.state == state(t1=(21, *OLD[:15]), b1=(22, 23, 24, 25, 26, 27, 28, 29, 30, 16))


def test_where_there_is_more_room_than_the_share_the_room_is_filled() -> None:
    requests = Requests(16, OLD[:11])
    assert requests.ask(*NEW, spent=7) == Admission(5, (), Shortfall.CAP)
    assert requests.state == state(t1=(*NEW[:5], *OLD[:11]), b1=NEW[5:])
    requests = Requests(16, OLD[:15])
    assert requests.ask(*NEW) == Admission(2, (15,), Shortfall.CAP)
    assert requests.state == state(t1=(21, 22, *OLD[:14]), b1=(23, 24, 25, 26, 27, 28, 29, 30, 15))


def test_a_request_that_fits_its_share_is_admitted_whole() -> None:
    requests = Requests(16, OLD)
    assert requests.ask(21, 22) == Admission(2, (16, 15))
    assert requests.state == state(t1=(21, 22, *OLD[:14]), b1=(15, 16))


@pytest.mark.parametrize("cause", [Cause.LOAD, Cause.PREFETCH])
def test_what_comes_from_below_is_not_capped(cause: Cause) -> None:
    requests = Requests(16, OLD)
    assert requests.ask(*NEW, cause=cause, spent=16) == Admission(10, tuple(range(16, 6, -1)))
    assert requests.state == state(t1=(*NEW, *OLD[:6]), b1=tuple(range(7, 17)))


def test_the_paper_knows_no_cap_but_the_capacity() -> None:
    requests = Requests(16, OLD, rule=Rule.PAPER)
    assert requests.ask(*NEW) == Admission(10, tuple(range(16, 6, -1)))
    assert requests.state == state(t1=(*NEW, *OLD[:6]))


def test_an_entry_heavier_than_the_share_is_added_alone() -> None:
    requests = Requests(16, OLD, weights={21: 5})
    assert requests.ask(*NEW) == Admission(1, (16, 15, 14, 13, 12), Shortfall.CAP)
    assert requests.ask(*NEW, spent=5) == Admission(0, (), Shortfall.CAP)


def test_an_entry_heavier_than_the_cache_is_no_ghost_and_drives_none_out() -> None:
    requests = Requests(4, (1,), (2,), (3,), (4,), (5,), weights={6: 9})
    assert requests.ask(6, 7) == Admission(0, (), Shortfall.CAP)
    assert requests.state == state(t1=(5, 4, 3, 2), b1=(7, 1))


def test_a_ghost_that_is_left_out_stays_in_its_list() -> None:
    requests = Requests(2, (1,), (1,), (2,), (3,), (4,))
    assert requests.state == state(t1=(4, 3), b1=(2,), b2=(1,))
    assert requests.ask(5, 1, 2, 6) == Admission(1, (3,), Shortfall.CAP)
    assert requests.state == state(t1=(5, 4), b1=(2, 6, 3), b2=(1,))


def test_the_age_of_t1_counts_double_in_the_beginning_and_a_tie_is_t1s() -> None:
    requests = Requests(2, (1,), (1,), (2,))
    # At moment 4 key 2 has waited 1 request, key 1 two.
    assert requests.ask(3) == Admission(1, (2,))
    assert requests.state == state(t1=(3,), t2=(1,), b1=(2,))
    # At moment 5 key 3 has waited 1, key 1 three.
    assert requests.ask(4) == Admission(1, (1,))
    assert requests.state == state(t1=(4, 3), b1=(2,), b2=(1,))


def test_a_hit_in_b1_lowers_w_and_one_in_b2_raises_it() -> None:
    requests = Requests(2, (1,), (1,), (2,), (3,), (4,))
    assert requests.state == state(t1=(4, 3), b1=(2,), b2=(1,))
    assert requests.ask(2) == Admission(1, (3,))
    assert requests.state == state(t1=(4,), t2=(2,), b1=(3,), b2=(1,), p=1.0, w=0.6)
    # Key 4 has waited 2 requests, twice that once w is 1 again; key 2 has waited 1.
    assert requests.ask(1) == Admission(1, (4,))
    assert requests.state == state(t2=(1, 2), b1=(4, 3), p=0.0, w=1.0)
    assert requests.ask(5) == Admission(1, (2,))
    assert requests.state == state(t1=(5,), t2=(1,), b1=(4, 3), b2=(2,), p=0.0, w=1.0)
    # B1 is twice as heavy as B2, and so is the step.
    assert requests.ask(2) == Admission(1, (5,))
    assert requests.state == state(t2=(2, 1), b1=(5, 4, 3), p=0.0, w=1.8)


def test_w_does_not_fall_beyond_its_bound_nor_p_rise_beyond_the_capacity() -> None:
    requests = Requests(1, (1,))
    requests.room(1)
    for _ in range(8):  # each time a ghost of T1 comes back and is deleted, so that T2 never has ghosts
        requests.ask(1)
        requests.policy.on_remove(1)
        requests.ask(1)
        requests.room(1)
    assert (requests.state.w, requests.state.p) == (-4.0, 1.0)


def test_w_does_not_rise_beyond_its_bound_nor_p_fall_beyond_zero() -> None:
    requests = Requests(1, (1,), (1,))
    for _ in range(8):
        requests.room(1)
        requests.ask(1)
    assert requests.state == state(t2=(1,), p=0.0, w=4.0)
