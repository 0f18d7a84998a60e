"""The arena mapped into this process: views of ranges, and page tables filled ahead of use. For the daemon and for clients.

Leaves the file itself, its backing and its extents to `tierkv.tiers.arena`. No tier is imported here.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from tierkv.errors import ClosedError, InternalError

_MADV_POPULATE_WRITE = 23
"""Linux 5.14; `linux/mman.h`."""


class ArenaMap:
    """A shared mapping of `size_bytes` of the file `fd`, which stays the caller's to close.

    writable — whether views may be written. Views stay valid for as long as someone holds them, even past `close`.
    """

    def __init__(self, fd: int, size_bytes: int, *, writable: bool = True) -> None:
        found = os.fstat(fd).st_size
        if found < size_bytes:
            # Touching a mapped page behind the end of the file is SIGBUS, not an error.
            raise InternalError("the arena file is shorter than its map", length=found, size=size_bytes)
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.size_bytes = size_bytes
        self._writable = writable
        self._mapping: mmap.mmap | None = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, protection)
        self._bytes = memoryview(self._mapping)

    def view(self, offset: int, length: int) -> memoryview:
        """The bytes [offset, offset + length). Raises ClosedError after close, InternalError outside the arena."""
        if self._mapping is None:
            raise ClosedError("the arena map is closed")
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise InternalError("range lies outside the arena", offset=offset, length=length, size=self.size_bytes)
        return self._bytes[offset : offset + length]

    def populate(self, offset: int, length: int) -> None:
        """Fills the page tables of a range, so that its first use costs no faults; allocates memory where there is none yet.

        Blocks without the GIL. Silently does nothing where the kernel cannot or the memory is short: it is only ever a speed-up.
        """
        if self._mapping is None or not self._writable or length <= 0:
            return
        start = offset - offset % mmap.PAGESIZE
        # mmap.madvise would hold the GIL for as long as the kernel needs; a ctypes call does not.
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        _libc.madvise(ctypes.c_void_p(base + start), ctypes.c_size_t(offset + length - start), _MADV_POPULATE_WRITE)

    def close(self) -> None:
        """Ends the map; memory is unmapped when the last view is gone. May be called twice."""
        mapping, self._mapping = self._mapping, None
        if mapping is None:
            return
        self._bytes.release()
        try:
            mapping.close()
        except BufferError:
            # Views are still out. They keep the mapping alive and the collector unmaps it after the last of them.
            del mapping


_libc = ctypes.CDLL(None)
