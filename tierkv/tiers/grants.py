"""The grant map: which pages of the arena a client may be writing, in a file beside the arena, so that a restart knows it too.

A client writes through its own map of the arena, and that map outlives the daemon: after kill -9 a client may go on filling what the
dead daemon granted it. Whoever takes the arena over must give those pages to nobody until the client has surely given up.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path

from tierkv.model.outcomes import Extent
from tierkv.tiers.extents import ALIGNMENT_BYTES

GRANTS_NAME = "grants"
_MARK = b"\1"
_CLEAR = b"\0"
_RUN = re.compile(rb"[^\0]+")


class GrantMap:
    """One byte for each 4 KiB page of the arena, zero where no client may write.

    folder — the arena's; arena_bytes — its length; is_new — there was no such arena before, so nobody can be writing.
    Raises OSError where there is no memory for it. Callers hold their own lock.
    """

    def __init__(self, folder: Path, arena_bytes: int, *, is_new: bool) -> None:
        num_pages = arena_bytes // ALIGNMENT_BYTES
        fd = os.open(folder / GRANTS_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if is_new or os.fstat(fd).st_size != num_pages:
                os.ftruncate(fd, 0)
                with open(fd, "wb", closefd=False) as file:
                    file.write(bytes(num_pages))  # and not a hole: a page of a full tmpfs that is touched without memory is SIGBUS
            self._pages = mmap.mmap(fd, num_pages)
        finally:
            os.close(fd)

    def mark(self, extents: Iterable[Extent]) -> None:
        """A client may write there from now on."""
        self._fill(extents, _MARK)

    def clear(self, extents: Iterable[Extent]) -> None:
        """No client writes there any more."""
        self._fill(extents, _CLEAR)

    def _fill(self, extents: Iterable[Extent], value: bytes) -> None:
        for first, stop in _page_runs(extents):
            self._pages[first:stop] = value * (stop - first)

    def touches(self, extent: Extent) -> bool:
        """Whether a client may be writing anywhere in this extent."""
        return self._pages[extent.offset // ALIGNMENT_BYTES : extent.end // ALIGNMENT_BYTES].strip(_CLEAR) != b""

    def runs(self) -> list[Extent]:
        """Every maximal range that clients may be writing, ascending."""
        found = [match.span() for match in _RUN.finditer(self._pages)]
        return [Extent(start * ALIGNMENT_BYTES, (end - start) * ALIGNMENT_BYTES) for start, end in found]

    def close(self) -> None:
        """May be called twice."""
        self._pages.close()


def _page_runs(extents: Iterable[Extent]) -> list[tuple[int, int]]:
    """[first, stop) pages; extents that follow each other, as those of one reservation do, are one run."""
    runs: list[tuple[int, int]] = []
    for extent in extents:
        first, stop = extent.offset // ALIGNMENT_BYTES, extent.end // ALIGNMENT_BYTES
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((first, stop))
    return runs
