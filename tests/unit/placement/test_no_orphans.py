"""No orphans: a block leaves only together with what follows it, and nothing comes in behind a block that is gone."""

import itertools

import pytest

from tests.unit.placement.conftest import BLOCK_BYTES, ROOM_BLOCKS, use_host_policy
from tests.unit.placement.test_residency import chain_of, commit, entry_of, key_of, reserve, store_on_disk
from tierkv.model.lifecycle import BlockEvent, BlockState
from tierkv.model.outcomes import MissReason
from tierkv.placement.disk_room import DiskRoom
from tierkv.policies import ArcPolicy
from tierkv.policies.base import Cause


def save(books, *numbers, parent=None):
    entries = chain_of(*numbers, parent=parent)
    assert reserve(books, entries) == len(entries)
    commit(books, entries)
    return entries


def known(books):
    return sorted(int.from_bytes(entry.key, "big") for entry in books.index)


def test_a_chain_is_lost_from_its_tail(books):
    chain = save(books, *range(1, 7))
    for entry in chain:
        store_on_disk(books, entry)
    save(books, 11, 12, 13)
    assert [entry.state for entry in chain] == [BlockState.READY] * 5 + [BlockState.FREE]
    books.check_integrity()


def test_a_whole_suffix_goes_down_heads_first(books):
    save(books, *range(1, 9))
    reserve(books, chain_of(11, 12, 13))  # refused for now: bytes on their way down are not free yet
    assert [int.from_bytes(entry.key, "big") for entry in books.to_demote] == [6, 7, 8]


def test_what_can_go_nowhere_takes_what_follows_it_on_disk_along(books):
    """Written back lazily, a tail is on disk before its head is; a head that is discarded then leaves it unusable."""
    head, middle, tail = save(books, 1, 2, 3)
    store_on_disk(books, tail)
    books._is_disk_writable = lambda: False
    assert books.host_policy.make_room(ROOM_BLOCKS * BLOCK_BYTES, lambda _: False) == ()
    books._evict(books.host_policy.make_room(3 * BLOCK_BYTES, lambda _: False))
    assert known(books) == []
    assert books.to_unwrite == [tail.key]
    assert tail.key not in books.disk_policy
    assert {books.index.miss_reason(entry.key) for entry in (head, middle, tail)} == {MissReason.EVICTED}
    books.check_integrity()


def test_victims_of_different_fates_leave_in_their_order(books):
    """An unrelated block is discarded first; the chain's tail is on disk, its head is not, and the disk takes nothing."""
    save(books, 9)
    _, tail = save(books, 1, 2)
    store_on_disk(books, tail)
    books._is_disk_writable = lambda: False
    books._evict(books.host_policy.make_room(3 * BLOCK_BYTES, lambda _: False))
    assert known(books) == []
    assert books.to_unwrite == [tail.key]
    assert (books.counters["evictions_discard"], books.counters["evictions_drop"]) == (2, 1)
    assert books.host.used_bytes == 0
    books.check_integrity()


def test_victims_that_went_with_one_that_is_discarded_are_left_alone(books):
    """Another chain's tail is discarded first, and with it, by fate, the head of a chain whose tail the disk has."""
    head, tail = save(books, 1, 2)
    (other,) = save(books, 11)
    store_on_disk(books, tail)
    books._is_disk_writable = lambda: False
    victims = [other.key, tail.key, head.key]
    for key in victims:
        books.host_policy.on_remove(key)
    books._evict(victims)
    assert known(books) == []
    assert books.host.used_bytes == 0
    books.check_integrity()


def test_a_victim_that_left_with_an_earlier_one_is_not_let_go_twice(books):
    """Between the two stands a block on its way to disk, which the policy does not know: it cannot see that one follows the other."""
    head, middle, tail = save(books, 1, 2, 3)
    books.host_policy.on_remove(middle.key)
    middle.step(BlockEvent.EVICT)
    middle.moves += 1
    books._is_disk_writable = lambda: False
    books.host_policy.on_access([tail.key])
    victims = books.host_policy.make_room(2 * BLOCK_BYTES, lambda _: False)
    assert victims == (head.key, tail.key)
    books._evict(victims)
    assert known(books) == []
    books.end_move(middle)
    assert books.host.used_bytes == 0


@pytest.mark.parametrize("tier", ["arena", "disk", "leaving", "leased"])
def test_a_lost_block_takes_along_what_follows_it_wherever_that_is(books, tier):
    head, *below = save(books, 1, 2, 3)
    if tier == "disk":
        for entry in below:
            store_on_disk(books, entry)
        books._evict([entry.key for entry in reversed(below)])
        for entry in reversed(below):
            books.host_policy.on_remove(entry.key)
    if tier == "leaving":
        for entry in reversed(below):
            books.host_policy.on_remove(entry.key)
        books._evict([entry.key for entry in reversed(below)])
    if tier == "leased":
        books.pin(below[1])
    books.drop(head, MissReason.CHECKSUM)
    assert known(books) == []
    assert books.index.miss_reason(below[1].key) is MissReason.CHECKSUM
    if tier == "leased":
        assert below[1].extent is not None  # its reader is still there
        books.unpin(below[1])
    for entry in books.to_demote:
        books.end_move(entry)
    assert books.host.used_bytes == 0
    books.check_integrity()


