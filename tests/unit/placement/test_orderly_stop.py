"""An orderly stop loses nothing that was committed, on a store without a disk too."""

from __future__ import annotations

from pathlib import Path

from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings

LAYOUT = Layout((4096,), "uint8", 1)
NUM_BLOCKS = 600  # more than the scribe takes at a time


def test_a_kept_arena_knows_what_was_committed_just_before_the_stop(tmp_path: Path) -> None:
    settings = StoreSettings(
        data_folder=tmp_path / "data", host=HostSettings(4 * MIB, folder=tmp_path / "arena", prefault=False), disk=DiskSettings(0)
    )
    store = open_tiered_store(settings, SystemClock())
    namespace_id = store.register(Identity(weights="w"), LAYOUT).namespace_id
    keys = chain_keys(namespace_id, range(NUM_BLOCKS), block_tokens=1)
    session = store.open_session("last")
    store.commit(session, store.reserve(session, namespace_id, keys).reservation_id)
    store.close()

    store = open_tiered_store(settings, SystemClock())
    try:
        store.register(Identity(weights="w"), LAYOUT)
        assert store.lookup(namespace_id, keys).num_blocks == NUM_BLOCKS
    finally:
        store.close(discard_arena=True)
