"""File access of the disk tier as a role, so that tests can put a disk that lies, fills up or dies in its place.

`FileIO` uses O_DIRECT where the file system takes it: then buffers, lengths and offsets must be multiples of 4 KiB, which
`segments` sees to, and what was written does not stay in the page cache twice.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
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
    """The medium: segment files, and the moment at which an index transaction becomes durable."""

    def prepare(self, path: Path, length: int) -> None:
        """Sees to a file of at least `length` preallocated bytes whose name and length are durable. Raises OSError."""
        ...

    def open(self, path: Path) -> SegmentFile:
        """Opens a file that exists. Raises OSError (FileNotFoundError)."""
        ...

    def commit(self, commit: Callable[[], None]) -> None:
        """Runs the commit of an index transaction. It is here so that a medium can die before or after it."""
        ...


class FileIO:
    """The operating system's files. direct — try O_DIRECT."""

    def __init__(self, *, direct: bool) -> None:
        self._direct = direct

    def prepare(self, path: Path, length: int) -> None:
        is_new = not path.exists()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Also for a file that is long enough: whoever made it may have died before its name was durable.
            if os.fstat(fd).st_size < length:
                os.posix_fallocate(fd, 0, length)
            os.fsync(fd)
            sync_folder(path.parent)
        except OSError:
            if is_new:
                path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def open(self, path: Path) -> SegmentFile:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        if self._direct:
            try:
                return _File(os.open(path, flags | os.O_DIRECT))
            except OSError as error:
                if error.errno != errno.EINVAL:  # tmpfs and some network file systems have no O_DIRECT
                    raise
                self._direct = False
        return _File(os.open(path, flags))

    def commit(self, commit: Callable[[], None]) -> None:
        commit()


class _File:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        rest = list(buffers)
        while rest:
            written = os.pwritev(self._fd, rest[:IOV_LIMIT], offset)
            if written == 0:
                raise OSError(errno.EIO, "nothing could be written")
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
