"""The disk writer at its limits: batches larger than the disk, a step that fails, blocks that several jobs want."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.codecs.checksum import checksum
from tierkv.embedded import EmbeddedStore
from tierkv.model.keys import BlockKey, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings
from tierkv.testing.deadline import wait_until

BLOCK_BYTES = 4000
DEADLINE_S = 10.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with _open(tmp_path) as opened:
        yield opened


def _open(tmp_path: Path, *, verify_every_hit: bool = False) -> EmbeddedStore:
    settings = StoreSettings(
        data_folder=tmp_path / "data",
        host=HostSettings(4 * MIB, folder=tmp_path / "arena", prefault=False),
        disk=DiskSettings(MIB, segment_bytes=MIB // 2, direct_io=False, interval_s=60.0),
        verify_every_hit=verify_every_hit,
    )
    clock = SystemClock()
    return EmbeddedStore(open_tiered_store(settings, clock), clock=clock, discard_arena=True)


def _put(store: EmbeddedStore, count: int) -> tuple[Namespace, list[BlockKey]]:
    namespace = store.register(Identity(weights="w"), Layout((BLOCK_BYTES,), "uint8", 1))
    keys = chain_keys(namespace.namespace_id, range(count), block_tokens=1)
    blocks = [memoryview(key * (BLOCK_BYTES // 32)) for key in keys]
    store.put(namespace.namespace_id, keys, blocks)
    return namespace, keys


def test_a_batch_larger_than_the_disk_leaves_books_and_disk_in_agreement(store: EmbeddedStore) -> None:
    namespace, keys = _put(store, 300)  # 2.4 MiB of frames for 1 MiB of disk

    store.flush(timeout_s=DEADLINE_S)

    store.tiered.check_integrity()
    for key in keys:
        target = bytearray(BLOCK_BYTES)
        if store.get(namespace.namespace_id, [key], [memoryview(target)]):
            assert target == key * (BLOCK_BYTES // 32)
    store.clear(namespace.namespace_id, timeout_s=DEADLINE_S)
    assert [tier.used_bytes for tier in store.stats().tiers] == [0, 0]


def test_a_failing_step_reports_its_blocks_and_gives_their_extents_back(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = store.tiered._books.disk_policy
    assert policy is not None

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(policy, "admit", fail)
        namespace, keys = _put(store, 3)
        assert store.flush(timeout_s=DEADLINE_S) == 0  # answers, and none was written

    assert "a batch could not be written" in caplog.text
    assert store.delete(namespace.namespace_id, keys, timeout_s=DEADLINE_S) == len(keys)
    wait_until(lambda: store.stats().tiers[0].used_bytes == 0, timeout_s=DEADLINE_S, what="the extents to return")
    store.tiered.check_integrity()


def test_a_block_that_two_jobs_pass_on_is_written_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with _open(tmp_path, verify_every_hit=True) as store:
        namespace, keys = _put(store, 2)
        entries = [store.tiered._books.index.get(key) for key in keys]
        wait_until(lambda: all(entry and entry.record for entry in entries), timeout_s=DEADLINE_S, what="the blocks to be sealed")
        lease = store.acquire(namespace.namespace_id, keys)  # they wait for the disk, and are verified meanwhile
        assert len(lease.blocks()) == len(keys)
        store.release(lease)
        store.flush(timeout_s=DEADLINE_S)
        store.tiered.check_integrity()
        assert [tier.blocks for tier in store.stats().tiers] == [2, 2]
    assert "could not be written" not in caplog.text


def test_a_commit_that_nobody_waits_for_any_more_costs_the_others_nothing(store: EmbeddedStore) -> None:
    namespace = store.register(Identity(weights="w"), Layout((BLOCK_BYTES,), "uint8", 1))
    keys = chain_keys(namespace.namespace_id, range(8), block_tokens=1)
    session = store.tiered.open_session("impatient")
    reserved = store.tiered.reserve(session, namespace.namespace_id, keys)
    with store.tiered._lock:  # so that the flush waits for the same blocks
        committed = store.tiered.commit(session, reserved.reservation_id, durability=Durability.STRICT)
        assert committed.durable is not None
        committed.durable.cancel()  # as asyncio does when the call that waits ends
        flushed = store.tiered.flush()
    assert flushed.result(DEADLINE_S) == len(keys)
    store.tiered.check_integrity()


def test_a_flush_during_a_verification_writes_the_block_that_is_looked_at(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = store.register(Identity(weights="w"), Layout((BLOCK_BYTES,), "uint8", 1), durability=Durability.VOLATILE)
    keys = chain_keys(namespace.namespace_id, range(1), block_tokens=1)
    store.put(namespace.namespace_id, keys, [memoryview(bytes(BLOCK_BYTES))])
    entry = store.tiered._books.index.get(keys[0])
    assert entry is not None
    wait_until(lambda: entry.record is not None and entry.moves == 0, timeout_s=DEADLINE_S, what="the block to be sealed")
    flushes = []

    def look(view: memoryview) -> bytes:
        flushes.append(store.tiered.flush())
        return checksum(view)

    monkeypatch.setattr(store.tiered, "_checksum", look)
    assert store.tiered.verify().damaged == ()
    assert flushes[0].result(DEADLINE_S) == 1
