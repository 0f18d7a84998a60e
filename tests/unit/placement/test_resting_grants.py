"""Extents that a client of an earlier process may be writing rest while it lives, for two reservation lifetimes at most."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings
from tierkv.testing.clock import ManualClock

LAYOUT = Layout((64 * 1024,), "uint8", 1)
TTL_S = 60.0


@pytest.mark.parametrize("how", ["they had time enough", "they are gone"])
def test_granted_extents_rest_after_a_restart_until(how: str, tmp_path: Path) -> None:
    settings = StoreSettings(
        data_folder=tmp_path / "data", host=HostSettings(MIB, folder=tmp_path / "arena", prefault=False), disk=DiskSettings(0)
    )
    store = open_tiered_store(settings, ManualClock())
    namespace_id = store.register(Identity(weights="w"), LAYOUT).namespace_id
    keys = chain_keys(namespace_id, range(6), block_tokens=1)
    session = store.open_session("slow")
    extents = store.reserve(session, namespace_id, keys).extents
    fd = os.dup(store.arena_fd())  # what a client was handed
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
        store.expire()
        assert store.stats().tiers[0].used_bytes == 6 * LAYOUT.block_bytes

        if how == "they had time enough":
            clock.advance(2 * TTL_S)
        else:
            os.close(fd)
            fd = -1
        store.expire()
        assert store.stats().tiers[0].used_bytes == 0
        assert set(store.reserve(session, namespace_id, keys).extents) == set(extents)
        store.check_integrity()
    finally:
        store.close(discard_arena=True)
        if fd >= 0:
            os.close(fd)


def test_nothing_rests_where_no_client_is_left(tmp_path: Path) -> None:
    settings = StoreSettings(
        data_folder=tmp_path / "data", host=HostSettings(MIB, folder=tmp_path / "arena", prefault=False), disk=DiskSettings(0)
    )
    store = open_tiered_store(settings, ManualClock())
    namespace_id = store.register(Identity(weights="w"), LAYOUT).namespace_id
    store.reserve(store.open_session("gone"), namespace_id, chain_keys(namespace_id, range(6), block_tokens=1))
    store.close()
    store = open_tiered_store(settings, ManualClock())
    assert store.stats().tiers[0].used_bytes == 0
    store.close(discard_arena=True)
