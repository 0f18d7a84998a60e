"""Client process to daemon: how fast blocks cross, beside a plain copy of the same bytes.

The daemon is a process of its own; this process is the client. Reference: one `numpy` copy of all blocks between warm buffers of this
process, the best any transport through memory can do. Expected on paper: a put is one copy into the arena and two small calls
(about 1 ms) and a checksum by the daemon; a get is one call and one copy; 96 MiB copy in 5 to 10 ms, so the calls cost a tenth.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import tierkv
from tierkv.errors import InternalError
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import Durability, ReserveOutcome
from tierkv.settings import MIB
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv_bench import workload
from tierkv_bench.harness import measure_s, patterned, run_interleaved, speed_gbps, speed_ratio, views, warm_buffers
from tierkv_bench.stores import ARENA_NAME, SHM, wait_for_arena

WARMUP_ROUNDS = 5
"""The client maps the arena page by page as it first uses it; later rounds use the same extents again."""
EMPTY_CALLS = 200
RESIDENT_SETS = 4
"""Sequences the arena has room for: the one that is read, the one that is written, and slack so that no eviction is measured."""


@dataclass(frozen=True, slots=True)
class TransportResult:
    """Fields of `tierkv bench transport --json`. Speeds are medians; ratios are medians of each round's own ratio."""

    blocks: int
    block_bytes: int
    rounds: int
    memcpy_gbps: float
    put_gbps: float
    get_gbps: float
    put_ratio: float
    get_ratio: float
    acquire_ms_p50: float
    acquire_ms_p99: float
    empty_call_ms_p50: float
    empty_call_ms_p99: float


def measure_with_daemon(*, blocks: int, block_bytes: int, rounds: int, say: Callable[[str], None]) -> TransportResult:
    """Starts a daemon in a temporary folder and measures against it. Blocks for some seconds."""
    with (
        tempfile.TemporaryDirectory(prefix="tierkv-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="tierkv-bench-", dir=SHM) as shm,
    ):
        root = Path(folder)
        arena_folder = Path(shm) / "arena"
        arena_bytes = RESIDENT_SETS * blocks * (block_bytes + 4096) + 64 * MIB
        options = DaemonOptions(
            data=root / "data",
            run_dir=root / "run",
            host_memory=str(arena_bytes),
            disk="0",
            durability=Durability.VOLATILE,
            arena_folder=arena_folder,
        )
        say("starting a daemon and waiting for its arena")
        with start_daemon(options, log=root / "daemon.log") as daemon:
            wait_for_arena(arena_folder / ARENA_NAME)
            store = tierkv.connect(options.run_dir)
            try:
                return measure(store, blocks=blocks, block_bytes=block_bytes, rounds=rounds, say=say)
            finally:
                store.close()
                daemon.stop()


def measure(store: BlockStore, *, blocks: int, block_bytes: int, rounds: int, say: Callable[[str], None]) -> TransportResult:
    """Measures `store`, which must have room for about four times the blocks. Deletes what it stored."""
    bench = _Transport(store, blocks=blocks, block_bytes=block_bytes)
    say(f"moving {blocks} blocks of {block_bytes} bytes, {rounds} rounds")
    timings = run_interleaved(
        {"memcpy": bench.copy, "put": bench.put, "get": bench.get, "acquire": bench.acquire},
        rounds=rounds,
        warmup_rounds=WARMUP_ROUNDS,
    )
    empty = run_interleaved({"empty": lambda: measure_s(store.stats)}, rounds=EMPTY_CALLS, warmup_rounds=WARMUP_ROUNDS)["empty"]
    bench.tidy()
    num_bytes = blocks * block_bytes
    return TransportResult(
        blocks=blocks,
        block_bytes=block_bytes,
        rounds=rounds,
        memcpy_gbps=speed_gbps(num_bytes, timings["memcpy"].median_s),
        put_gbps=speed_gbps(num_bytes, timings["put"].median_s),
        get_gbps=speed_gbps(num_bytes, timings["get"].median_s),
        put_ratio=speed_ratio(timings["put"], timings["memcpy"]),
        get_ratio=speed_ratio(timings["get"], timings["memcpy"]),
        acquire_ms_p50=1e3 * timings["acquire"].median_s,
        acquire_ms_p99=1e3 * timings["acquire"].percentile_s(99),
        empty_call_ms_p50=1e3 * empty.median_s,
        empty_call_ms_p99=1e3 * empty.percentile_s(99),
    )


class _Transport:
    """The four cases. Sources and targets are the same warm buffers for the reference and the subject."""

    def __init__(self, store: BlockStore, *, blocks: int, block_bytes: int) -> None:
        self._store = store
        self._blocks = blocks
        self._sources = [patterned(block_bytes, seed) for seed in range(blocks)]
        self._targets = warm_buffers(blocks, block_bytes)
        self._namespace: Namespace = workload.register(store, "transport", block_bytes, durability=Durability.VOLATILE)
        self._seeds = count(1)
        self._resident = workload.sequence(self._namespace, blocks)
        self._put(self._resident)

    def copy(self) -> float:
        def work() -> None:
            for source, target in zip(self._sources, self._targets, strict=True):
                target[:] = source

        return measure_s(work)

    def put(self) -> float:
        """Fresh keys each round; forgetting them again is not counted."""
        keys = workload.sequence(self._namespace, self._blocks, seed=next(self._seeds))
        elapsed_s = measure_s(lambda: self._put(keys))
        self._store.delete(self._namespace.namespace_id, keys)
        return elapsed_s

    def get(self) -> float:
        for target in self._targets:
            target[:8] = 0
        targets = views(self._targets)
        got: list[int] = []
        elapsed_s = measure_s(lambda: got.append(self._store.get(self._namespace.namespace_id, self._resident, targets)))
        wrong = any((target[:8] != source[:8]).any() for source, target in zip(self._sources, self._targets, strict=True))
        if got != [self._blocks] or wrong:
            raise InternalError(
                "a get did not bring back what was put", blocks=self._blocks, got=got, wrong=wrong, stats=self._store.stats()
            )
        return elapsed_s

    def acquire(self) -> float:
        """All blocks in place, first byte of each in reach; the release is not counted."""
        leases = []

        def work() -> None:
            lease = self._store.acquire(self._namespace.namespace_id, self._resident)
            lease.blocks()
            leases.append(lease)

        elapsed_s = measure_s(work)
        if leases[0].num_blocks != self._blocks:
            raise InternalError("an acquire lost blocks", blocks=self._blocks, held=leases[0].num_blocks)
        self._store.release(leases[0])
        return elapsed_s

    def tidy(self) -> None:
        self._store.delete(self._namespace.namespace_id, self._resident)

    def _put(self, keys: list[BlockKey]) -> None:
        outcomes = self._store.put(self._namespace.namespace_id, keys, views(self._sources), durability=Durability.VOLATILE)
        if any(outcome is not ReserveOutcome.GRANTED for outcome in outcomes):
            raise InternalError("a put was refused", outcomes=sorted(set(outcomes)))
