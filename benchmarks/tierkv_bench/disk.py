"""Arena to disk and back, beside plain sequential file I/O of as many bytes with the same open flags and the same syncs.

Written: blocks that lie in the arena, made durable by `flush` (payload, frame, checksum, sync, index commit). Read: the same blocks,
acquired by a store that was just opened and whose arena is empty, every frame verified. The store works in an arena that has memory
behind it, the reference in one warm buffer. Expected on paper: frames cost 4 KiB in 1 MiB and the checksum 10 GB/s beside a medium
of 2 to 3.5, so 0.9 of the reference.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tierkv.errors import InternalError, InvalidRequestError
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import Durability, ReserveOutcome, TierName
from tierkv.settings import GIB, MIB, DiskSettings
from tierkv_bench import workload
from tierkv_bench.harness import measure_s, patterned, run_interleaved, speed_gbps, speed_ratio
from tierkv_bench.plain_files import CHUNK_BYTES, PlainFile, drop_cached
from tierkv_bench.stores import open_warm

PUT_BLOCKS = 16
DISK_ALIGNMENT_BYTES = 4096
WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class DiskResult:
    """Fields of `tierkv bench disk --json`. `buffered_…` is the reference through the page cache, dropped before it is read."""

    bytes: int
    block_bytes: int
    rounds: int
    direct: bool
    file_read_gbps: float
    file_write_gbps: float
    read_gbps: float
    write_gbps: float
    read_ratio: float
    write_ratio: float
    buffered_read_gbps: float
    buffered_write_gbps: float


def measure(*, num_bytes: int, block_bytes: int, rounds: int, folder: Path | None, say: Callable[[str], None]) -> DiskResult:
    """Measures on the medium of `folder` (None: the folder for temporary files). Needs about three times `num_bytes` there and 1.3 times
    as memory; leaves nothing behind. Raises InvalidRequestError for sizes that do not divide.
    """
    if num_bytes % CHUNK_BYTES or num_bytes % block_bytes or num_bytes <= 0:
        raise InvalidRequestError(
            "the bytes of a disk benchmark are whole blocks and whole chunks",
            bytes=num_bytes,
            block_bytes=block_bytes,
            chunk_bytes=CHUNK_BYTES,
        )
    with tempfile.TemporaryDirectory(prefix="tierkv-bench-", dir=folder) as made:
        root = Path(made)
        direct_file = PlainFile(root / "direct", num_bytes, direct=True)
        buffered_file = PlainFile(root / "buffered", num_bytes, direct=False)
        bench = _Disk(root / "store", num_bytes=num_bytes, block_bytes=block_bytes, say=say)
        try:
            timings = run_interleaved(
                {
                    "file_write": lambda: direct_file.write_s(sync_every_bytes=bench.sync_every_bytes),
                    "write": bench.write,
                    "file_read": direct_file.read_s,
                    "read": bench.read,
                    "buffered_write": lambda: buffered_file.write_s(sync_every_bytes=bench.sync_every_bytes),
                    "buffered_read": buffered_file.read_s,
                },
                rounds=rounds,
                rotate=False,  # what is read must have been written
            )
        finally:
            bench.close()
            direct_file.close()
            buffered_file.close()
        speeds = {name: speed_gbps(num_bytes, timing.median_s) for name, timing in timings.items()}
        return DiskResult(
            bytes=num_bytes,
            block_bytes=block_bytes,
            rounds=rounds,
            direct=direct_file.is_direct,
            file_read_gbps=speeds["file_read"],
            file_write_gbps=speeds["file_write"],
            read_gbps=speeds["read"],
            write_gbps=speeds["write"],
            read_ratio=speed_ratio(timings["read"], timings["file_read"]),
            write_ratio=speed_ratio(timings["write"], timings["file_write"]),
            buffered_read_gbps=speeds["buffered_read"],
            buffered_write_gbps=speeds["buffered_write"],
        )


class _Disk:
    """Writes a fresh sequence a round, then reads it with a store whose arena knows nothing of it."""

    sync_every_bytes = DiskSettings(capacity_bytes=0).batch_bytes

    def __init__(self, path: Path, *, num_bytes: int, block_bytes: int, say: Callable[[str], None]) -> None:
        self._path = path
        self._num_blocks = num_bytes // block_bytes
        self._block_bytes = block_bytes
        self._say = say
        self._source = patterned(block_bytes, seed=1)
        extent_bytes = block_bytes + DISK_ALIGNMENT_BYTES
        # Slack above what the policy leaves free, so that nothing is demoted before the clock runs.
        self._host_bytes = self._num_blocks * extent_bytes * 5 // 4 + 64 * MIB
        self._disk_bytes = 2 * self._num_blocks * (extent_bytes + DISK_ALIGNMENT_BYTES) + GIB // 2
        self._round = 0
        self._store = self._open()
        self._namespace = self._register()
        self._keys: list[BlockKey] = []

    def write(self) -> float:
        """Seconds until blocks in the arena are on disk."""
        self._round += 1
        if self._keys:
            self._store.delete(self._namespace.namespace_id, self._keys, timeout_s=WAIT_S)
        self._keys = workload.sequence(self._namespace, self._num_blocks, seed=self._round)
        self._say(f"round {self._round}: writing {self._num_blocks} blocks")
        put_volatile(self._store, self._namespace, self._keys, self._source.data)
        written: list[int] = []
        elapsed_s = measure_s(lambda: written.append(self._store.flush(timeout_s=WAIT_S)))
        if written != [self._num_blocks]:
            raise InternalError("the flush found other blocks to write than were put", expected=self._num_blocks, written=written)
        return elapsed_s

    def read(self) -> float:
        """Seconds until all blocks are readable in an arena that held none of them."""
        self._store.close()
        self._store = self._open()
        self._namespace = self._register()
        drop_cached(self._path)
        self._say(f"round {self._round}: reading {self._num_blocks} blocks")
        leases = []

        def work() -> None:
            lease = self._store.acquire(self._namespace.namespace_id, self._keys, timeout_s=WAIT_S)
            lease.blocks()
            leases.append(lease)

        elapsed_s = measure_s(work)
        lease = leases[0]
        if lease.num_blocks != self._num_blocks or set(lease.tiers) != {TierName.DISK}:
            raise InternalError("the blocks did not all come from the disk", tiers=sorted(set(lease.tiers)), held=lease.num_blocks)
        self._store.release(lease)
        return elapsed_s

    def close(self) -> None:
        self._store.close()

    def _open(self) -> BlockStore:
        return open_warm(self._path, host_bytes=self._host_bytes, disk_bytes=self._disk_bytes)

    def _register(self) -> Namespace:
        return workload.register(self._store, "disk", self._block_bytes, durability=Durability.VOLATILE)


def put_volatile(store: BlockStore, namespace: Namespace, keys: list[BlockKey], source: memoryview) -> None:
    """Puts the same bytes under every key, a few blocks a call; nothing is on disk yet when it returns."""
    for start in range(0, len(keys), PUT_BLOCKS):
        batch = keys[start : start + PUT_BLOCKS]
        parent = keys[start - 1] if start else None
        outcomes = store.put(
            namespace.namespace_id, batch, [source] * len(batch), parent=parent, durability=Durability.VOLATILE, timeout_s=WAIT_S
        )
        if any(outcome is not ReserveOutcome.GRANTED for outcome in outcomes):
            raise InternalError("a put was refused", outcomes=sorted(set(outcomes)))
