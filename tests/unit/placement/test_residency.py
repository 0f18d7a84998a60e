"""The books: who gets room, who leaves, and when an extent comes back."""

import pytest

from tests.unit.placement.conftest import BLOCK_BYTES, ROOM_BLOCKS
from tierkv.index.entry import BlockEntry
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.lifecycle import BlockEvent, BlockState
from tierkv.model.outcomes import MissReason
from tierkv.policies.base import Cause

NAMESPACE = NamespaceId(bytes(32))


def key_of(number):
    return BlockKey(number.to_bytes(32, "big"))


def entry_of(number, parent=None):
    return BlockEntry(key_of(number), NAMESPACE, None if parent is None else key_of(parent), BLOCK_BYTES)


def chain_of(*numbers, parent=None):
    return [entry_of(number, before) for number, before in zip(numbers, (parent, *numbers), strict=False)]


def reserve(books, entries):
    placed = books.reserve(entries, books.index.ancestors(entries[0].parent))
    for entry in entries[:placed]:
        books.index.add(entry)
    return placed


def commit(books, entries):
    for entry in entries:
        entry.is_verified = True
        books.became_readable(entry, BlockEvent.COMMIT)


def store_on_disk(books, entry):
    entry.is_on_disk = True
    books.disk_policy.admit([entry.key], [BLOCK_BYTES], lambda _: False, cause=Cause.LOAD)


@pytest.fixture
def full(books):
    """Eight READY blocks in an arena of eight."""
    entries = [entry_of(number) for number in range(ROOM_BLOCKS)]
    for entry in entries:
        assert reserve(books, [entry]) == 1
    commit(books, entries)
    return entries


def test_a_block_on_disk_is_dropped_at_once_for_a_new_one(books, full):
    store_on_disk(books, full[0])
    assert reserve(books, [entry_of(100)]) == 1
    assert (full[0].state, full[0].extent) == (BlockState.FREE, None)
    assert books.index.get(full[0].key) is full[0]
    books.check_integrity()


def test_a_block_without_a_disk_copy_is_demoted_and_nobody_waits_for_it(books, full):
    assert reserve(books, [entry_of(100)]) == 0
    assert full[0].state is BlockState.EVICTING
    assert books.to_demote == [full[0]]
    assert full[0].extent is not None
    store_on_disk(books, full[0])
    books.finish_eviction(full[0])
    books.end_move(full[0])
    assert reserve(books, [entry_of(101)]) == 1
    books.check_integrity()


def test_a_hit_cancels_a_demotion(books, full):
    reserve(books, [entry_of(100)])
    store_on_disk(books, full[1])
    books.pin(full[0])
    assert books.bring_in([full[0]], [], Cause.LOAD) == 1
    books.unpin(full[0])
    assert full[0].state is BlockState.READY
    assert full[0].key in books.host_policy
    books.check_integrity()


def test_pinned_and_moved_blocks_are_no_victims(books, full):
    for entry in full:
        store_on_disk(books, entry)
    for entry in full[:4]:
        books.pin(entry)
    for entry in full[4:]:
        entry.moves += 1
    assert reserve(books, [entry_of(100)]) == 0
    assert all(entry.has_host_copy for entry in full)


def test_bytes_that_are_still_looked_at_cost_no_good_block(books, full):
    """Deleted blocks wait for whoever looks at them; a new block is refused meanwhile instead of a good one being evicted."""
    for entry in full:
        store_on_disk(books, entry)
    for entry in full[:4]:
        entry.moves += 1
        books.lose_disk(entry.key, None)
        books.lose_host(entry, None)
    assert [entry.state for entry in full[:4]] == [BlockState.LOST] * 4
    assert reserve(books, [entry_of(100 + number) for number in range(4)]) == 0
    assert all(entry.is_readable for entry in full[4:])
    for entry in full[:4]:
        books.end_move(entry)
    assert reserve(books, [entry_of(200 + number) for number in range(4)]) == 4
    books.check_integrity()


def test_a_lost_block_that_the_disk_still_has_is_found_there(books, full):
    store_on_disk(books, full[2])
    books.pin(full[2])
    books.lose_host(full[2], MissReason.CHECKSUM)
    successor = books.index.get(full[2].key)
    assert successor is not full[2]
    assert (successor.state, successor.is_on_disk) == (BlockState.FREE, True)
    assert full[2].extent is not None  # its reader is still there
    books.unpin(full[2])
    assert full[2].extent is None
    books.check_integrity()


def test_an_abandoned_block_leaves_no_trace(books):
    entry = entry_of(1)
    reserve(books, [entry])
    books.abandon(entry, None)
    assert (books.index.get(entry.key), books.host.used_bytes, books.host_policy.used) == (None, 0, 0)
    assert books.index.miss_reason(entry.key) is MissReason.NEVER_SEEN


def test_a_block_evicted_from_everywhere_is_remembered_as_such(books, full):
    books._is_disk_writable = lambda: False
    assert reserve(books, [entry_of(100)]) == 1
    assert books.index.get(full[0].key) is None
    assert books.index.miss_reason(full[0].key) is MissReason.EVICTED
