"""Pages of a device in a whole store: what sinks, what comes back, what is promised, and what is told."""

import threading
from collections import Counter

import pytest

from tierkv import assemble
from tierkv.assemble import open_store, open_tiered_store
from tierkv.errors import CapacityError, ClosedError, ConflictError, InvalidRequestError, UnavailableError
from tierkv.index.trail import What
from tierkv.model.hints import Hints
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, MissReason, TierName
from tierkv.pages import PageOutcome, PageRun
from tierkv.placement import page_mover
from tierkv.settings import MIB, DeviceSettings, DiskSettings, HostSettings, StoreSettings
from tierkv.testing.clock import ManualClock
from tierkv.testing.deadline import wait_until
from tierkv.tiers.base import GetOutcome
from tierkv.tiers.device import SharedMemory

BLOCK_BYTES = 128 * 1024
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
POOL_PAGES = 16
DEVICE, HOST, DISK = TierName.DEVICE, TierName.HOST, TierName.DISK


def content_of(key):
    return key * (BLOCK_BYTES // len(key))


class Rig:
    """A store with a pool of 16 pages and one session on it. host_blocks — at least 8."""

    def __init__(
        self,
        folder,
        *,
        host_blocks=32,
        has_disk=True,
        disk_bytes=8 * MIB,
        durability=Durability.INTERVAL,
        headroom_ratio=0.0,
        devices=("cpu",),
    ):
        self.settings = StoreSettings(
            data_folder=folder / "data",
            host=HostSettings(host_blocks * BLOCK_BYTES, folder=folder / "arena", prefault=False, headroom_ratio=headroom_ratio),
            disk=DiskSettings(disk_bytes if has_disk else 0, segment_bytes=MIB, direct_io=False, interval_s=0.0),
            devices=tuple(DeviceSettings(device, POOL_PAGES * BLOCK_BYTES) for device in devices),
            durability=durability,
        )
        self.open()

    def open(self):
        self.clock = ManualClock()
        self.store = open_tiered_store(self.settings, self.clock)
        self.namespace_id = self.store.register(Identity(weights="device"), LAYOUT).namespace_id
        self.session = self.store.open_session("engine")
        self.store.open_pool(self.session, self.namespace_id, "cpu")
        self.pool = self.store._books.pools[0]

    def chain(self, blocks, seed=0):
        return chain_keys(self.namespace_id, range(seed * 1000, seed * 1000 + 4 * blocks), block_tokens=4)

    def page(self, number):
        return self.pool.memory.view(number * BLOCK_BYTES, BLOCK_BYTES)

    def commit(self, keys, *, is_released=True, request=""):
        pages = self.store.reserve_pages(self.session, len(keys))
        assert len(pages) == len(keys)
        for key, page in zip(keys, pages, strict=True):
            self.page(page)[:] = content_of(key)
        result = self.store.commit_pages(self.session, self.namespace_id, [PageRun(keys, pages)], Hints(request_id=request))
        assert set(result.outcomes[0]) == {PageOutcome.COMMITTED}
        if is_released:
            self.store.release_pages(self.session, pages)
        return result

    def acquire(self, keys):
        """Tiers, blocks that came, and why no more; checked and released."""
        acquired = self.store.acquire_pages(self.session, self.namespace_id, keys)
        num_blocks, miss = len(acquired.pages), acquired.miss
        for run in acquired.pending:
            result = run.done.result(10)
            if result.miss is not None:
                num_blocks, miss = min(num_blocks, run.start_idx + result.num_blocks), result.miss
        for key, page in zip(keys[:num_blocks], acquired.pages, strict=False):
            assert bytes(self.page(page)) == content_of(key)
        self.store.release_pages(self.session, acquired.pages)
        return acquired.tiers, num_blocks, miss

    def get(self, keys):
        """A reader of the host tier: tiers, blocks that came, and why no more."""
        acquired = self.store.acquire(self.session, self.namespace_id, keys)
        num_blocks, miss = len(acquired.extents), acquired.miss
        for run in acquired.pending:
            result = run.done.result(10)
            if result.miss is not None:
                num_blocks, miss = min(num_blocks, run.start_idx + result.num_blocks), result.miss
        for key, extent in zip(keys[:num_blocks], acquired.extents, strict=False):
            assert bytes(self.store.view(extent)[:BLOCK_BYTES]) == content_of(key)
        self.store.release(self.session, [acquired.lease_id])
        return acquired.tiers, num_blocks, miss

    def fill_host(self):
        """Leases on blocks that fill the host tier, each of a sequence of its own; the leases."""
        leases = []
        for seed in range(self.store._books.host_policy.capacity // BLOCK_BYTES):
            keys = self.chain(1, 100 + seed)
            result = self.store.reserve(self.session, self.namespace_id, keys)
            for extent in filter(None, result.extents):
                self.store.view(extent)[:BLOCK_BYTES] = content_of(keys[0])
            self.store.commit(self.session, result.reservation_id)
            self.settle()
            leases.append(self.store.acquire(self.session, self.namespace_id, keys).lease_id)
        return leases

    def settle(self):
        """Everything that was under way is over."""
        self.store.flush().result(10)
        self.rest()

    def rest(self):
        """Every job is over, and nobody asked for more."""
        wait_until(lambda: not any(entry.moves for entry in self.store._books.index), timeout_s=10, what="the moves to end")
        self.store.check_integrity()

    def empty_device(self):
        """Lets everything leave the device that can; pages that came free."""
        pages = self.store.reserve_pages(self.session, POOL_PAGES)
        self.store.release_pages(self.session, pages)
        return len(pages)

    def counters(self):
        return Counter(self.store.stats().counters)

    def close(self, *, discard_arena=True):
        self.store.check_integrity()
        self.store.end_pages(self.session)
        self.store.close(discard_arena=discard_arena)


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**kwargs):
        made.append(Rig(tmp_path, **kwargs))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


@pytest.fixture
def gate(monkeypatch):
    """Holds up every copy from a page while it is closed."""

    class Gate:
        def __init__(self):
            self.is_open = threading.Event()
            self.is_reached = threading.Event()

        def put_before(self, memory):
            read = memory.read

            def waiting(offset, target):
                self.is_reached.set()
                self.is_open.wait(10)
                read(offset, target)

            monkeypatch.setattr(memory, "read", waiting)

    made = Gate()
    yield made
    made.is_open.set()


def test_what_is_committed_is_copied_to_the_host_and_the_disk(make):
    rig = make()
    keys = rig.chain(6)
    rig.commit(keys)
    rig.settle()
    assert [(tier.name, tier.blocks) for tier in rig.store.stats().tiers] == [(DEVICE, 6), (HOST, 6), (DISK, 6)]
    assert rig.counters()["pages_staged"] == 6
    assert rig.get(keys) == ((HOST,) * 6, 6, None)


def test_a_page_whose_block_has_a_copy_is_free_at_once_and_comes_back(make):
    rig = make()
    keys = rig.chain(6)
    rig.commit(keys)
    rig.settle()
    assert rig.empty_device() == POOL_PAGES
    assert rig.counters()["device_evictions"] == 6
    assert rig.counters()["pages_staged"] == 6
    assert rig.acquire(keys) == ((HOST,) * 6, 6, None)
    assert rig.counters()["pages_copied"] == 6
    assert rig.acquire(keys) == ((DEVICE,) * 6, 6, None)
    assert rig.counters()["pages_copied"] == 6


def test_what_only_the_disk_has_comes_through_the_host(make):
    rig = make(host_blocks=8)
    keys = on_disk_only(rig, 6)
    assert rig.acquire(keys) == ((DISK,) * 6, 6, None)


def test_a_whole_pool_is_committed_by_one_request(make):
    rig = make()
    keys = rig.chain(POOL_PAGES)
    rig.commit(keys, request="r")
    assert rig.pool.policy.used == rig.pool.policy.capacity
    assert rig.acquire(keys) == ((DEVICE,) * POOL_PAGES, POOL_PAGES, None)


def test_what_is_being_copied_to_the_host_does_not_leave(make, gate):
    rig = make()
    gate.put_before(rig.pool.memory)
    rig.commit(rig.chain(6))
    assert gate.is_reached.wait(10)
    assert rig.empty_device() == POOL_PAGES - 6
    gate.is_open.set()
    rig.settle()
    assert rig.empty_device() == POOL_PAGES


@pytest.mark.parametrize(
    ("headroom_ratio", "durability", "num_in_host", "num_on_disk"),
    [
        (0.5, Durability.INTERVAL, 1, 4),  # an eighth of 8 blocks; the others pass through the other half of the arena
        (0.0, Durability.INTERVAL, 4, 4),  # no extent is free to pass through, and a promise comes before a share
        (0.0, Durability.VOLATILE, 1, 0),
    ],
)
def test_the_share_of_a_request_holds_for_the_host(make, headroom_ratio, durability, num_in_host, num_on_disk):
    rig = make(host_blocks=8 if not headroom_ratio else 16, headroom_ratio=headroom_ratio, durability=durability)
    rig.store.release(rig.session, rig.fill_host())
    keys = rig.chain(4)
    rig.commit(keys, request="r")
    wait_until(lambda: rig.counters()["pages_staged"], timeout_s=10, what="the staging")
    rig.rest()
    assert [key in rig.store._books.host_policy for key in keys] == [idx < num_in_host for idx in range(4)]
    assert sum(key in rig.store._books.disk for key in keys) == num_on_disk
    assert rig.acquire(keys) == ((DEVICE,) * 4, 4, None)


def test_what_the_host_does_not_take_is_tried_again(make):
    rig = make(host_blocks=8, has_disk=False)
    leases = rig.fill_host()
    keys = rig.chain(4)
    rig.commit(keys)
    wait_until(lambda: rig.counters()["stage_refused"] == 4, timeout_s=10, what="the host to refuse")
    rig.store.expire()
    assert rig.counters()["stage_refused"] == 4  # nothing could be taken: nothing is tried
    assert rig.get(keys)[1:] == (0, MissReason.CAPACITY)
    rig.store.release(rig.session, leases)
    rig.store.delete(rig.namespace_id, [rig.chain(1, 100 + idx)[0] for idx in range(4)]).result(10)
    rig.store.expire()
    wait_until(lambda: rig.counters()["pages_staged"] == 4, timeout_s=10, what="the copies")
    assert rig.get(keys) == ((HOST,) * 4, 4, None)


def test_no_more_is_tried_again_than_has_room(make):
    rig = make(host_blocks=8, has_disk=False)
    keys, leases = refused(rig)
    rig.store.release(rig.session, leases[:1])
    rig.store.delete(rig.namespace_id, rig.chain(1, 100)).result(10)
    rig.store.expire()
    wait_until(lambda: rig.counters()["pages_staged"] == 1, timeout_s=10, what="the copy")
    rig.rest()
    assert rig.counters()["stage_refused"] == 4
    assert rig.get(keys)[1:] == (1, MissReason.CAPACITY)


def test_what_leaves_the_host_while_the_disk_takes_nothing_is_written_later(make):
    rig = make(host_blocks=8)
    writer = rig.store._mover.writer
    writer._failed_at_s = rig.clock.monotonic_s()  # as after a refusal
    keys = rig.chain(4)
    rig.commit(keys)
    rig.rest()
    others = [rig.store.reserve(rig.session, rig.namespace_id, rig.chain(1, 100 + idx)) for idx in range(8)]
    assert rig.store.lookup(rig.namespace_id, keys).tiers == (DEVICE,) * 4
    for reservation in others:
        rig.store.abort(rig.session, reservation.reservation_id)
    rig.clock.advance(rig.settings.disk.retry_s)
    rig.store.expire()
    wait_until(
        lambda: all(key in rig.store._books.disk for key in keys), timeout_s=10, what="the disk to have what it was promised"
    )


def refused(rig, blocks=4):
    """Blocks that only the device has; the leases that fill the host tier."""
    leases = rig.fill_host()
    keys = rig.chain(blocks)
    rig.commit(keys)
    wait_until(lambda: rig.counters()["stage_refused"] == blocks, timeout_s=10, what="the host to refuse")
    return keys, leases


def test_a_last_copy_is_copied_to_the_host_before_its_page_is_free(make, gate):
    rig = make(host_blocks=8, has_disk=False)
    keys, leases = refused(rig)
    rig.store.release(rig.session, leases)
    gate.put_before(rig.pool.memory)
    assert rig.empty_device() == POOL_PAGES - 4
    assert rig.store.lookup(rig.namespace_id, keys).num_blocks == 4
    gate.is_open.set()
    wait_until(lambda: rig.empty_device() == POOL_PAGES, timeout_s=10, what="the pages")
    assert rig.store.lookup(rig.namespace_id, keys).tiers == (HOST,) * 4
    assert rig.acquire(keys) == ((HOST,) * 4, 4, None)
    assert rig.counters()["device_discards"] == 0


def test_a_hit_keeps_what_was_leaving(make, gate):
    rig = make(host_blocks=8, has_disk=False)
    keys, leases = refused(rig)
    rig.store.release(rig.session, leases)
    gate.put_before(rig.pool.memory)
    assert rig.empty_device() == POOL_PAGES - 4
    assert rig.acquire(keys) == ((DEVICE,) * 4, 4, None)
    gate.is_open.set()
    wait_until(lambda: rig.counters()["pages_staged"] == 4, timeout_s=10, what="the copies")
    rig.settle()
    assert rig.acquire(keys) == ((DEVICE,) * 4, 4, None)
    assert rig.get(keys) == ((HOST,) * 4, 4, None)


def test_a_last_copy_that_the_host_does_not_take_is_gone_counted_and_told(make):
    rig = make(host_blocks=8, has_disk=False)
    keys, _ = refused(rig)
    assert rig.empty_device() == POOL_PAGES
    assert rig.counters()["device_discards"] == 4
    assert rig.acquire(keys) == ((), 0, MissReason.EVICTED)
    explained = rig.store.explain(keys[0])
    assert (explained.found, explained.miss) == (False, MissReason.EVICTED)
    assert "evicted from the device tier" in explained.reason
    assert "the host tier takes nothing now" in explained.reason


def test_a_reader_of_the_host_gets_what_only_a_page_has(make):
    rig = make(host_blocks=8, has_disk=False)
    keys, leases = refused(rig)
    assert rig.get(keys)[1:] == (0, MissReason.CAPACITY)
    rig.store.release(rig.session, leases)
    assert rig.store.lookup(rig.namespace_id, keys).tiers == (DEVICE,) * 4
    assert rig.get(keys) == ((DEVICE,) * 4, 4, None)
    assert rig.get(keys) == ((HOST,) * 4, 4, None)
    assert (rig.counters()["pages_staged"], rig.counters()["promoted_bytes"]) == (4, 0)  # nothing came from the disk


def test_a_page_that_was_written_after_its_commit_is_not_believed(make):
    rig = make(host_blocks=8, has_disk=False)
    keys = rig.chain(4)
    rig.commit(keys)
    wait_until(lambda: rig.counters()["pages_staged"] == 4, timeout_s=10, what="the copies")
    rig.settle()
    rig.store.release(rig.session, rig.fill_host())  # the host's copies go: there is no disk
    assert rig.store.lookup(rig.namespace_id, keys).tiers == (DEVICE,) * 4
    rig.page(rig.pool.page_of(keys[2]).number)[:1] = b"!"
    assert rig.get(keys)[1:] == (2, MissReason.CHECKSUM)
    assert rig.store.lookup(rig.namespace_id, keys).num_blocks == 2


def on_disk_only(rig, blocks):
    """Blocks that neither the device nor the host has."""
    keys = rig.chain(blocks)
    rig.commit(keys)
    rig.settle()
    rig.empty_device()
    rig.store.release(rig.session, rig.fill_host())
    assert rig.store.lookup(rig.namespace_id, keys).tiers == (DISK,) * blocks
    return keys


def test_what_the_host_and_the_disk_let_go_stays_on_the_device(make):
    rig = make(host_blocks=8, disk_bytes=2 * MIB)
    keys = rig.chain(4)
    rig.commit(keys)
    rig.settle()
    for seed in range(40):  # each a sequence of its own: they push the others out of the host, then out of the disk
        (key,) = rig.chain(1, 100 + seed)
        result = rig.store.reserve(rig.session, rig.namespace_id, [key])
        for extent in filter(None, result.extents):
            rig.store.view(extent)[:BLOCK_BYTES] = content_of(key)
        rig.store.commit(rig.session, result.reservation_id)
        rig.rest()  # a flush would bring to disk again what it let go
    assert not any(key in rig.store._books.disk or key in rig.store._books.host_policy for key in keys)
    assert rig.store.lookup(rig.namespace_id, keys).tiers == (DEVICE,) * 4
    assert rig.acquire(keys) == ((DEVICE,) * 4, 4, None)
    rig.store.flush().result(10)
    assert all(key in rig.store._books.disk for key in keys)


def test_as_many_pages_leave_as_can_where_not_all_can(make):
    rig = make()
    busy, idle = rig.chain(4, 1), rig.chain(3, 2)
    rig.commit(busy)
    rig.commit(idle)
    rig.settle()
    tail = rig.store.acquire_pages(rig.session, rig.namespace_id, busy[3:]).pages  # keeps what it follows from leaving too
    assert rig.pool.num_idle == 6
    assert rig.empty_device() == POOL_PAGES - 4
    assert rig.pool.num_named == 4
    rig.store.release_pages(rig.session, tail)
    assert rig.empty_device() == POOL_PAGES


def test_where_a_head_finds_no_page_its_tail_is_not_held_either(make):
    rig = make()
    keys = rig.chain(3)
    result = rig.store.reserve(rig.session, rig.namespace_id, keys[:1])
    for extent in filter(None, result.extents):
        rig.store.view(extent)[:BLOCK_BYTES] = content_of(keys[0])
    rig.store.commit(rig.session, result.reservation_id)
    pages = rig.store.reserve_pages(rig.session, POOL_PAGES)
    for key, page in zip(keys[1:], pages, strict=False):
        rig.page(page)[:] = content_of(key)
    outcomes = rig.store.commit_pages(rig.session, rig.namespace_id, [PageRun(keys[1:], pages[:2], keys[0])]).outcomes
    assert outcomes == [(PageOutcome.COMMITTED,) * 2]
    acquired = rig.store.acquire_pages(rig.session, rig.namespace_id, keys)
    assert (acquired.pages, acquired.miss) == ((), MissReason.CAPACITY)
    assert rig.store.page_holds(rig.session) == dict.fromkeys(pages, 1)
    rig.store.release_pages(rig.session, pages[2:])
    assert rig.acquire(keys) == ((HOST, DEVICE, DEVICE), 3, None)


def test_a_copy_that_fails_ends_the_lease_there_and_its_page_stays_with_its_holder(make, monkeypatch):
    rig = make()
    keys = rig.chain(4)
    rig.commit(keys)
    rig.settle()
    rig.empty_device()
    write = rig.pool.memory.write

    def failing(offset, source):
        is_bad = bytes(source[:32]) == keys[2]
        if not is_bad:
            write(offset, source)
        del source  # the log keeps the frame
        if is_bad:
            raise OSError("the device is away")

    monkeypatch.setattr(rig.pool.memory, "write", failing)
    acquired = rig.store.acquire_pages(rig.session, rig.namespace_id, keys)
    results = [run.done.result(10) for run in acquired.pending]
    assert [(result.num_blocks, result.miss) for result in results] == [(2, MissReason.CHECKSUM)]
    rig.store.check_integrity()
    assert rig.store.page_holds(rig.session) == dict.fromkeys(acquired.pages, 1)
    assert rig.pool.page_of(keys[2]) is None
    assert rig.get(keys) == ((HOST,) * 4, 4, None)
    others = rig.store.reserve_pages(rig.session, POOL_PAGES)
    assert not set(others) & set(acquired.pages)
    rig.store.release_pages(rig.session, [*acquired.pages, *others])
    monkeypatch.undo()
    assert rig.acquire(keys)[1] == 4


def test_a_fill_that_was_given_up_and_runs_all_the_same_changes_nothing(make, monkeypatch):
    rig = make()
    keys = rig.chain(4)
    rig.commit(keys)
    rig.settle()
    rig.empty_device()
    jobs = []

    def queue_and_fail(job):
        jobs.append(job)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rig.store._mover, "run_soon", queue_and_fail)
    assert rig.acquire(keys) == ((), 0, MissReason.CAPACITY)
    assert jobs
    for job in jobs:
        job()
    rig.rest()
    monkeypatch.undo()
    assert rig.acquire(keys) == ((HOST,) * 4, 4, None)


