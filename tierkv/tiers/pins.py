"""Extents that are being read must not be reused: a delete that overtakes a read waits here until the last reader left.

Callers hold the lock of the tier around every method; nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

from tierkv.model.outcomes import Extent
from tierkv.tiers.extents import ExtentAllocator


class ReadPins:
    """Counts readers by extent and frees extents in `allocator` once nobody reads them."""

    def __init__(self, allocator: ExtentAllocator) -> None:
        self._allocator = allocator
        self._readers: dict[int, int] = {}
        self._waiting: dict[int, Extent] = {}

    def hold(self, extents: Iterable[Extent]) -> None:
        """One more reader for each."""
        for extent in extents:
            self._readers[extent.offset] = self._readers.get(extent.offset, 0) + 1

    def drop(self, extents: Iterable[Extent]) -> None:
        """One reader less for each; the last one frees what was given back meanwhile."""
        for extent in extents:
            left = self._readers[extent.offset] - 1
            if left:
                self._readers[extent.offset] = left
                continue
            del self._readers[extent.offset]
            freed = self._waiting.pop(extent.offset, None)
            if freed is not None:
                self._allocator.free(freed)

    def free(self, extents: Iterable[Extent]) -> None:
        """Frees extents now, or when their last reader leaves."""
        for extent in extents:
            if extent.offset in self._readers:
                self._waiting[extent.offset] = extent
            else:
                self._allocator.free(extent)

    def waiting(self) -> list[Extent]:
        """Extents that belong to no block any more and are still being read."""
        return list(self._waiting.values())
