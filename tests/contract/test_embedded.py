"""What only a store in this process can be made to show: a medium that hangs, and leases that expire while they are read."""

import threading

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.copying import copy_block
from tierkv.embedded import EmbeddedStore
from tierkv.errors import UnavailableError
from tierkv.model.keys import chain_keys
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, MissReason
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings
from tierkv.testing.clock import ManualClock
from tierkv.testing.deadline import wait_until
from tierkv.testing.store_rig import BLOCK_TOKENS, LAYOUT, content_of, sources_of, targets_for
from tierkv.tiers.base import GetOutcome
from tierkv.tiers.disk.io import FileIO

NAMESPACE = Identity(weights="embedded").fingerprint(LAYOUT)
KEYS = chain_keys(NAMESPACE, range(6 * BLOCK_TOKENS), block_tokens=BLOCK_TOKENS)


class HangingFile:
    def __init__(self, inner, may_go_on):
        self._inner = inner
        self._may_go_on = may_go_on

    def write(self, buffers, offset):
        self._may_go_on.wait()
        self._inner.write(buffers, offset)

    def read(self, buffers, offset):
        self._may_go_on.wait()
        return self._inner.read(buffers, offset)

    def __getattr__(self, name):
        return getattr(self._inner, name)


class HangingIO:
    """`FileIO` whose reads and writes wait while `may_go_on` is clear."""

    def __init__(self):
        self._inner = FileIO(direct=False)
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def open(self, path):
        return HangingFile(self._inner.open(path), self.may_go_on)

    def __getattr__(self, name):
        return getattr(self._inner, name)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def medium():
    return HangingIO()


def open_in(folder, clock, medium):
    settings = StoreSettings(
        data_folder=folder / "data",
        host=HostSettings(memory_bytes=MIB, folder=folder / "arena", prefault=False),
        disk=DiskSettings(capacity_bytes=8 * MIB, segment_bytes=MIB, interval_s=0.0),
    )
    store = EmbeddedStore(open_tiered_store(settings, clock, io=medium), clock=clock, discard_arena=True)
    store.register(Identity(weights="embedded"), LAYOUT)
    return store


@pytest.fixture
def store(tmp_path, clock, medium):
    opened = open_in(tmp_path, clock, medium)
    yield opened
    medium.may_go_on.set()
    opened.tiered.check_integrity()
    opened.close()


def put_strictly(store):
    store.put(NAMESPACE, KEYS, sources_of(KEYS), durability=Durability.STRICT, timeout_s=0.05)


def put_and_flush(store):
    store.put(NAMESPACE, KEYS, sources_of(KEYS))
    store.flush(timeout_s=0.05)


@pytest.mark.parametrize("wait_for_the_disk", [put_strictly, put_and_flush])
def test_a_medium_that_hangs_costs_the_deadline_and_loses_nothing(store, medium, wait_for_the_disk):
    medium.may_go_on.clear()
    with pytest.raises(UnavailableError, match="in time"):
        wait_for_the_disk(store)
    targets = targets_for(KEYS)
    assert store.get(NAMESPACE, KEYS, targets) == len(KEYS)
    assert [bytes(target) for target in targets] == [content_of(key) for key in KEYS]
    medium.may_go_on.set()
    store.flush()
    assert store.flush() == 0


def test_blocks_that_do_not_come_in_time_are_a_shorter_lease(tmp_path, clock, medium):
    first = open_in(tmp_path, clock, medium)
    first.put(NAMESPACE, KEYS, sources_of(KEYS))
    first.close()  # gives back the RAM: the next store has the blocks on disk alone
    store = open_in(tmp_path, clock, medium)
    medium.may_go_on.clear()
    lease = store.acquire(NAMESPACE, KEYS, timeout_s=0.05)
    assert (lease.num_blocks, lease.blocks(), lease.num_blocks, lease.miss) == (len(KEYS), (), 0, MissReason.TIMEOUT)
    store.release(lease)
    medium.may_go_on.set()
    targets = targets_for(KEYS)
    assert store.get(NAMESPACE, KEYS, targets) == len(KEYS)
    assert [bytes(target) for target in targets] == [content_of(key) for key in KEYS]
    store.tiered.check_integrity()
    store.close()


