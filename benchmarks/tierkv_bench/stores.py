"""How benchmarks open a store, embedded or a daemon's: with a warm arena, so that no first touch of memory is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import tierkv
from tierkv.errors import UnavailableError
from tierkv.testing.deadline import wait_until

if TYPE_CHECKING:
    # Opening loads the store; a benchmark that only talks to a daemon need not.
    from tierkv.embedded import EmbeddedStore

PREFAULT_TIMEOUT_S = 600.0
SHM = Path("/dev/shm")
"""Where the arena of a daemon belongs."""
ARENA_NAME = "arena"
"""The file of the arena in its folder; docs/format.md, "Arena and arena index"."""


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


def wait_for_arena(arena: Path) -> None:
    """Waits until the arena file of a daemon has memory behind every page: tmpfs counts the pages it has given to a file.

    Raises UnavailableError when that does not happen in time.
    """

    def is_filled() -> bool:
        status = arena.stat()
        return status.st_blocks * 512 >= status.st_size

    try:
        wait_until(is_filled, timeout_s=PREFAULT_TIMEOUT_S, what="a warm arena")
    except TimeoutError as error:
        raise UnavailableError("the daemon's arena did not become warm", arena=arena) from error