def test_a_block_whose_frame_is_damaged_ends_the_lease_there(make, monkeypatch):
    rig = make(host_blocks=8)
    keys = on_disk_only(rig, 4)
    disk = rig.store._books.disk
    get = disk.get

    def damaged(wanted, targets):
        outcomes = get(wanted, targets)
        return [GetOutcome.DAMAGED if key == keys[2] else outcome for key, outcome in zip(wanted, outcomes, strict=True)]

    fill_here, names = rig.store._page_mover.fill_here, []

    def looking(parts, future):  # the blocks are gone, and their pages not filled yet
        names.extend(page.key for _, page, _ in parts)
        fill_here(parts, future)

    monkeypatch.setattr(disk, "get", damaged)
    monkeypatch.setattr(rig.store._page_mover, "fill_here", looking)
    assert rig.acquire(keys)[1:] == (2, MissReason.CHECKSUM)
    assert names == [*keys[:2], None, None]
    rig.settle()
    assert rig.pool.num_free == POOL_PAGES - 2
    assert rig.acquire(keys) == ((DEVICE,) * 2, 2, MissReason.CHECKSUM)
    assert rig.store.stats().misses[MissReason.CHECKSUM] == 3


def test_two_who_want_one_block_wait_for_one_copy(make, monkeypatch):
    rig = make()
    keys = rig.chain(4)
    rig.commit(keys)
    rig.settle()
    rig.empty_device()
    write, may_go_on = rig.pool.memory.write, threading.Event()

    def waiting(offset, source):
        may_go_on.wait(10)
        write(offset, source)

    monkeypatch.setattr(rig.pool.memory, "write", waiting)
    other = rig.store.open_session("another engine")
    rig.store.open_pool(other, rig.namespace_id, "cpu")
    first = rig.store.acquire_pages(rig.session, rig.namespace_id, keys)
    second = rig.store.acquire_pages(other, rig.namespace_id, keys)
    assert first.pages == second.pages
    assert [run.done.done() for run in (*first.pending, *second.pending)] == [False, False]
    rig.store.end_pages(rig.session)  # whoever asked first is gone: the copy goes on
    may_go_on.set()
    assert second.pending[0].done.result(10).miss is None
    assert [bytes(rig.page(page)) for page in second.pages] == [content_of(key) for key in keys]
    assert rig.counters()["pages_copied"] == 4
    rig.store.end_pages(other)