def test_a_get_whose_lease_expires_under_it_counts_misses_and_fills_nothing(store, clock, monkeypatch):
    store.put(NAMESPACE, KEYS, sources_of(KEYS))

    def copy_slowly(target, source):
        copy_block(target, source)
        clock.advance(60)

    monkeypatch.setattr("tierkv.embedded.store.copy_block", copy_slowly)
    before = store.stats().misses.get(MissReason.TIMEOUT, 0)
    assert store.get(NAMESPACE, KEYS, targets_for(KEYS)) == 0
    assert store.stats().misses.get(MissReason.TIMEOUT, 0) == before + len(KEYS)
    wait_until(lambda: store.stats().leases == 0, timeout_s=5, what="the lease to be released")


def test_a_deletion_is_acknowledged_when_the_arena_index_knows_nothing_of_it(store):
    store.put(NAMESPACE, KEYS, sources_of(KEYS), durability=Durability.VOLATILE)
    wait_until(lambda: indexed_in_arena(store) == set(KEYS), timeout_s=5, what="the blocks to be sealed")
    assert store.delete(NAMESPACE, KEYS[2:]) == 4
    assert indexed_in_arena(store) == set(KEYS[:2])
    assert store.clear(NAMESPACE) == 2
    assert indexed_in_arena(store) == set()


def test_what_neither_arena_nor_disk_can_give_back_is_forgotten_on_disk_too(store, monkeypatch):
    """As after a restart: bytes in the arena are looked at before they are believed."""
    store.put(NAMESPACE, KEYS[:2], sources_of(KEYS[:2]))
    assert store.flush() == 2
    entry, disk = store.tiered._books.index.get(KEYS[0]), store.tiered._books.disk
    store.tiered.view(entry.placed_at())[:] = bytes(entry.placed_at().length)
    entry.is_verified = False
    with monkeypatch.context() as patch:
        patch.setattr(store.tiered._mover, "_read_disk", lambda entries: ([GetOutcome.MISS], [None]))
        with_nothing = store.acquire(NAMESPACE, KEYS[:2])
        assert with_nothing.blocks() == ()
        store.release(with_nothing)
    wait_until(lambda: len(disk) == 0, timeout_s=5, what="the disk to forget the block and what follows it")
    assert store.stats().counters["disk_read_misses"] == 1


def indexed_in_arena(store):
    return {record.key for record in store.tiered._books.host.records()}


def test_a_strict_commit_takes_what_it_follows_to_disk(store):
    """A restart finds a block only behind those before it, whatever those were promised."""
    store.put(NAMESPACE, KEYS[:3], sources_of(KEYS[:3]), durability=Durability.VOLATILE)
    reservation = store.reserve(NAMESPACE, KEYS[3:], parent=KEYS[2])
    for grant in reservation.grants:
        copy_block(grant.buffer, memoryview(content_of(grant.key)))
    store.commit(reservation, KEYS[3:4], durability=Durability.VOLATILE)
    store.commit(reservation, KEYS[5:], durability=Durability.STRICT)
    on_disk = [key for key in KEYS if store.tiered._books.disk.record(key) is not None]
    assert on_disk == [*KEYS[:4], KEYS[5]]  # KEYS[4] is still being written
    assert store.commit(reservation, KEYS[4:5], durability=Durability.STRICT) == 1
    assert store.flush() == 0


def test_a_strict_namespace_without_a_disk_is_refused(tmp_path, clock):
    settings = StoreSettings(
        data_folder=tmp_path / "data",
        host=HostSettings(memory_bytes=MIB, folder=tmp_path / "arena", prefault=False),
        disk=DiskSettings(capacity_bytes=0),
    )
    with EmbeddedStore(open_tiered_store(settings, clock), clock=clock, discard_arena=True) as store:
        with pytest.raises(ValueError, match="needs a disk tier"):
            store.register(Identity(weights="embedded"), LAYOUT, durability=Durability.STRICT)
        store.register(Identity(weights="embedded"), LAYOUT)
        reservation = store.reserve(NAMESPACE, KEYS[:1])
        with pytest.raises(ValueError, match="needs a disk tier"):
            store.commit(reservation, durability=Durability.STRICT)
        assert store.lookup(NAMESPACE, KEYS).num_blocks == 0
        assert store.abort(reservation) == 1
        assert store.flush() == 0
