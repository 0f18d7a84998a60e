"""What hints do to the order of leaving. Blocks are numbers, each committed into an arena of eight; the policy is LRU or ARC."""

import pytest

from tests.unit.placement.conftest import BLOCK_BYTES, ROOM_BLOCKS, use_host_policy
from tierkv.index.entry import BlockEntry
from tierkv.model.hints import NO_HINTS, Hints, Priority
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.lifecycle import BlockEvent
from tierkv.placement.advice import Adviser
from tierkv.policies import ArcPolicy
from tierkv.policies.base import Cause
from tierkv.testing.clock import ManualClock

NAMESPACE = NamespaceId(bytes(32))
CLOSED, LOW, HIGH = Hints(session_closed=True), Hints(priority=Priority.LOW), Hints(priority=Priority.HIGH)


@pytest.fixture
def clock():
    clock = ManualClock()
    clock.advance(100.0)
    return clock


@pytest.fixture
def adviser(books, clock):
    return Adviser(books, clock)


def key_of(number):
    return BlockKey(number.to_bytes(32, "big"))


def save(books, *numbers, parent=None):
    """One request saves a chain."""
    entries = [
        BlockEntry(key_of(number), NAMESPACE, None if before is None else key_of(before), BLOCK_BYTES)
        for number, before in zip(numbers, (parent, *numbers), strict=False)
    ]
    assert books.reserve(entries, books.index.ancestors(entries[0].parent)) == len(entries)
    for entry in entries:
        books.index.add(entry)
        books.became_readable(entry, BlockEvent.COMMIT)
    return entries


def order(books):
    """Next victim first."""
    return [int.from_bytes(key, "big") for key in books.host_policy]


def retained(books, *numbers):
    return [number for number in numbers if books.retention.is_retained(key_of(number))]


def test_a_closed_conversation_leaves_first_from_its_end(books, adviser):
    save(books, 1, 2)
    closed = save(books, 3, 4, 5)
    assert order(books) == [2, 1, 5, 4, 3]
    adviser.take(closed, CLOSED)
    assert order(books) == [5, 4, 3, 2, 1]


def test_a_closed_conversation_is_more_than_the_blocks_named(books, adviser):
    save(books, 1, 2)
    head = save(books, 3, 4)
    tail = save(books, 5, parent=4)
    assert order(books) == [2, 1, 5, 4, 3]
    adviser.take(tail, CLOSED)
    assert order(books) == [5, 4, 3, 2, 1]
    adviser.take(head, CLOSED)
    assert order(books) == [5, 4, 3, 2, 1], "its end is below what is named: it goes on"


def test_what_another_conversation_shares_stays(books, adviser):
    shared = save(books, 1, 2)
    save(books, 3, parent=2)
    own = save(books, 4, 5, parent=2)
    before = order(books)
    adviser.take([*shared, *own], CLOSED)
    assert order(books) == [5, 4, *[number for number in before if number not in {4, 5}]]


def test_what_another_lease_holds_stays(books, adviser):
    save(books, 9)
    chain = save(books, 1, 2, 3)
    for entry in chain[:2]:
        books.pin(entry)
    adviser.take(chain, CLOSED)
    assert order(books) == [3, 9, 2, 1]
    adviser.take(chain, CLOSED, own_pins=1)
    assert order(books) == [3, 2, 1, 9]
    for entry in chain[:2]:
        books.unpin(entry)


def test_low_priority_speaks_of_its_blocks_only(books, adviser):
    save(books, 9)
    save(books, 1, 2)
    low = save(books, 3, 4, parent=2)
    adviser.take(low, LOW)
    assert order(books) == [4, 3, 9, 2, 1]
    assert retained(books, 1, 2, 3, 4, 9) == []


def test_advice_moves_blocks_of_the_disk_too(books, adviser, disk):
    chain = [*save(books, 1, 2), *save(books, 3)]
    for entry in chain:
        entry.is_on_disk = True
        books.disk_policy.admit([entry.key], [BLOCK_BYTES], lambda _: False, cause=Cause.LOAD)
    adviser.take(chain[2:], LOW)
    assert [int.from_bytes(key, "big") for key in books.disk_policy] == [3, 2, 1]


def test_a_pin_holds_the_blocks_before_it_until_its_end(books, adviser, clock):
    save(books, 1, 2)
    tail = save(books, 3, parent=2)
    adviser.take(tail, Hints(pin_until_s=160.0))
    assert retained(books, 1, 2, 3) == [1, 2, 3]
    assert books.host_policy.make_room(BLOCK_BYTES, books._is_pinned_in_host) == ()
    clock.advance(59.0)
    adviser.tick()
    assert retained(books, 1, 2, 3) == [1, 2, 3]
    clock.advance(1.0)
    adviser.tick()
    assert retained(books, 1, 2, 3) == []
    books.check_integrity()


def test_a_pin_in_the_past_lifts_what_no_other_pin_needs(books, adviser):
    shared = save(books, 1)
    first, second = save(books, 2, parent=1), save(books, 3, parent=1)
    for entries in (first, second):
        adviser.take(entries, Hints(pin_until_s=1e6))
    adviser.take([*shared, *first], Hints(pin_until_s=1.0))
    assert retained(books, 1, 2, 3) == [1, 3]


def test_high_priority_is_taken_back_by_what_lets_go(books, adviser):
    chain = save(books, 1, 2)  # a quarter of eight
    for letting_go in (LOW, CLOSED):
        adviser.take(chain, HIGH)
        assert retained(books, 1, 2) == [1, 2]
        adviser.take(chain, letting_go)
        assert retained(books, 1, 2) == []


def test_a_block_that_is_gone_is_no_longer_kept(books, adviser):
    (entry,) = save(books, 1)
    adviser.take([entry], Hints(priority=Priority.HIGH, pin_until_s=1e6))
    books.drop(entry, None)
    assert retained(books, 1) == []
    books.check_integrity()


def test_hints_that_only_name_a_request_and_no_blocks_do_nothing(books, adviser):
    chain = save(books, 1, 2)
    save(books, 3)
    adviser.take(chain, Hints(request_id="r"))
    adviser.take(chain, NO_HINTS)
    adviser.take([], Hints(session_closed=True, pin_until_s=1e6))
    assert order(books) == [2, 1, 3]
    assert retained(books, 1, 2, 3) == []


@pytest.mark.parametrize(("idle_s", "leaves"), [(3.0, False), (40.0, True), (1e6, True), (1e300, True)])
def test_who_is_wanted_later_than_others_probably_leaves_before_them(books, clock, idle_s, leaves):
    """A pace of one event a second; the oldest block has been idle for 7 events, in T1 where that counts twice."""
    use_host_policy(books, ArcPolicy(ROOM_BLOCKS * BLOCK_BYTES, books.index.chains))
    adviser = Adviser(books, clock)
    adviser.tick()
    for number in range(ROOM_BLOCKS):
        clock.advance(1.0)
        save(books, number)
    adviser.take([books.index.get(key_of(ROOM_BLOCKS - 1))], Hints(expected_idle_s=idle_s))
    books.check_integrity()
    assert order(books)[0] == (ROOM_BLOCKS - 1 if leaves else 0)


def test_an_idle_time_says_nothing_while_the_pace_is_not_known(books, adviser):
    chain = save(books, 1)
    save(books, 2)
    adviser.take(chain, Hints(expected_idle_s=1e9))
    assert order(books) == [1, 2]