def test_interval_commits_are_found_after_a_restart(make):
    rig = make()
    keys = rig.chain(6)
    rig.commit(keys)
    rig.store.flush().result(10)
    rig.close()
    rig.open()
    assert rig.acquire(keys) == ((DISK,) * 6, 6, None)


def test_an_orderly_end_writes_what_only_pages_have(make, gate):
    rig = make()
    keys = rig.chain(6)
    gate.put_before(rig.pool.memory)
    rig.commit(keys)
    assert gate.is_reached.wait(10)
    gate.is_open.set()
    rig.close()
    rig.open()
    assert rig.acquire(keys) == ((DISK,) * 6, 6, None)


def test_the_host_keeps_over_a_restart_what_pages_had(make):
    rig = make(has_disk=False, durability=Durability.VOLATILE)
    keys = rig.chain(6)
    rig.commit(keys)
    wait_until(lambda: rig.counters()["pages_staged"] == 6, timeout_s=10, what="the copies")
    rig.settle()
    rig.close(discard_arena=False)
    rig.open()
    assert rig.acquire(keys) == ((HOST,) * 6, 6, None)


def test_an_orderly_end_keeps_in_the_host_what_was_not_copied_yet(make, monkeypatch):
    monkeypatch.setattr(page_mover, "_BATCH_BLOCKS", 2)
    rig = make(has_disk=False, durability=Durability.VOLATILE)
    rig.store._mover.on_staging = lambda: None  # the stager sleeps
    keys = rig.chain(6)
    rig.commit(keys)
    rig.close(discard_arena=False)
    rig.open()
    assert rig.acquire(keys) == ((HOST,) * 6, 6, None)


