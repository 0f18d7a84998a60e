"""Blocks whose parent goes while they are being written, and a write budget that runs out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.embedded import EmbeddedStore
from tierkv.errors import CapacityError
from tierkv.model.keys import BlockKey, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, ReserveOutcome
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings
from tierkv.testing.clock import ManualClock
from tierkv.testing.deadline import wait_until

BLOCK_BYTES = 4096
IDENTITY = Identity(weights="w")
LAYOUT = Layout((BLOCK_BYTES,), "uint8", 1)
NAMESPACE = IDENTITY.fingerprint(LAYOUT)
KEYS = chain_keys(NAMESPACE, range(64), block_tokens=1)


def open_store(folder: Path, clock: ManualClock, *, write_budget: int = 0) -> EmbeddedStore:
    settings = StoreSettings(
        data_folder=folder / "data",
        host=HostSettings(MIB, folder=folder / "arena", prefault=False),
        disk=DiskSettings(4 * MIB, segment_bytes=MIB, direct_io=False, interval_s=0.0, write_budget_bytes_per_day=write_budget),
    )
    store = EmbeddedStore(open_tiered_store(settings, clock), clock=clock, discard_arena=True)
    store.register(IDENTITY, LAYOUT)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with open_store(tmp_path, ManualClock()) as store:
        yield store


def put(store: EmbeddedStore, keys: list[BlockKey], **options: object) -> tuple[ReserveOutcome, ...]:
    return store.put(NAMESPACE, keys, [memoryview(key * (BLOCK_BYTES // 32)) for key in keys], **options)  # type: ignore[arg-type]


def test_a_block_committed_behind_an_aborted_one_goes_at_once(store: EmbeddedStore) -> None:
    reservation = store.reserve(NAMESPACE, KEYS[:3])
    assert store.abort(reservation, [KEYS[1]]) == 1
    assert store.commit(reservation) == 2
    assert store.lookup(NAMESPACE, KEYS[:3]).num_blocks == 1
    store.tiered.check_integrity()
    assert store.lookup(NAMESPACE, [KEYS[2]]).num_blocks == 0
    assert put(store, KEYS[:3]) == (ReserveOutcome.PRESENT, ReserveOutcome.GRANTED, ReserveOutcome.GRANTED)


def test_a_committed_block_goes_with_the_reserved_one_before_it(store: EmbeddedStore) -> None:
    reservation = store.reserve(NAMESPACE, KEYS[:3])
    assert store.commit(reservation, [KEYS[1], KEYS[2]]) == 2
    assert store.lookup(NAMESPACE, KEYS[:3]).num_blocks == 0  # nobody can use them yet
    store.abort(reservation)
    store.tiered.check_integrity()
    assert store.tiered._books.index.get(KEYS[1]) is None


def test_a_block_that_comes_back_below_one_that_follows_it_is_refused(store: EmbeddedStore) -> None:
    """Keys are hashes, so that only a wrong client can say so; a chain that bites its tail would be followed for ever."""
    head = store.reserve(NAMESPACE, [KEYS[0]])
    store.reserve(NAMESPACE, [KEYS[1]], parent=KEYS[0])
    store.abort(head)
    refused = store.reserve(NAMESPACE, [KEYS[0], KEYS[2]], parent=KEYS[1])
    assert [grant.outcome for grant in refused.grants] == [ReserveOutcome.REFUSED] * 2
    assert store.reserve(NAMESPACE, [KEYS[0]]).grants[0].outcome is ReserveOutcome.GRANTED
    store.tiered.check_integrity()


def test_two_blocks_that_come_back_below_each_others_followers_are_refused(store: EmbeddedStore) -> None:
    heads = store.reserve(NAMESPACE, [KEYS[0]]), store.reserve(NAMESPACE, [KEYS[10]])
    store.reserve(NAMESPACE, [KEYS[1]], parent=KEYS[0])
    store.reserve(NAMESPACE, [KEYS[11]], parent=KEYS[10])
    for head in heads:
        store.abort(head)
    result = store.reserve(NAMESPACE, [KEYS[11], KEYS[0], KEYS[1], KEYS[10]])
    expected = [ReserveOutcome.PENDING, ReserveOutcome.GRANTED, ReserveOutcome.PENDING, ReserveOutcome.REFUSED]
    assert [grant.outcome for grant in result.grants] == expected
    store.tiered.check_integrity()


def test_a_spent_write_budget_keeps_blocks_in_ram_until_there_is_some_again(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path, clock, write_budget=24 * 8 * (BLOCK_BYTES + 4096)) as store:
        put(store, KEYS[:16])
        assert store.flush() == 16  # one batch may overdraw it
        put(store, KEYS[16:20], parent=KEYS[15])
        with pytest.raises(CapacityError, match="not durable"):
            put(store, KEYS[20:21], parent=KEYS[19], durability=Durability.STRICT)
        assert store.flush() == 0
        assert any("write budget is spent" in sentence for sentence in store.stats().degraded)
        assert store.lookup(NAMESPACE, KEYS[:21]).num_blocks == 21
        clock.advance(3 * 3600)
        store.tiered.expire()

        def is_all_written() -> bool:
            return store.stats().tiers[1].blocks == 21

        wait_until(is_all_written, timeout_s=10, what="the blocks to be written after all")
        assert store.stats().degraded == ()
