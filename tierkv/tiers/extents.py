"""Which byte ranges of an arena or of the segment space are free: best fit, coalescing, O(log n).

Leaves to others: what lies in an extent, who may still read it (`tiers/pins`), and locking: callers hold their own lock.
Invariants: free runs are aligned, disjoint, never adjacent (unless a boundary lies between), and never straddle a boundary.
Allocated extents are not tracked, so memory grows with fragmentation and not with blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sortedcontainers import SortedDict, SortedList

from tierkv.errors import InternalError
from tierkv.model.outcomes import Extent

ALIGNMENT_BYTES = 4096


def round_up(length: int, alignment: int = ALIGNMENT_BYTES) -> int:
    """The least multiple of `alignment` that is at least `length`."""
    return -(-length // alignment) * alignment


class ExtentAllocator:
    """Free ranges of [0, capacity_bytes).

    capacity_bytes — rounded down to the alignment; boundary_bytes — extents never straddle a multiple of it (0: no boundary).
    Lengths are rounded up to the alignment; the extents handed out have the rounded length.
    """

    def __init__(self, capacity_bytes: int, alignment: int = ALIGNMENT_BYTES, boundary_bytes: int = 0) -> None:
        if boundary_bytes % alignment:
            raise InternalError("a boundary is a multiple of the alignment", boundary=boundary_bytes, alignment=alignment)
        self.capacity_bytes = capacity_bytes - capacity_bytes % alignment
        self._alignment = alignment
        self._boundary = boundary_bytes
        self._length_at = SortedDict()
        self._by_size = SortedList()
        self._free_bytes = 0
        step = boundary_bytes or self.capacity_bytes
        for offset in range(0, self.capacity_bytes, step or 1):
            self._insert(offset, min(step, self.capacity_bytes - offset))

    @property
    def free_bytes(self) -> int:
        return self._free_bytes

    def free_runs(self) -> list[Extent]:
        """Every maximal free range, ascending."""
        return [Extent(offset, length) for offset, length in self._length_at.items()]

    def allocate(self, length: int) -> Extent | None:
        """The best-fitting free range, lowest offset on ties; None where nothing fits."""
        found = self.allocate_run([length])
        return found[0] if found else None

    def allocate_many(self, count: int, length: int) -> list[Extent]:
        """As many of `count` extents of `length` as fit, adjacent ones if some free run is long enough."""
        return self.allocate_run([length] * count)

    def allocate_run(self, lengths: Sequence[int]) -> list[Extent]:
        """Extents for a leading part of `lengths` (all of them if there is room), in order.

        One contiguous range where a free run holds it, best fit, lowest offset on ties: memory that was used before is warm. Else
        the longest free run takes as many as fit, and so on. Cost: O(n + pieces · log n).
        """
        rounded = [round_up(max(length, 1), self._alignment) for length in lengths]
        rest_bytes = sum(rounded)
        extents: list[Extent] = []
        while len(extents) < len(rounded):
            run = self._best_fit(rest_bytes) or self._longest()
            if run is None or run.length < rounded[len(extents)]:
                break
            self._remove(run.offset, run.length)
            position = run.offset
            while len(extents) < len(rounded) and position + rounded[len(extents)] <= run.end:
                extents.append(Extent(position, rounded[len(extents)]))
                position = extents[-1].end
            rest_bytes -= position - run.offset
            if position < run.end:
                self._insert(position, run.end - position)
        return extents

    def free(self, extent: Extent) -> None:
        """Returns an extent, joined with its free neighbours. Raises InternalError for one that is free already, even in part."""
        self._check_shape(extent)
        offset, end = extent.offset, extent.end
        before, after = self._neighbours(offset)
        if (before is not None and before.end > offset) or (after is not None and after.offset < end):
            raise InternalError("extent is freed twice", offset=offset, length=extent.length)
        if before is not None and before.end == offset and not self._is_boundary(offset):
            self._remove(before.offset, before.length)
            offset = before.offset
        if after is not None and after.offset == end and not self._is_boundary(end):
            self._remove(after.offset, after.length)
            end = after.end
        self._insert(offset, end - offset)

    def claim(self, extent: Extent) -> None:
        """Marks one given range as used. Raises InternalError unless it is free as a whole."""
        self._check_shape(extent)
        run, _ = self._neighbours(extent.offset)
        if run is None or run.end < extent.end:
            raise InternalError("extent is not free", offset=extent.offset, length=extent.length)
        self._remove(run.offset, run.length)
        if run.offset < extent.offset:
            self._insert(run.offset, extent.offset - run.offset)
        if extent.end < run.end:
            self._insert(extent.end, run.end - extent.end)

    def claim_many(self, extents: Iterable[Extent]) -> None:
        """`claim` for many extents in one pass over them and the free runs; all or, on InternalError, none."""
        claimed = sorted(extents, key=lambda extent: extent.offset)
        gaps: list[tuple[int, int]] = []
        position = 0
        for run in self.free_runs():
            start = run.offset
            while position < len(claimed) and claimed[position].offset < run.end:
                extent = claimed[position]
                self._check_shape(extent)
                if extent.offset < start or extent.end > run.end:
                    raise InternalError("extent is not free", offset=extent.offset, length=extent.length)
                if start < extent.offset:
                    gaps.append((start, extent.offset - start))
                start = extent.end
                position += 1
            if start < run.end:
                gaps.append((start, run.end - start))
        if position < len(claimed):
            raise InternalError("extent is not free", offset=claimed[position].offset, length=claimed[position].length)
        self._length_at = SortedDict(gaps)
        self._by_size = SortedList((length, offset) for offset, length in gaps)
        self._free_bytes = sum(length for _, length in gaps)

    def check_integrity(self) -> None:
        """Raises AssertionError where free runs overlap, touch, straddle a boundary, or do not add up."""
        end = -1
        total = 0
        for run in self.free_runs():
            assert self.is_extent(run), run
            assert run.offset > end or (run.offset == end and self._is_boundary(end)), (run, end)
            end = run.end
            total += run.length
        assert end <= self.capacity_bytes
        assert total == self._free_bytes
        assert sorted(self._by_size) == sorted((length, offset) for offset, length in self._length_at.items())

    def is_extent(self, extent: Extent) -> bool:
        """Whether this could be an extent of this space: inside, aligned, across no boundary."""
        inside = extent.offset >= 0 and extent.length > 0 and extent.end <= self.capacity_bytes
        aligned = extent.offset % self._alignment == 0 and extent.length % self._alignment == 0
        straddles = bool(self._boundary) and extent.offset // self._boundary != (extent.end - 1) // self._boundary
        return inside and aligned and not straddles

    def is_free(self, extent: Extent) -> bool:
        """Whether a range is free as a whole."""
        run, _ = self._neighbours(extent.offset)
        return run is not None and run.end >= extent.end

    def _check_shape(self, extent: Extent) -> None:
        if not self.is_extent(extent):
            raise InternalError("no extent of this space", offset=extent.offset, length=extent.length)

    def _is_boundary(self, offset: int) -> bool:
        return bool(self._boundary) and offset % self._boundary == 0

    def _neighbours(self, offset: int) -> tuple[Extent | None, Extent | None]:
        """The free run that starts at or before `offset`, and the one after."""
        position = self._length_at.bisect_right(offset)
        before = Extent(*self._length_at.peekitem(position - 1)) if position > 0 else None
        after = Extent(*self._length_at.peekitem(position)) if position < len(self._length_at) else None
        return before, after

    def _best_fit(self, length: int) -> Extent | None:
        position = self._by_size.bisect_left((length, -1))
        if position == len(self._by_size):
            return None
        found, offset = self._by_size[position]
        return Extent(offset, found)

    def _longest(self) -> Extent | None:
        return self._best_fit(self._by_size[-1][0]) if self._by_size else None

    def _insert(self, offset: int, length: int) -> None:
        self._length_at[offset] = length
        self._by_size.add((length, offset))
        self._free_bytes += length

    def _remove(self, offset: int, length: int) -> None:
        del self._length_at[offset]
        self._by_size.remove((length, offset))
        self._free_bytes -= length