def test_volatile_commits_stay_off_the_disk(make):
    rig = make(durability=Durability.VOLATILE)
    keys = rig.chain(6)
    rig.commit(keys)
    wait_until(lambda: rig.counters()["pages_staged"] == 6, timeout_s=10, what="the copies")
    assert [(tier.name, tier.blocks) for tier in rig.store.stats().tiers] == [(DEVICE, 6), (HOST, 6), (DISK, 0)]


def test_a_strict_commit_waits_for_the_disk(make):
    rig = make(durability=Durability.STRICT)
    keys = rig.chain(6)
    result = rig.commit(keys)
    result.durable.result(10)
    assert all(key in rig.store._books.disk for key in keys)


def test_a_strict_commit_says_where_the_disk_cannot_be_reached(make):
    rig = make(host_blocks=8, durability=Durability.STRICT)
    leases = rig.fill_host()
    keys = rig.chain(4)
    with pytest.raises(CapacityError):
        rig.commit(keys).durable.result(10)
    assert rig.acquire(keys) == ((DEVICE,) * 4, 4, None)  # visible, not durable
    rig.store.release(rig.session, leases)
    rig.store.flush().result(10)
    assert all(key in rig.store._books.disk for key in keys)


def test_what_a_client_is_saving_may_be_committed_from_a_page_meanwhile(make):
    rig = make()
    keys = rig.chain(4)
    reservation = rig.store.reserve(rig.session, rig.namespace_id, keys)
    rig.commit(keys)
    assert rig.get(keys)[1] == 0  # the extents are the client's
    assert rig.acquire(keys) == ((DEVICE,) * 4, 4, None)
    rig.store.abort(rig.session, reservation.reservation_id)
    assert rig.acquire(keys) == ((DEVICE,) * 4, 4, None)
    rig.store.expire()
    rig.settle()
    assert rig.get(keys) == ((HOST,) * 4, 4, None)


