"""The reference of the disk benchmark: plain sequential file I/O, as fast as this machine lets one thread do it.

One preallocated file, vectored calls of up to 16 MiB, `fdatasync` as often as the store syncs. Direct I/O where the file system has it,
else through the page cache, which is then dropped before reading. The caller gives the memory, because memory matters as much as the
medium: direct I/O of one file ran at 1.3 or at 3.4 GB/s, steadily, by how the pages of a buffer happened to lie.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tierkv.settings import MIB

CHUNK_BYTES = 16 * MIB


class PlainFile:
    """A file of `num_bytes` (a multiple of 4 KiB) that is written and read from start to end.

    direct — ask for O_DIRECT; `is_direct` says whether the file system agreed. Close it; that removes the file.
    """

    def __init__(self, path: Path, num_bytes: int, *, direct: bool) -> None:
        if num_bytes % mmap.PAGESIZE or num_bytes <= 0:
            raise ValueError(f"the reference file has a multiple of {mmap.PAGESIZE} bytes, not {num_bytes}")
        self._path = path
        self._descriptor, self.is_direct = _open(path, direct=direct)
        os.posix_fallocate(self._descriptor, 0, num_bytes)
        os.fsync(self._descriptor)

    def write_s(self, buffers: Sequence[memoryview], *, sync_every_bytes: int) -> float:
        """Seconds to write the buffers durably one after the other, with an `fdatasync` after each `sync_every_bytes` and at the end."""
        start_s = time.perf_counter()
        offset = synced = 0
        for chunk in _chunks(buffers):
            offset += _whole(os.pwritev(self._descriptor, chunk, offset), chunk)
            if offset - synced >= sync_every_bytes:
                os.fdatasync(self._descriptor)
                synced = offset
        if offset > synced:
            os.fdatasync(self._descriptor)
        return time.perf_counter() - start_s

    def read_s(self, buffers: Sequence[memoryview]) -> float:
        """Seconds to fill the buffers one after the other, from the medium: the page cache is dropped first, outside the time."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        start_s = time.perf_counter()
        offset = 0
        for chunk in _chunks(buffers):
            offset += _whole(os.preadv(self._descriptor, chunk, offset), chunk)
        return time.perf_counter() - start_s

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._path.unlink(missing_ok=True)


def drop_cached(folder: Path) -> None:
    """Drops what the page cache holds of the files below `folder`; only clean pages go, so sync first."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _open(path: Path, *, direct: bool) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    if direct:
        try:
            return os.open(path, flags | os.O_DIRECT, 0o600), True
        except OSError:  # tmpfs and some network file systems: EINVAL
            pass
    return os.open(path, flags, 0o600), False


def _chunks(buffers: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Neighbouring buffers for one call each: as many as make 16 MiB, at least one."""
    chunk: list[memoryview] = []
    num_bytes = 0
    for buffer in buffers:
        if chunk and num_bytes + len(buffer) > CHUNK_BYTES:
            yield chunk
            chunk, num_bytes = [], 0
        chunk.append(buffer)
        num_bytes += len(buffer)
    if chunk:
        yield chunk


def _whole(moved_bytes: int, chunk: list[memoryview]) -> int:
    if moved_bytes != sum(map(len, chunk)):
        raise OSError(f"the reference moved {moved_bytes} of {sum(map(len, chunk))} bytes")
    return moved_bytes
