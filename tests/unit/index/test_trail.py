"""The trail: what it remembers, in which order, and what it costs."""

import threading

import pytest

from tierkv.index.trail import Trail, What, events_of_key
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import MissReason, TierName
from tierkv.testing.clock import ManualClock


def key(number):
    return BlockKey(number.to_bytes(4, "big") * 8)


KEYS = [key(number) for number in range(10)]


@pytest.fixture
def clock():
    return ManualClock()


def trail_of(clock, *, events=100, keys=100):
    return Trail(events=events, keys=keys, clock=clock, lock=threading.RLock())


def told(events):
    return [(event.what, list(event.keys)) for event in events]


def test_an_event_keeps_everything_it_was_noted_with(clock):
    trail = trail_of(clock)
    clock.advance(1.5)
    trail.note(
        What.MISSED,
        KEYS[:2],
        "why",
        tier=TierName.DISK,
        request="r",
        namespace=NamespaceId(bytes(32)),
        miss=MissReason.EVICTED,
        session=b"session",
    )
    (event,) = trail.events()
    assert event == (
        1_500_000_000,
        What.MISSED,
        (KEYS[0], KEYS[1]),
        "why",
        TierName.DISK,
        "r",
        NamespaceId(bytes(32)),
        MissReason.EVICTED,
        b"session",
    )


def test_events_of_a_key_come_oldest_first(clock):
    trail = trail_of(clock)
    trail.note(What.SAVED, KEYS[:3], request="a")
    trail.note(What.HIT, KEYS[2:4], request="b")
    trail.note(What.EVICTED, KEYS[1:3])
    events = trail.events()
    assert told(events_of_key(events, KEYS[2])) == [(What.SAVED, KEYS[:3]), (What.HIT, KEYS[2:4]), (What.EVICTED, KEYS[1:3])]
    assert told(events_of_key(events, KEYS[0])) == [(What.SAVED, KEYS[:3])]
    assert told(events_of_key(events, KEYS[3][:4])) == [(What.HIT, KEYS[2:4])]
    assert events_of_key(events, b"\0\0\0") == events
    assert events_of_key(events, KEYS[9]) == []


def test_of_too_many_events_the_oldest_go(clock):
    trail = trail_of(clock, events=2)
    for number in range(4):
        trail.note(What.HIT, [KEYS[number]])
        trail.check_integrity()
    assert told(trail.events()) == [(What.HIT, [KEYS[2]]), (What.HIT, [KEYS[3]])]
    assert trail.size() == (2, 2)


def test_of_too_many_keys_the_oldest_events_go(clock):
    trail = trail_of(clock, keys=5)
    trail.note(What.SAVED, KEYS[:2])
    trail.note(What.HIT, KEYS[2:4])
    assert trail.size() == (2, 4)
    trail.note(What.HIT, KEYS[4:7])
    trail.check_integrity()
    assert told(trail.events()) == [(What.HIT, KEYS[2:4]), (What.HIT, KEYS[4:7])]
    assert trail.size() == (2, 5)


def test_an_event_larger_than_the_whole_trail_keeps_its_head(clock):
    trail = trail_of(clock, keys=3)
    trail.note(What.SAVED, KEYS[:1])
    trail.note(What.RECOVERED, KEYS)
    trail.check_integrity()
    assert told(trail.events()) == [(What.RECOVERED, KEYS[:3])]


@pytest.mark.parametrize(("events", "keys"), [(0, 10), (10, 0)])
def test_a_trail_that_is_off_remembers_nothing(clock, events, keys):
    trail = trail_of(clock, events=events, keys=keys)
    trail.note(What.SAVED, KEYS)
    assert trail.events() == []
    assert trail.size() == (0, 0)


def test_an_event_without_keys_is_none(clock):
    trail = trail_of(clock)
    trail.note(What.EVICTED, [])
    assert trail.events() == []


def test_a_list_that_its_owner_changes_later_does_not_change_the_trail(clock):
    trail = trail_of(clock)
    keys = KEYS[:2]
    trail.note(What.SAVED, keys)
    keys.clear()
    assert told(trail.events()) == [(What.SAVED, KEYS[:2])]


def test_a_tuple_is_kept_and_not_copied(clock):
    """A note of an eviction of many blocks costs no more than one of few."""
    trail = trail_of(clock)
    keys = tuple(KEYS)
    trail.note(What.EVICTED, keys)
    assert trail.events()[0].keys is keys


class CountingLock:
    """A lock that tells how often it was taken."""

    def __init__(self):
        self.taken = 0

    def __enter__(self):
        self.taken += 1

    def __exit__(self, *_):
        pass


def test_reading_takes_the_lock_and_noting_relies_on_it(clock):
    lock = CountingLock()
    trail = Trail(events=10, keys=10, clock=clock, lock=lock)  # type: ignore[arg-type]  # as much of a lock as is needed
    trail.note(What.SAVED, KEYS[:1])
    assert lock.taken == 0
    trail.events()
    trail.size()
    assert lock.taken == 2