def test_a_chain_of_thousands_goes_without_recursion(books):
    """Entries on disk only: a recursive walk would end at Python's limit."""
    for number, parent in zip(range(1, 5001), (None, *range(1, 5000)), strict=True):
        entry = entry_of(number, parent)
        entry.is_on_disk = True
        books.index.add(entry)
    books.disk_policy.capacity = 5000 * BLOCK_BYTES
    books.disk_policy.admit([key_of(n) for n in range(1, 5001)], [BLOCK_BYTES] * 5000, lambda _: False, cause=Cause.LOAD)
    books.drop(books.index.get(key_of(1)), None)
    assert known(books) == []
    assert len(books.to_unwrite) == 5000


def test_the_disk_keeps_a_block_that_only_the_arena_follows(books, disk):
    (head,) = save(books, 1)
    store_on_disk(books, head)
    books.host_policy.on_remove(head.key)
    books._evict([head.key])
    (tail,) = save(books, 2, parent=1)
    room = DiskRoom(books, disk)
    assert room.is_pinned(head.key)
    books.pin(tail)
    assert books.disk_policy.make_room(disk.capacity_bytes, room.is_pinned) == ()
    books.unpin(tail)
    store_on_disk(books, tail)
    assert room.is_pinned(head.key)  # its copy in the arena still needs the head
    books._evict(books.host_policy.make_room(BLOCK_BYTES, lambda _: False))
    assert not room.is_pinned(head.key)
    books.check_integrity()


def test_making_room_for_a_tail_never_takes_its_head(books):
    chain = save(books, *range(1, 6))
    others = save(books, *range(11, 14))
    for entry in itertools.chain(chain, others):
        store_on_disk(books, entry)
    books.host_policy.on_access([entry.key for entry in others])  # the chain is the older one
    assert reserve(books, chain_of(6, 7, 8, parent=5)) == 3
    assert all(entry.state is BlockState.READY for entry in chain)
    assert all(entry.state is BlockState.FREE for entry in others)
    books.check_integrity()


class TestPassing:
    """What a request may not add to a full tier goes through the arena to the disk."""

    @pytest.fixture
    def books(self, books):
        # The policy leaves a quarter of the arena free.
        use_host_policy(books, ArcPolicy(6 * BLOCK_BYTES, books.index.chains))
        return books

    def test_beyond_its_share_a_block_leaves_as_soon_as_it_is_there(self, books):
        for entry in save(books, 1, 2, 3, 4, 5, 6):
            store_on_disk(books, entry)
        fresh = chain_of(11, 12, 13, 14)
        assert reserve(books, fresh) == 3  # one for the share of an eighth, two pass
        commit(books, fresh[:3])
        assert [entry.state for entry in fresh[:3]] == [BlockState.READY, BlockState.EVICTING, BlockState.EVICTING]
        assert fresh[1].key not in books.host_policy
        books.check_integrity()
        store_on_disk(books, fresh[1])
        books.finish_eviction(fresh[1])
        assert (fresh[1].state, fresh[1].extent) == (BlockState.FREE, None)
        books.finish_eviction(fresh[2])  # the disk did not take it
        assert books.index.get(fresh[2].key) is None
        books.check_integrity()

    def test_a_hit_keeps_it(self, books):
        for entry in save(books, 1, 2, 3, 4, 5, 6):
            store_on_disk(books, entry)
        fresh = chain_of(11, 12)
        assert reserve(books, fresh) == 2
        commit(books, fresh)
        for entry in fresh:
            books.pin(entry)
        assert books.bring_in([fresh[1]], [fresh[0]], Cause.LOAD) == 1
        assert fresh[1].state is BlockState.LEASED
        books.check_integrity()

    def test_without_a_disk_it_is_refused(self, books):
        for entry in save(books, 1, 2, 3, 4, 5, 6):
            store_on_disk(books, entry)
        books._is_disk_writable = lambda: False
        assert reserve(books, chain_of(11, 12, 13)) == 1

    def test_one_that_is_given_up_leaves_no_trace(self, books):
        for entry in save(books, 1, 2, 3, 4, 5, 6):
            store_on_disk(books, entry)
        fresh = chain_of(11, 12)
        reserve(books, fresh)
        for entry in reversed(fresh):
            books.abandon(entry, None)
        assert known(books) == [1, 2, 3, 4, 5, 6]
        books.check_integrity()
