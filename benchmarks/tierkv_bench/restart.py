"""How soon a daemon serves again when its index is large, and how much memory it takes beside the arena.

A store in this process fills a data folder; then a daemon starts on it. The clock runs from the spawn of the process, so the
interpreter and its imports count. Expected on paper: the interpreter and grpc take half a second, 100,000 records of an LMDB index
about 10 µs each.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import tierkv
from tierkv.errors import InternalError, InvalidRequestError
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import Durability, ReserveOutcome
from tierkv.settings import MIB
from tierkv.testing.daemon import DaemonOptions, DaemonProcess
from tierkv_bench import workload
from tierkv_bench.harness import patterned
from tierkv_bench.stores import ARENA_NAME, SHM, open_warm

BATCH_BLOCKS = 1000
HIT_BLOCKS = 16
EXTENT_BYTES = 8192
"""At most: a small block, its frame header, rounded up to 4 KiB."""
HOST_BYTES = 256 * MIB
WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class RestartResult:
    """Fields of `tierkv bench restart --json`. rss counts every resident page of the daemon but those of the arena's map."""

    blocks: int
    block_bytes: int
    ready_s: float
    first_hit_s: float
    first_hit_blocks: int
    rss_beside_arena_bytes: int
    arena_rss_bytes: int


def measure(*, blocks: int, block_bytes: int, say: Callable[[str], None]) -> RestartResult:
    """Fills a temporary folder with `blocks` blocks, starts a daemon on it and asks for some. Blocks for a minute or so."""
    if blocks < HIT_BLOCKS or block_bytes > EXTENT_BYTES // 2:
        raise InvalidRequestError(
            f"the restart benchmark wants at least {HIT_BLOCKS} blocks of at most {EXTENT_BYTES // 2} bytes",
            blocks=blocks,
            block_bytes=block_bytes,
        )
    with (
        tempfile.TemporaryDirectory(prefix="tierkv-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="tierkv-bench-", dir=SHM) as shm,
    ):
        root = Path(folder)
        arena_folder = Path(shm) / "arena"
        disk_bytes = 2 * blocks * EXTENT_BYTES + 1024 * MIB
        keys = _fill(root / "data", blocks, block_bytes, disk_bytes, say)
        options = DaemonOptions(
            data=root / "data",
            run_dir=root / "run",
            host_memory=str(HOST_BYTES),
            disk=str(disk_bytes),
            arena_folder=arena_folder,
        )
        with DaemonProcess(options, log=root / "daemon.log") as daemon:
            say("starting a daemon on the folder")
            daemon.start()
            ready_s = daemon.wait_ready(timeout_s=WAIT_S)
            first_hit_s = _first_hit(options, block_bytes, keys)
            rss = resident_bytes(
                Path(f"/proc/{daemon.pid}/smaps").read_text(encoding="utf-8").splitlines(), arena_folder / ARENA_NAME
            )
            daemon.stop()
    return RestartResult(
        blocks=blocks,
        block_bytes=block_bytes,
        ready_s=ready_s,
        first_hit_s=first_hit_s,
        first_hit_blocks=len(keys),
        rss_beside_arena_bytes=rss.beside_bytes,
        arena_rss_bytes=rss.arena_bytes,
    )


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """Resident memory of a process: in the map of the arena, and beside it."""

    arena_bytes: int
    beside_bytes: int


def resident_bytes(smaps: Iterable[str], arena: Path) -> ResidentBytes:
    """Splits the resident pages in the lines of a /proc/PID/smaps by whether they map the file `arena`."""
    arena_bytes = beside_bytes = 0
    maps_arena = False
    for line in smaps:
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            # The head of a map: range, permissions, offset, device, inode, path.
            parts = line.split(maxsplit=5)
            maps_arena = len(parts) == 6 and parts[5].removesuffix(" (deleted)") == str(arena)
        elif name == "Rss:":
            num_bytes = int(rest.split()[0]) * 1024
            arena_bytes += num_bytes if maps_arena else 0
            beside_bytes += 0 if maps_arena else num_bytes
    return ResidentBytes(arena_bytes, beside_bytes)


def _fill(path: Path, blocks: int, block_bytes: int, disk_bytes: int, say: Callable[[str], None]) -> list[BlockKey]:
    """Stores `blocks` blocks on disk; the keys of a few that were stored first, the head of their sequence."""
    store = open_warm(path, host_bytes=HOST_BYTES, disk_bytes=disk_bytes)
    try:
        namespace = _register(store, block_bytes)
        source = patterned(block_bytes, seed=1).data
        first: list[BlockKey] = []
        for start in range(0, blocks, BATCH_BLOCKS):
            keys = workload.sequence(namespace, min(BATCH_BLOCKS, blocks - start), seed=start)
            first = first or keys[:HIT_BLOCKS]
            outcomes = store.put(namespace.namespace_id, keys, [source] * len(keys), timeout_s=WAIT_S)
            if any(outcome is not ReserveOutcome.GRANTED for outcome in outcomes):
                raise InternalError("a put was refused", outcomes=sorted(set(outcomes)))
            # A small arena is refilled many times over: what it holds must be on disk before it is asked for room.
            store.flush(timeout_s=WAIT_S)
            say(f"stored {start + len(keys)} of {blocks} blocks")
    finally:
        store.close()
    return first


def _first_hit(options: DaemonOptions, block_bytes: int, keys: list[BlockKey]) -> float:
    """Seconds from here until the first blocks are readable: connecting, registering and acquiring included."""
    start_s = time.perf_counter()
    store = tierkv.connect(options.run_dir)
    try:
        namespace = _register(store, block_bytes)
        lease = store.acquire(namespace.namespace_id, keys, timeout_s=WAIT_S)
        held = len(lease.blocks())
        elapsed_s = time.perf_counter() - start_s
        if held != len(keys):
            raise InternalError("the restarted daemon lost blocks", expected=len(keys), held=held)
        store.release(lease)
        return elapsed_s
    finally:
        store.close()


def _register(store: BlockStore, block_bytes: int) -> Namespace:
    return workload.register(store, "restart", block_bytes, durability=Durability.INTERVAL)
