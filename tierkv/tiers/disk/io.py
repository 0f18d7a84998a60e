"""File access of the disk tier as a role, so that tests can put a disk that lies, fills up or dies in its place.

`FileIO` uses O_DIRECT where the file system takes it: then buffers, lengths and offsets must be multiples of 4 KiB, which
`segments` sees to, and what was written does not stay in the page cache twice.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tierkv.tiers.disk.folder import sync_folder

IOV_LIMIT = 1024
"""Most buffers of one vectored call (Linux UIO_MAXIOV)."""


class SegmentFile(Protocol):
    """One open segment file. Every method may raise OSError."""

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Writes all buffers, one after the other, from `offset` on."""
        ...

    def read(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Fills the buffers from `offset` on; returns how many bytes there were (less at the file's end)."""
        ...

    def sync(self) -> None:
        """Returns when everything written is durable."""
        ...

    def close(self) -> None: ...


class SegmentIO(Protocol):
    """Opens segment files."""

    def open(self, path: Path, length: int) -> SegmentFile:
        """Opens a file, or makes and preallocates it with `length` bytes; its name is durable on return."""
        ...


class FileIO:
    """The operating system's files. direct — try O_DIRECT."""

    def __init__(self, *, direct: bool) -> None:
        self._direct = direct

    def open(self, path: Path, length: int) -> SegmentFile:
        is_new = not path.exists()
        fd = self._open_fd(path)
        try:
            if is_new:
                os.posix_fallocate(fd, 0, length)
                os.fsync(fd)
                sync_folder(path.parent)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return _File(fd)

    def _open_fd(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        if self._direct:
            try:
                return os.open(path, flags | os.O_DIRECT, 0o600)
            except OSError as error:
                if error.errno != errno.EINVAL:  # tmpfs and some network file systems have no O_DIRECT
                    raise
                self._direct = False
        return os.open(path, flags, 0o600)


class _File:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        rest = list(buffers)
        while rest:
            written = os.pwritev(self._fd, rest[:IOV_LIMIT], offset)
            offset += written
            rest = _after(rest, written)

    def read(self, buffers: Sequence[memoryview], offset: int) -> int:
        rest = list(buffers)
        total = 0
        while rest:
            found = os.preadv(self._fd, rest[:IOV_LIMIT], offset + total)
            if found == 0:
                break
            total += found
            rest = _after(rest, found)
        return total

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _after(buffers: list[memoryview], num_bytes: int) -> list[memoryview]:
    """The buffers without their first `num_bytes` bytes: the kernel may do less than it was asked for."""
    for position, buffer in enumerate(buffers):
        if num_bytes < len(buffer):
            return [buffer[num_bytes:], *buffers[position + 1 :]]
        num_bytes -= len(buffer)
    return []
