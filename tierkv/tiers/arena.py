"""The arena: one file in tmpfs, mapped here and in every attached client, with its extents and its memory.

Leaves to others: what lies in an extent (`tiers/host`), and which block goes where. Memory touched for the first time is slow (page
by page, 0.35 GB/s on some machines against 12 warm), so `prefault` walks the file once, low to high, and the allocator prefers low
offsets.

Invariant: an extent that was handed out has memory behind it. A page of a full tmpfs that is touched without any is SIGBUS, which
would end the engine that writes there; so `reserve` allocates what `prefault` has not reached yet, and what cannot be had is withdrawn.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tierkv.errors import CapacityError
from tierkv.mapping import ArenaMap
from tierkv.model.outcomes import Extent
from tierkv.tiers.extents import ALIGNMENT_BYTES, ExtentAllocator
from tierkv.tiers.grants import GRANTS_NAME, GrantMap

ARENA_NAME = "arena"
_PREFAULT_CHUNK_BYTES = 16 << 20
_GRAIN_BYTES = 1 << 20
"""What is backed is remembered in grains of this size; divides the chunk."""
_NO_MEMORY = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)


class Arena:
    """The memory of the host tier.

    folder — in tmpfs, private, locked by the caller; memory_bytes — rounded down to 4 KiB. An arena of the same length from an
    earlier process is taken over with its content; one of another length is unlinked, and whoever still maps it keeps it.
    Raises CapacityError where it cannot be mapped.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self.size_bytes = memory_bytes - memory_bytes % ALIGNMENT_BYTES
        self.path = folder / ARENA_NAME
        self.degraded: str | None = None
        self.prefaulted_bytes = 0
        self._withdrawn_bytes = 0
        self._is_backed = bytearray(-(-self.size_bytes // _GRAIN_BYTES))
        self._lock = threading.Lock()
        self._allocator = ExtentAllocator(self.size_bytes)
        if self.path.exists() and self.path.stat().st_size != self.size_bytes:
            self.path.unlink()
        self.is_new = not self.path.exists()
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH)
            os.ftruncate(self.fd, self.size_bytes)
            self.grants = GrantMap(folder, self.size_bytes, is_new=self.is_new)
            self._map = ArenaMap(self.fd, self.size_bytes)
        except OSError as error:
            os.close(self.fd)
            raise CapacityError("the arena cannot be mapped; give less host memory", size=self.size_bytes, error=error) from error

    def is_mapped_elsewhere(self) -> bool:
        """Whether a process still maps this arena that got it from an earlier owner.

        Every owner holds a shared lock on the arena. The kernel keeps it with the open file that clients were handed, and for as long
        as one of them maps it: so whoever can have the lock alone is alone.
        """
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_SH)  # an attempt that fails gives up the lock there was
        return False

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self.size_bytes - self._allocator.free_bytes - self._withdrawn_bytes

    def reserve(self, count: int, length: int) -> list[Extent]:
        """Up to `count` extents of `length` bytes (rounded up to 4 KiB), adjacent where possible; fewer where room is short.

        At memory speed; where `prefault` has not been yet, at the speed of memory touched for the first time.
        """
        extents = self._allocate(count, length)
        if not self._back(extents):
            # Memory ran out. What is left of the arena is what has memory already.
            self.release(extents)
            self._withdraw()
            extents = self._allocate(count, length)
        return extents

    def _allocate(self, count: int, length: int) -> list[Extent]:
        with self._lock:
            return self._allocator.allocate_many(count, length)

    def release(self, extents: Sequence[Extent]) -> None:
        """Takes extents back. Raises InternalError for one that is free already."""
        with self._lock:
            for extent in extents:
                self._allocator.free(extent)

    def claim(self, extents: Sequence[Extent]) -> None:
        """Recovery: marks extents of an earlier process as used; they must be disjoint and inside."""
        with self._lock:
            self._allocator.claim_many(extents)

    def fits(self, extent: Extent) -> bool:
        """Whether an extent could be one of this arena."""
        return self._allocator.is_extent(extent)

    def view(self, extent: Extent) -> memoryview:
        """The bytes of an extent, writable."""
        return self._map.view(extent.offset, extent.length)

    def prefault(self, should_stop: Callable[[], bool]) -> None:
        """Puts memory behind the whole file and maps it, low to high; minutes for a large arena, for a thread of its own.

        Every chunk raises `prefaulted_bytes`. Where the machine has no memory left it stops and says so in `degraded`.
        """
        for offset in range(0, self.size_bytes, _PREFAULT_CHUNK_BYTES):
            if should_stop():
                return
            length = min(_PREFAULT_CHUNK_BYTES, self.size_bytes - offset)
            if not self._fallocate(offset, length):
                self._withdraw()
                return
            self._map.populate(offset, length)
            self.prefaulted_bytes = offset + length

    def _back(self, extents: Sequence[Extent]) -> bool:
        """Sees to memory behind extents that are ours; False where there is none to be had."""
        missing = {
            grain
            for extent in extents
            for grain in range(extent.offset // _GRAIN_BYTES, -(-extent.end // _GRAIN_BYTES))
            if not self._is_backed[grain]
        }
        return all(
            self._fallocate(grain * _GRAIN_BYTES, min(_GRAIN_BYTES, self.size_bytes - grain * _GRAIN_BYTES))
            for grain in sorted(missing)
        )

    def _fallocate(self, offset: int, length: int) -> bool:
        """Allocates whole grains, without the GIL; False where memory is short. Doing a range twice is harmless."""
        try:
            os.posix_fallocate(self.fd, offset, length)
        except OSError as error:
            if error.errno not in _NO_MEMORY:
                raise
            return False
        first, end = offset // _GRAIN_BYTES, -(-(offset + length) // _GRAIN_BYTES)
        self._is_backed[first:end] = b"\1" * (end - first)
        return True

    def _withdraw(self) -> None:
        """Takes what is free and has no memory behind it out of the arena, for the life of this process."""
        with self._lock:
            for run in self._allocator.free_runs():
                for bare in self._bare_parts(run):
                    self._allocator.claim(bare)
                    self._withdrawn_bytes += bare.length
            left = self.size_bytes - self._withdrawn_bytes
        self.degraded = f"memory for the arena ran out; {left} of {self.size_bytes} bytes are used; give less host memory"

    def _bare_parts(self, run: Extent) -> list[Extent]:
        parts: list[Extent] = []
        for grain in range(run.offset // _GRAIN_BYTES, -(-run.end // _GRAIN_BYTES)):
            if not self._is_backed[grain]:
                start = max(run.offset, grain * _GRAIN_BYTES)
                end = min(run.end, (grain + 1) * _GRAIN_BYTES)
                parts.append(Extent(start, end - start))
        return parts

    def check_integrity(self) -> None:
        with self._lock:
            self._allocator.check_integrity()

    def close(self, *, discard: bool = False) -> None:
        """Unmaps; discard — unlinks the file too. May be called twice."""
        self._map.close()
        self.grants.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if discard:
            self.path.unlink(missing_ok=True)
            self.path.with_name(GRANTS_NAME).unlink(missing_ok=True)
