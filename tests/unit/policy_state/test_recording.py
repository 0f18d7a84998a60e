"""The recorder notes what changes the policy, once, and bounds what it notes."""

import pytest

from tierkv.model.chains import Chains
from tierkv.policies import Admission, ArcPolicy, Cause, LruPolicy
from tierkv.policy_state import recording
from tierkv.policy_state.events import Accessed, Admitted, Event, LetGo, Removed
from tierkv.policy_state.recording import RecordingPolicy
from tierkv.policy_state.replaying import merged
from tierkv.testing.policy_suite import PolicyContract
from tierkv.testing.policy_traffic import key_of

K = [key_of(number) for number in range(40)]


def nobody(_key):
    return False


class TestARecordedPolicyIsAPolicy(PolicyContract):
    def make(self, capacity, chains):
        return RecordingPolicy(ArcPolicy(capacity, chains))


@pytest.fixture
def policy():
    return RecordingPolicy(ArcPolicy(4, Chains()))


def test_each_call_that_changes_something_is_one_event(policy):
    policy.admit(K[1:5], [1] * 4, nobody, cause=Cause.LOAD)
    policy.on_access(K[1:3])
    policy.admit([K[5]], [1], nobody, cause=Cause.SAVE, head=K[1:3])
    policy.make_room(1, nobody)
    policy.make_room(99, nobody)  # in vain
    policy.expect([K[1]], None)  # does not survive a restart
    policy.on_remove(K[1])
    drained = policy.drain()
    assert drained.is_complete
    assert drained.events == [
        Admitted(K[1:5], [1] * 4, Admission(4), Cause.LOAD, ()),
        Accessed(K[1:3]),
        Admitted([K[5]], [1], Admission(1, (K[4],)), Cause.SAVE, K[1:3]),
        LetGo((K[3],)),
        Removed((K[1],)),
    ]
    assert policy.drain().events == []


def test_it_keeps_the_sequences_themselves(policy):
    keys = K[1:4]
    policy.admit(keys, [1] * 3, nobody, cause=Cause.LOAD)
    policy.on_access(keys)
    assert [event.keys is keys for event in policy.drain().events] == [True, True]


@pytest.mark.parametrize("limit", ["PENDING_EVENTS_LIMIT", "PENDING_KEYS_LIMIT"])
def test_what_nobody_takes_away_is_bounded(policy, monkeypatch, limit):
    monkeypatch.setattr(recording, limit, 12)
    policy.admit(K[1:4], [1] * 3, nobody, cause=Cause.LOAD)
    for _ in range(100):
        policy.on_access(K[1:3])
        assert len(policy._events) <= 12
    drained = policy.drain()
    assert (drained.events, drained.is_complete) == ([], False)
    policy.on_access(K[1:3])
    assert policy.drain().is_complete


def test_equal_accesses_in_a_row_become_one_and_others_do_not():
    one, two = K[1:5], K[1:4]
    events = [Accessed(one), Accessed(tuple(one)), Accessed(list(one)), Accessed(two), Accessed(one)]
    assert merged(events) == [Accessed(list(one), 3), Accessed(two), Accessed(one)]
    middle = [one[0], one[2], one[1], one[3]]
    assert merged([Accessed(one), Accessed(middle)]) == [Accessed(one), Accessed(middle)]


def test_an_event_between_keeps_accesses_apart():
    events: list[Event] = [Accessed(K[1:5]), LetGo([K[4]]), Accessed(K[1:5])]
    assert merged(events) == events


def test_removals_in_a_row_become_one():
    assert merged([Removed((K[3],)), Removed((K[2],)), Accessed([K[1]])]) == [Removed([K[3], K[2]]), Accessed([K[1]])]


def test_the_capacity_is_the_policys():
    assert RecordingPolicy(LruPolicy(7)).capacity == 7
