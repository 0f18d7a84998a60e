"""Arena to disk and back, beside plain sequential file I/O of the same bytes with the same open flags, memory and syncs.

Written: blocks that lie in the arena, made durable by `flush` (payload, frame, checksum, sync, index commit). Read: the same blocks,
acquired by a store that was just opened and whose arena is empty, every frame verified. The reference writes from the very pages that
the blocks lie in, and reads into pages of the same arena, which the store then reads into: other memory could be three times as fast or
as slow (see `plain_files`). Expected on paper: frames cost 4 KiB in 1.5 MiB and the checksum 10 GB/s beside a medium of 2 to 3.5, so 0.9
of the reference.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

from tierkv.errors import InternalError, InvalidRequestError
from tierkv.interface import BlockStore, Lease, Reservation
from tierkv.model.keys import BlockKey
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import Durability, ReserveOutcome, TierName
from tierkv.settings import GIB, MIB, DiskSettings
from tierkv_bench import workload
from tierkv_bench.harness import measure_s, patterned, run_interleaved, speed_gbps, speed_ratio
from tierkv_bench.plain_files import PlainFile, drop_cached
from tierkv_bench.stores import open_warm

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
    """Measures on the medium of `folder` (None: the folder for temporary files) with at least `num_bytes` in whole blocks.

    Needs about four times as much there and 1.3 times as memory; leaves nothing behind. Blocks for half a minute or so. Raises
    InvalidRequestError for blocks that the reference could not move directly and for a folder that cannot be written.
    """
    if block_bytes % DISK_ALIGNMENT_BYTES:
        raise InvalidRequestError("blocks of the disk benchmark have a multiple of 4096 bytes", block_bytes=block_bytes)
    num_blocks = -(-num_bytes // block_bytes)
    num_bytes = num_blocks * block_bytes
    try:
        own_folder = tempfile.TemporaryDirectory(prefix="tierkv-bench-", dir=folder)
    except OSError as error:
        raise InvalidRequestError("the folder to measure cannot be written", folder=folder, error=error.strerror) from error
    with (
        own_folder as made,
        _Disk(Path(made), num_blocks=num_blocks, block_bytes=block_bytes, say=say) as bench,
    ):
        timings = run_interleaved(
            {
                "file_write": bench.file_write,
                "buffered_write": bench.buffered_write,
                "write": bench.write,
                "file_read": bench.file_read,
                "read": bench.read,
                "buffered_read": bench.buffered_read,
            },
            rounds=rounds,
            rotate=False,  # what is read must have been written
        )
        is_direct = bench.is_direct
    speeds = {name: speed_gbps(num_bytes, timing.median_s) for name, timing in timings.items()}
    return DiskResult(
        bytes=num_bytes,
        block_bytes=block_bytes,
        rounds=rounds,
        direct=is_direct,
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
    """The cases, in the order of a round: a fresh sequence is reserved, written plainly, committed and flushed; then the store is opened
    again, the file read plainly into a reservation that is given back, and the sequence acquired.
    """

    def __init__(self, root: Path, *, num_blocks: int, block_bytes: int, say: Callable[[str], None]) -> None:
        self._root = root
        self._num_blocks = num_blocks
        self._block_bytes = block_bytes
        self._say = say
        self._source = patterned(block_bytes, seed=1).data
        self._sync_every_bytes = DiskSettings(capacity_bytes=0).batch_bytes
        self._direct = PlainFile(root / "direct", num_blocks * block_bytes, direct=True)
        self._buffered = PlainFile(root / "buffered", num_blocks * block_bytes, direct=False)
        self._seeds = count(1)
        self._store = self._open()
        self._namespace = self._register()
        self._keys: list[BlockKey] = []
        self._reservation: Reservation

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()
        self._direct.close()
        self._buffered.close()

    @property
    def is_direct(self) -> bool:
        """Whether the reference went past the page cache."""
        return self._direct.is_direct

    def file_write(self) -> float:
        self._say(f"writing {self._num_blocks} blocks")
        self._keys, self._reservation = self._reserve()
        for buffer in granted(self._reservation):
            buffer[:] = self._source
        return self._direct.write_s(granted(self._reservation), sync_every_bytes=self._sync_every_bytes)

    def buffered_write(self) -> float:
        return self._buffered.write_s(granted(self._reservation), sync_every_bytes=self._sync_every_bytes)

    def write(self) -> float:
        """Seconds until blocks in the arena are on disk."""
        self._store.commit(self._reservation, durability=Durability.VOLATILE, timeout_s=WAIT_S)
        written: list[int] = []
        elapsed_s = measure_s(lambda: written.append(self._store.flush(timeout_s=WAIT_S)))
        if written != [self._num_blocks]:
            raise InternalError("the flush found other blocks to write than were put", expected=self._num_blocks, written=written)
        return elapsed_s

    def file_read(self) -> float:
        self._store.close()
        self._store = self._open()
        self._namespace = self._register()
        drop_cached(self._root / "store")
        self._say(f"reading {self._num_blocks} blocks")
        return self._read_plainly(self._direct)

    def buffered_read(self) -> float:
        return self._read_plainly(self._buffered)

    def read(self) -> float:
        """Seconds until all blocks are readable in an arena that held none of them."""
        leases: list[Lease] = []

        def work() -> None:
            lease = self._store.acquire(self._namespace.namespace_id, self._keys, timeout_s=WAIT_S)
            lease.blocks()
            leases.append(lease)

        elapsed_s = measure_s(work)
        (lease,) = leases
        if lease.num_blocks != self._num_blocks or set(lease.tiers) != {TierName.DISK}:
            raise InternalError("the blocks did not all come from the disk", tiers=sorted(set(lease.tiers)), held=lease.num_blocks)
        if any(block != self._source for block in (lease.blocks()[0], lease.blocks()[-1])):
            raise InternalError("a block came back with other bytes", block_bytes=self._block_bytes)
        self._store.release(lease)
        # Makes room for the reservations that follow.
        self._store.delete(self._namespace.namespace_id, self._keys, timeout_s=WAIT_S)
        return elapsed_s

    def _read_plainly(self, file: PlainFile) -> float:
        _, reservation = self._reserve()
        elapsed_s = file.read_s(granted(reservation))
        self._store.abort(reservation, timeout_s=WAIT_S)
        return elapsed_s

    def _reserve(self) -> tuple[list[BlockKey], Reservation]:
        """Places in the arena for a new sequence."""
        keys = workload.sequence(self._namespace, self._num_blocks, seed=next(self._seeds))
        return keys, self._store.reserve(self._namespace.namespace_id, keys, timeout_s=WAIT_S)

    def _open(self) -> BlockStore:
        extent_bytes = self._block_bytes + DISK_ALIGNMENT_BYTES
        return open_warm(
            self._root / "store",
            # Slack above what the policy leaves free, so that nothing is demoted before the clock runs.
            host_bytes=self._num_blocks * extent_bytes * 5 // 4 + 64 * MIB,
            disk_bytes=2 * self._num_blocks * (extent_bytes + DISK_ALIGNMENT_BYTES) + GIB // 2,
        )

    def _register(self) -> Namespace:
        return workload.register(self._store, "disk", self._block_bytes, durability=Durability.VOLATILE)


def granted(reservation: Reservation) -> list[memoryview]:
    """The buffers of a reservation that got everything it asked for. Raises InternalError for any other."""
    outcomes = {grant.outcome for grant in reservation.grants}
    if outcomes != {ReserveOutcome.GRANTED}:
        raise InternalError("a reservation was refused", outcomes=sorted(outcomes))
    return [grant.buffer for grant in reservation.grants if grant.buffer is not None]
