"""Extents that a client of an earlier process may be writing rest for two reservation lifetimes, and are then used again."""

from __future__ import annotations

from pathlib import Path

from tierkv.assemble import open_tiered_store
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings
from tierkv.testing.clock import ManualClock

LAYOUT = Layout((64 * 1024,), "uint8", 1)
TTL_S = 60.0


def test_granted_extents_rest_after_a_restart(tmp_path: Path) -> None:
    settings = StoreSettings(
        data_folder=tmp_path / "data", host=HostSettings(MIB, folder=tmp_path / "arena", prefault=False), disk=DiskSettings(0)
    )
    store = open_tiered_store(settings, ManualClock())
    namespace_id = store.register(Identity(weights="w"), LAYOUT).namespace_id
    keys = chain_keys(namespace_id, range(6), block_tokens=1)
    session = store.open_session("slow")
    extents = store.reserve(session, namespace_id, keys).extents
    store.close()

    clock = ManualClock()
    store = open_tiered_store(settings, clock)
    try:
        store.register(Identity(weights="w"), LAYOUT)
        session = store.open_session("other")
        many = chain_keys(namespace_id, range(100, 116), block_tokens=1)
        reserved = store.reserve(session, namespace_id, many)
        given = [extent for extent in reserved.extents if extent is not None]
        assert len(given) == 10
        assert not set(given) & set(extents)
        store.abort(session, reserved.reservation_id)

        clock.advance(2 * TTL_S)
        store.expire()
        assert store.stats().tiers[0].used_bytes == 0
        assert set(store.reserve(session, namespace_id, keys).extents) == set(extents)
        store.check_integrity()
    finally:
        store.close(discard_arena=True)
