"""The reference of the disk benchmark: plain sequential file I/O, as fast as this machine lets one thread do it.

One preallocated file, chunks of 16 MiB from and to one warm, aligned buffer, `fdatasync` as often as the store syncs. Direct I/O where the
file system has it, else through the page cache, which is then dropped before reading.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from tierkv.settings import MIB

CHUNK_BYTES = 16 * MIB


class PlainFile:
    """A file of `num_bytes` (a multiple of 16 MiB) that is written and read from start to end.

    direct — ask for O_DIRECT; `is_direct` says whether the file system agreed. Close it; that removes the file.
    """

    def __init__(self, path: Path, num_bytes: int, *, direct: bool) -> None:
        if num_bytes % CHUNK_BYTES:
            raise ValueError(f"the reference file has a multiple of {CHUNK_BYTES} bytes, not {num_bytes}")
        self._path = path
        self._num_bytes = num_bytes
        self._buffer = mmap.mmap(-1, CHUNK_BYTES)  # aligned to a page, as O_DIRECT wants
        self._buffer.write(os.urandom(CHUNK_BYTES))
        self._descriptor, self.is_direct = _open(path, direct=direct)
        os.posix_fallocate(self._descriptor, 0, num_bytes)
        os.fsync(self._descriptor)

    def write_s(self, *, sync_every_bytes: int) -> float:
        """Seconds to write the whole file durably, with an `fdatasync` after each `sync_every_bytes` and at the end."""
        start_s = time.perf_counter()
        unsynced_bytes = 0
        for offset in range(0, self._num_bytes, CHUNK_BYTES):
            _all(os.pwritev(self._descriptor, [self._buffer], offset))
            unsynced_bytes += CHUNK_BYTES
            if unsynced_bytes >= sync_every_bytes or offset + CHUNK_BYTES == self._num_bytes:
                os.fdatasync(self._descriptor)
                unsynced_bytes = 0
        return time.perf_counter() - start_s

    def read_s(self) -> float:
        """Seconds to read the whole file, from the medium: what the page cache holds of it is dropped first, outside the time."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        start_s = time.perf_counter()
        for offset in range(0, self._num_bytes, CHUNK_BYTES):
            _all(os.preadv(self._descriptor, [self._buffer], offset))
        return time.perf_counter() - start_s

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._buffer.close()
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


def _all(moved_bytes: int) -> None:
    if moved_bytes != CHUNK_BYTES:
        raise OSError(f"the reference moved {moved_bytes} of {CHUNK_BYTES} bytes")