def test_a_page_of_what_a_client_is_saving_goes_with_the_block_that_it_follows(make):
    rig = make()
    keys = rig.chain(2)
    reservation = rig.store.reserve(rig.session, rig.namespace_id, keys)
    rig.commit(keys)
    rig.store.commit(rig.session, reservation.reservation_id, keys[:1])
    rig.settle()
    rig.store.delete(rig.namespace_id, keys[:1]).result(10)
    assert rig.store.lookup(rig.namespace_id, keys[1:]).num_blocks == 0
    assert rig.pool.num_free == POOL_PAGES
    rig.store.commit(rig.session, reservation.reservation_id, keys[1:])
    assert rig.store.lookup(rig.namespace_id, keys[1:]).num_blocks == 0


def test_pages_rest_between_the_end_of_a_session_and_that_of_its_map(make):
    rig = make()
    keys = rig.chain(4)
    rig.commit(keys, is_released=False)
    rig.settle()
    rig.store.close_session(rig.session)
    with pytest.raises(ClosedError):
        rig.store.reserve_pages(rig.session, 1)
    other = rig.store.open_session("another engine")
    rig.store.open_pool(other, rig.namespace_id, "cpu")
    assert len(rig.store.reserve_pages(other, POOL_PAGES)) == POOL_PAGES - 4
    with pytest.raises(ConflictError):
        rig.store.delete(rig.namespace_id, keys)
    assert rig.store.has_pages(rig.session)
    rig.store.end_pages(rig.session)
    assert not rig.store.has_pages(rig.session)
    assert len(rig.store.reserve_pages(other, POOL_PAGES)) == 4
    rig.store.end_pages(other)


