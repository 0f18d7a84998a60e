"""Entries that are expected at a known time: judged by how long they will be idle, back among the others when they do not come."""

import pytest

from tierkv.model.chains import Chains
from tierkv.policies import ArcPolicy, Cause, LruPolicy, Rule
from tierkv.policies.waiting_room import NEVER, WaitingRoom


def nobody(_key):
    return False


def filled(*keys, rule=Rule.AGE, capacity=4):
    policy = ArcPolicy(capacity, Chains(), rule=rule)
    for key in keys:
        policy.admit([key], [1], nobody, cause=Cause.SAVE)
    return policy


def test_the_furthest_come_first_and_of_equals_the_last():
    room = WaitingRoom()
    for key, at in (("a", 5), ("b", 9), ("c", 9), ("d", NEVER)):
        room.add(key, 2, at, from_t2=False)
    assert list(room) == ["d", "c", "b", "a"]
    assert (len(room), room.total, "a" in room) == (4, 8, True)
    assert [key for key, _ in room.pop_overdue(9)] == ["a"]
    assert room.pop("c").expected_at == 9
    assert list(room) == ["d", "b"]
    room.check_integrity()


def test_who_is_wanted_late_leaves_before_the_oldest():
    policy = filled("a", "b", "c", "d")  # "a" has been idle for 3 requests, in T1 where that counts twice
    policy.expect(["d"], 6)
    assert policy.make_room(1, nobody) == ("a",)
    policy.expect(["d"], 100)
    assert policy.make_room(1, nobody) == ("d",)


def test_who_is_wanted_soon_outlives_older_and_younger_ones():
    policy = filled("a", "b", "c", "d")
    policy.expect(["a"], 2)
    assert policy.make_room(2, nobody) == ("b", "c")
    assert list(policy) == ["a", "d"]  # "d" was used just now


def test_who_does_not_come_in_time_is_the_oldest_of_its_list_again():
    policy = filled("a", "b", "c", "d")
    policy.expect(["c"], 1)
    policy.on_access(["d"])
    policy.on_access(["d"])
    assert policy.snapshot().t1 == ("b", "a", "c")
    assert policy.state().waiting_weight == 0


@pytest.mark.parametrize("rule", Rule)
def test_an_access_ends_the_wait(rule):
    policy = filled("a", "b", rule=rule)
    policy.expect(["a"], None)
    assert (policy.state().waiting_weight, policy.used, len(policy), "a" in policy) == (1, 2, 2, True)
    policy.on_access(["a"])
    assert (policy.snapshot().t1, policy.snapshot().t2) == (("b",), ("a",))
    policy.check_integrity()


def test_one_who_waits_becomes_a_ghost_of_the_list_where_it_belongs():
    policy = filled("a", "b")
    policy.on_access(["a"])
    policy.expect(["a", "b"], None)
    assert policy.make_room(2, nobody) == ("b", "a")
    assert (policy.snapshot().b1, policy.snapshot().b2) == (("b",), ("a",))


def test_a_pinned_one_is_passed_over():
    policy = filled("a", "b", "c", "d")
    policy.expect(["d", "c"], None)
    assert policy.make_room(1, {"c"}.__contains__) == ("d",)


def test_an_image_has_them_as_the_oldest_of_their_lists():
    policy = filled("a", "b", "c", "d")
    policy.on_access(["b"])
    policy.expect(["d", "b"], 50)
    image = policy.export_image()
    assert (image.t1, image.t2) == (["d", "a", "c"], ["b"])
    other = ArcPolicy(4, Chains())
    other.restore_image(image)
    other.check_integrity()
    assert (other.used, len(other), other.state().waiting_weight) == (4, 4, 0)


def test_lru_takes_never_for_old_and_times_for_nothing():
    policy = LruPolicy(3)
    for key in "abc":
        policy.admit([key], [1], nobody, cause=Cause.SAVE)
    policy.expect(["b"], 1000)
    assert list(policy) == ["a", "b", "c"]
    policy.expect(["c"], None)
    assert list(policy) == ["c", "a", "b"]
