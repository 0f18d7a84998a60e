"""What a policy tells of its time and of how long its victims had waited."""

import pytest

from tierkv.policies import ArcPolicy, LruPolicy
from tierkv.policies.base import Cause


def save(policy, *keys):
    return policy.admit(keys, [1] * len(keys), lambda key: False, cause=Cause.SAVE).victims


def test_survival_is_the_age_of_the_last_victim_in_events():
    policy = ArcPolicy(4)
    assert (policy.state().events, policy.state().survival) == (0, 0)
    for key in "abcd":
        save(policy, key)
    assert (policy.state().events, policy.state().survival) == (4, 0)
    assert save(policy, "e") == ("a",)  # saved at 1, now it is 5
    assert (policy.state().events, policy.state().survival) == (5, 4)
    policy.on_access(["c"])
    assert save(policy, "f") == ("b",)  # saved at 2, now it is 7
    assert policy.state().survival == 5


def test_what_was_told_to_leave_lets_the_others_survive_longer():
    """Else a survival that was low once would stay so, as long as idle times find enough to expire."""
    policy = ArcPolicy(4)
    for key in "abcde":
        save(policy, key)
    policy.expire_first(["d"])
    assert policy.state().survival == 4
    assert save(policy, "f") == ("d",)  # now it is 6, and what was saved at 1 would have had to wait until now
    assert policy.state().survival == 5
    assert save(policy, "g") == ("b",)  # saved at 2, now it is 7
    assert policy.state().survival == 5


@pytest.mark.parametrize("policy", [ArcPolicy(8), LruPolicy(8)])
def test_without_victims_nothing_is_known(policy):
    save(policy, "a", "b")
    assert policy.make_room(3, lambda key: True) == ()
    assert policy.state().survival == 0