def test_another_page_size_waits_for_copies_and_for_who_has_the_pool_open(make, gate):
    rig = make()
    wide = rig.store.register(Identity(weights="wide"), Layout(shape=(2 * BLOCK_BYTES,), dtype="uint8", block_tokens=4))
    gate.put_before(rig.pool.memory)
    rig.commit(rig.chain(4))
    assert gate.is_reached.wait(10)
    other = rig.store.open_session("another engine")
    with pytest.raises(ConflictError, match=f"{2 * BLOCK_BYTES}.*{BLOCK_BYTES}"):
        rig.store.open_pool(other, wide.namespace_id, "cpu")
    with pytest.raises(UnavailableError, match="copied"):
        rig.store.open_pool(rig.session, wide.namespace_id, "cpu")
    gate.is_open.set()
    rig.settle()
    view = rig.store.open_pool(rig.session, wide.namespace_id, "cpu")
    assert (view.page_bytes, view.num_pages) == (2 * BLOCK_BYTES, POOL_PAGES // 2)
    assert rig.get(rig.chain(4)) == ((HOST,) * 4, 4, None)
    with pytest.raises(InvalidRequestError, match="do not fit"):
        rig.store.acquire_pages(rig.session, rig.namespace_id, rig.chain(1))


def test_a_request_is_one_access_to_each_block_on_each_tier(make):
    rig = make()
    keys = rig.chain(4)
    rig.commit(keys, request="r")
    rig.settle()
    policies = rig.store.policies()
    before = [policy.state().events for policy in policies]
    for _ in range(3):
        acquired = rig.store.acquire_pages(rig.session, rig.namespace_id, keys, Hints(request_id="r"))
        rig.store.release_pages(rig.session, acquired.pages)
    assert [policy.state().events for policy in policies] == before
    assert [policy.state().t2_weight for policy in policies] == [0, 0, 0]
    rig.acquire(keys)
    assert [policy.state().events for policy in policies] == [events + 1 for events in before]
    assert all(policy.state().t1_weight == 0 for policy in policies)


def test_a_closed_session_leaves_the_device_first(make):
    rig = make()
    closed, shared, older = rig.chain(4, 1), rig.chain(4, 2), rig.chain(4, 3)
    for keys in (older, shared, closed):
        rig.commit(keys)
    rig.settle()
    held = rig.store.acquire_pages(rig.session, rig.namespace_id, shared)
    other = rig.store.open_session("another engine")
    rig.store.open_pool(other, rig.namespace_id, "cpu")
    for keys in (closed, shared):  # what somebody else holds is not let go for it
        acquired = rig.store.acquire_pages(other, rig.namespace_id, keys, Hints(session_closed=True))
        rig.store.release_pages(other, acquired.pages)
    rig.store.release_pages(rig.session, held.pages)
    rig.store.reserve_pages(other, POOL_PAGES - 12 + 4)
    assert [rig.pool.page_of(key) is None for key in closed] == [True] * 4
    rig.store.end_pages(other)
    assert rig.acquire(shared)[0] == (DEVICE,) * 4
    assert rig.acquire(older)[0] == (DEVICE,) * 4


def test_what_is_told_of_a_block_in_a_page(make):
    rig = make()
    keys = rig.chain(2)
    rig.commit(keys, is_released=False, request="turn 1")
    rig.settle()
    explained = rig.store.explain(keys[1])
    assert (explained.found, explained.tier) == (True, HOST)
    assert "also on a device, also on disk; sessions hold its page 1 times" in explained.reason
    assert [event.what for event in rig.store.trail.events()][:2] == [What.SAVED, What.STAGED]
    rig.store.acquire_pages(rig.session, rig.namespace_id, keys, Hints(request_id="turn 2"))
    assert rig.store.explain("turn 2").reason == "found all of its 2 blocks (2 device)"
    stats = rig.store.stats()
    assert stats.hits == {"device": 2}
    assert [policy.tier for policy in stats.policies] == [DEVICE, HOST, DISK]


def test_a_block_of_one_device_comes_to_another_through_the_host(make, monkeypatch):
    class OfAnotherDevice(SharedMemory):
        def __init__(self, device, memory_bytes):
            super().__init__(memory_bytes)
            self.device = device

    monkeypatch.setattr(assemble, "open_memory", OfAnotherDevice)
    rig = make(host_blocks=8, has_disk=False, devices=("cpu", "cuda:0"))
    other = rig.store.open_session("an engine on the other device")
    rig.store.open_pool(other, rig.namespace_id, "cuda:0")
    with pytest.raises(InvalidRequestError, match="one device"):
        rig.store.open_pool(other, rig.namespace_id, "cpu")
    keys, leases = refused(rig)
    assert rig.store.acquire_pages(other, rig.namespace_id, keys).miss is MissReason.CAPACITY
    rig.store.release(rig.session, leases)
    acquired = rig.store.acquire_pages(other, rig.namespace_id, keys)
    assert acquired.tiers == (DEVICE,) * 4
    assert [run.done.result(10).miss for run in acquired.pending] == [None]
    memory = rig.store._books.pools[1].memory
    assert [bytes(memory.view(page * BLOCK_BYTES, BLOCK_BYTES)) for page in acquired.pages] == [content_of(key) for key in keys]
    rig.rest()
    assert rig.store._books.index.get(keys[0]).num_device_copies == 2
    assert rig.empty_device() == POOL_PAGES
    assert rig.store._books.index.get(keys[0]).num_device_copies == 1
    tiers = {tier.name: tier for tier in rig.store.stats().tiers}
    assert (tiers[DEVICE].capacity_bytes, tiers[DEVICE].blocks) == (2 * POOL_PAGES * BLOCK_BYTES, 4)
    rig.store.end_pages(other)


def test_a_draining_store_takes_no_pages(make):
    rig = make()
    pages = rig.store.reserve_pages(rig.session, 1)
    rig.store.drain()
    with pytest.raises(UnavailableError):
        rig.store.commit_pages(rig.session, rig.namespace_id, [PageRun(rig.chain(1), pages)])


def test_an_embedded_store_takes_devices_as_text(tmp_path):
    for bad in ("cpu", "256MiB", ":1MiB", "gpu:1MiB"):
        with pytest.raises(InvalidRequestError, match="cuda:0:20GiB"):
            open_store(tmp_path / "bad", host_memory=MIB, disk=0, device=bad)
    with open_store(tmp_path / "good", host_memory=MIB, disk=0, device="cpu:2MiB") as store:
        assert store.tiered.device_names() == ("cpu",)
