"""A policy that was put back meets what survived: whole states before and after. 1 - 2 - 3 - 4 is a chain, 11 - 12 another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierkv.model.chains import Chains
from tierkv.policies import ArcPolicy, Cause, LruPolicy, Survivor
from tierkv.policy_state.settling import heads_first, settle
from tierkv.testing.policy_traffic import PolicyTraffic, key_of, weight_of

K = [key_of(number) for number in range(60)]
PARENTS = {2: 1, 3: 2, 4: 3, 12: 11, 13: 12, 22: 21}


def survivors(*numbers, weight=1, is_below=False):
    return [Survivor(K[number], weight, K[PARENTS[number]] if number in PARENTS else None, is_below) for number in numbers]


def nobody(_key):
    return False


def numbers(keys):
    return [int.from_bytes(key, "big") for key in keys]


def lists(policy):
    """T1, T2 and the ghosts, the most recent first."""
    image = policy.export_image()
    return tuple(numbers(reversed(keys)) for keys in (image.t1, image.t2, image.ghosts))


@pytest.fixture
def chains():
    chains = Chains()
    for child, parent in PARENTS.items():
        chains.link(K[parent], K[child])
    return chains


@pytest.fixture
def policy(chains):
    """T1: 11, 12; T2: 1, 2, 3; ghost: 4. Capacity 8."""
    policy = ArcPolicy(8, chains)
    policy.admit(K[1:5], [1] * 4, nobody, cause=Cause.SAVE)
    policy.let_go([K[4]])
    policy.on_access(K[1:4])
    policy.admit(K[11:13], [1, 1], nobody, cause=Cause.SAVE)
    assert lists(policy) == ([11, 12], [1, 2, 3], [4])
    return policy


def test_what_survived_whole_stays_as_it_was(policy):
    before = policy.export_image()
    assert settle(policy, survivors(1, 2, 3, 11, 12), 8) == ()
    assert policy.export_image().is_same(before)


def test_what_is_gone_becomes_a_ghost_of_its_list(policy):
    assert settle(policy, survivors(1, 2, 11), 8) == ()
    assert lists(policy) == ([11], [1, 2], [12, 3, 4])
    assert policy.export_image().in_b2 == {K[3]}


def test_nothing_survived(policy):
    assert settle(policy, [], 8) == ()
    t1, t2, ghosts = lists(policy)
    assert (t1, t2, sorted(ghosts)) == ([], [], [1, 2, 3, 4, 11, 12])


def test_what_nobody_knew_comes_in_front_heads_before_tails(policy):
    assert settle(policy, survivors(1, 2, 3, 11, 12, 13, 21, 22), 8) == ()
    assert lists(policy) == ([21, 22, 13, 11, 12], [1, 2, 3], [4])


def test_what_nobody_knew_pushes_out_the_oldest_but_not_whom_it_follows(policy):
    assert settle(policy, survivors(1, 2, 3, 11, 12, 13), 5) == (K[3],)
    assert lists(policy) == ([13, 11, 12], [1, 2], [3, 4])
    policy.check_integrity()


def test_a_smaller_capacity_lets_tails_go_first(policy):
    assert settle(policy, survivors(1, 2, 3, 11, 12), 2) == (K[3], K[2], K[1])
    assert lists(policy) == ([11, 12], [], [1, 2, 3, 4])
    assert policy.capacity == 2
    policy.check_integrity()


def test_a_ghost_that_is_still_there_returns_where_there_is_room(policy):
    assert settle(policy, survivors(1, 2, 3, 4, 11, 12), 8) == ()
    assert lists(policy) == ([4, 11, 12], [1, 2, 3], [])


def test_a_ghost_that_is_still_there_leaves_where_there_is_none(policy):
    assert settle(policy, survivors(1, 2, 3, 4, 11, 12), 5) == (K[4],)
    assert lists(policy) == ([11, 12], [1, 2, 3], [4])


def test_a_ghost_that_a_lower_tier_has_leaves(policy):
    assert settle(policy, [*survivors(1, 2, 3, 11, 12), *survivors(4, is_below=True)], 8) == (K[4],)
    assert lists(policy) == ([11, 12], [1, 2, 3], [4])


def test_a_block_of_another_weight_is_weighed_again_and_what_follows_stays(policy):
    assert settle(policy, [*survivors(1, 3, 11, 12), *survivors(2, weight=2)], 8) == ()
    assert policy.used == 6
    assert policy.export_image().weight_of()[K[2]] == 2
    assert set(lists(policy)[1]) == {1, 2, 3}


def test_an_entry_heavier_than_the_tier_leaves_alone(policy):
    assert settle(policy, [*survivors(1, 2, 3, 11, 12), *survivors(21, weight=9)], 8) == (K[21],)
    assert lists(policy) == ([11, 12], [1, 2, 3], [4])


def test_a_cold_start_keeps_the_latest_that_fit(chains):
    policy = ArcPolicy(4, chains)
    assert settle(policy, survivors(1, 2, 3, 11, 12, 21), 4) == (K[3], K[2])
    assert lists(policy) == ([21, 11, 12, 1], [], [])


def test_the_latest_come_first_but_none_before_its_parent():
    assert numbers(survivor.key for survivor in heads_first(survivors(1, 11, 2, 12, 3))) == [1, 2, 3, 11, 12]


def test_parents_that_lead_in_a_circle_end_somewhere():
    circle = [Survivor(K[1], 1, K[2]), Survivor(K[2], 1, K[1]), Survivor(K[3], 1, K[3])]
    assert len(heads_first(circle)) == 3
    assert len(settle(LruPolicy(9), circle, 9)) == 0


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 1 << 32), lost=st.sets(st.integers(0, 60)), found=st.sets(st.integers(0, 60)), capacity=st.integers(1, 60)
)
def test_whatever_survives_and_fits_is_resident_and_the_rest_is_told(seed, lost, found, capacity):
    chains = Chains()
    policy = ArcPolicy(40, chains)
    traffic = PolicyTraffic(policy, chains, seed)
    for _ in range(25):
        traffic.step()
    order = list(policy)
    parents = {child: key for key in map(key_of, range(400)) for child in chains.children(key)}
    there = {key for idx, key in enumerate(order) if idx not in lost} | {key_of(number) for number in found}
    chance = sorted(there)
    given_survivors = [Survivor(key, weight_of(key), parents.get(key)) for key in chance]
    leaving = settle(policy, given_survivors, capacity)
    policy.check_integrity()
    assert policy.capacity == capacity
    assert set(policy) == there - set(leaving)
    assert len(set(leaving)) == len(leaving) and set(leaving) <= there
    position = {key: idx for idx, key in enumerate(leaving)}
    for key in there:
        parent = parents.get(key)
        assert parent not in position or position[parent] > position.get(key, len(leaving)), "a parent left, or left first"
