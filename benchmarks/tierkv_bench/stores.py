"""How benchmarks open an embedded store: with a warm arena, so that no first touch of memory is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import tierkv
from tierkv.testing.deadline import wait_until

if TYPE_CHECKING:
    # Opening loads the store; a benchmark that only talks to a daemon need not.
    from tierkv.embedded import EmbeddedStore

PREFAULT_TIMEOUT_S = 600.0


def open_warm(path: Path, *, host_bytes: int, disk_bytes: int) -> EmbeddedStore:
    """Opens the store in `path` and waits until its whole arena has memory behind it. The arena goes when the store is closed."""
    store = tierkv.open_store(path, host_memory=host_bytes, disk=disk_bytes)
    try:
        wait_until(
            lambda: store.tiered.prefaulted_bytes() >= store.tiered.arena_bytes(), timeout_s=PREFAULT_TIMEOUT_S, what="a warm arena"
        )
    except BaseException:
        store.close()
        raise
    return store
