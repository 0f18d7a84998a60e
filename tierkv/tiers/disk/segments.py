"""The segment space: one address space over preallocated files, in which frames lie in 4 KiB-aligned extents.

Runs of adjacent frames move with one vectored call, straight between the caller's memory and the file where the memory is
page-aligned, else through an aligned buffer. It knows neither keys nor records. Layout: `docs/format.md`, "Segments".
"""

from __future__ import annotations

import mmap
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tierkv.model.outcomes import Extent
from tierkv.tiers.disk.io import IOV_LIMIT, SegmentFile, SegmentIO
from tierkv.tiers.extents import ALIGNMENT_BYTES, round_up

HEADER_PAGE_BYTES = ALIGNMENT_BYTES
_RUN_FRAMES = IOV_LIMIT // 2
"""A frame takes two buffers of a vectored call."""
_RUN_BYTES = 32 << 20
"""Most bytes of one vectored call, unless one frame is longer; larger calls are no faster, and it bounds the aligned buffers."""
_SEGMENT_NAME = re.compile(r"(\d{8})\.seg")


def frame_bytes(payload_bytes: int) -> int:
    """Bytes of the extent for one payload."""
    return HEADER_PAGE_BYTES + round_up(payload_bytes)


@dataclass(frozen=True, slots=True)
class FrameBuffers:
    """A frame to move: its place, its header (read: as long as wanted) and its payload, exact length."""

    extent: Extent
    header: memoryview
    payload: memoryview


class SegmentSpace:
    """Segment files under `folder`. Reads may come from many threads; `prepare` and `write` from one at a time."""

    def __init__(self, folder: Path, *, segment_bytes: int, capacity_bytes: int, io: SegmentIO) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._capacity_bytes = capacity_bytes
        self._io = io
        self._files: dict[int, SegmentFile] = {}
        self._prepared: set[int] = set()
        self._lock = threading.Lock()  # over the table of open files
        self._scratch = threading.local()

    def place_name(self, extent: Extent) -> str:
        """File and offset, for people."""
        number, offset = divmod(extent.offset, self._segment_bytes)
        return f"segments/{_name(number)} at {offset}"

    # -- files

    def range_of(self, number: int) -> Extent:
        """The addresses of a segment."""
        start = number * self._segment_bytes
        return Extent(start, min(self._segment_bytes, self._capacity_bytes - start))

    def existing(self) -> list[int]:
        """Numbers of the segments that have a file, ascending."""
        names = (_SEGMENT_NAME.fullmatch(entry.name) for entry in self._folder.iterdir())
        count = -(-self._capacity_bytes // self._segment_bytes)
        return sorted(number for name in names if name is not None and (number := int(name[1])) < count)

    def trim(self) -> None:
        """Takes away what lies beyond the capacity, when it was lowered. Nothing that is indexed may lie there any more."""
        count = -(-self._capacity_bytes // self._segment_bytes)
        for entry in list(self._folder.iterdir()):
            name = _SEGMENT_NAME.fullmatch(entry.name)
            if name is None:
                continue
            if int(name[1]) >= count:
                entry.unlink()
            elif entry.stat().st_size > self.range_of(int(name[1])).length:
                os.truncate(entry, self.range_of(int(name[1])).length)

    def prepare(self, number: int) -> None:
        """Makes a segment's file, preallocated and durable by name; blocks. Raises OSError where the medium has no room."""
        self._io.prepare(self._folder / _name(number), self.range_of(number).length)
        self._prepared.add(number)

    def close(self) -> None:
        """May be called twice."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _file(self, number: int) -> SegmentFile:
        with self._lock:
            file = self._files.get(number)
            if file is None:
                file = self._files[number] = self._io.open(self._folder / _name(number))
            return file

    # -- frames

    def write(self, frames: Sequence[FrameBuffers]) -> None:
        """Writes frames and syncs the files they touch. Raises OSError, with nothing promised about any of them."""
        touched: set[int] = set()
        for run in _runs(frames, self._segment_bytes):
            number, offset = divmod(run[0].extent.offset, self._segment_bytes)
            if number not in self._prepared:  # an earlier process may have died before the file was whole and its name durable
                self.prepare(number)
            self._file(number).write(self._filled_buffers(run), offset)
            touched.add(number)
        for number in sorted(touched):
            self._file(number).sync()

    def read(self, frames: Sequence[FrameBuffers]) -> list[str | None]:
        """Fills headers and payloads; for each frame what went wrong, or None. Never raises OSError.

        Frames are read in the order given: ascending extents make the longest runs.
        """
        problems: list[str | None] = []
        for run in _runs(frames, self._segment_bytes):
            found = self._read_run(run)
            if len(run) > 1 and any(problem is not None for problem in found):
                found = [self._read_run([frame])[0] for frame in run]  # one bad sector must not cost its neighbours
            problems.extend(found)
        return problems

    def _read_run(self, run: list[FrameBuffers]) -> list[str | None]:
        number, offset = divmod(run[0].extent.offset, self._segment_bytes)
        headers, payloads = self._buffers(run)
        try:
            found = self._file(number).read(_interleave(headers, payloads), offset)
        except OSError as error:
            return [f"the segment cannot be read: {error.strerror or error}"] * len(run)
        problems: list[str | None] = []
        end = 0
        for frame, header, payload in zip(run, headers, payloads, strict=True):
            end += HEADER_PAGE_BYTES + len(payload)
            if end > found:
                problems.append("the segment ends before the frame does")
                continue
            frame.header[:] = header[: len(frame.header)]
            if payload is not frame.payload:
                frame.payload[:] = payload[: len(frame.payload)]
            problems.append(None)
        return problems

    def _filled_buffers(self, run: list[FrameBuffers]) -> list[memoryview]:
        headers, payloads = self._buffers(run)
        for frame, header, payload in zip(run, headers, payloads, strict=True):
            header[: len(frame.header)] = frame.header
            if payload is not frame.payload:
                payload[: len(frame.payload)] = frame.payload
        return _interleave(headers, payloads)

    def _buffers(self, run: list[FrameBuffers]) -> tuple[list[memoryview], list[memoryview]]:
        """Zeroed header pages, and for each payload itself where direct I/O can use it, else an aligned part of the scratch."""
        pages = memoryview(mmap.mmap(-1, HEADER_PAGE_BYTES * len(run)))
        headers = [pages[start : start + HEADER_PAGE_BYTES] for start in range(0, len(pages), HEADER_PAGE_BYTES)]
        is_usable = [_is_aligned(frame.payload) for frame in run]
        lengths = [0 if usable else round_up(len(frame.payload)) for frame, usable in zip(run, is_usable, strict=True)]
        scratch = self._scratch_of(sum(lengths))
        payloads: list[memoryview] = []
        start = 0
        for frame, usable, length in zip(run, is_usable, lengths, strict=True):
            payloads.append(frame.payload if usable else scratch[start : start + length])
            start += length
        return headers, payloads

    def _scratch_of(self, length: int) -> memoryview:
        """Aligned memory of this thread, kept from call to call: memory touched for the first time is slow."""
        scratch: memoryview | None = getattr(self._scratch, "memory", None)
        if scratch is None or len(scratch) < length:
            scratch = memoryview(mmap.mmap(-1, max(length, HEADER_PAGE_BYTES)))
            self._scratch.memory = scratch
        return scratch


def _name(number: int) -> str:
    return f"{number:08d}.seg"


def _interleave(headers: list[memoryview], payloads: list[memoryview]) -> list[memoryview]:
    return [buffer for pair in zip(headers, payloads, strict=True) for buffer in pair]


def _runs(frames: Iterable[FrameBuffers], segment_bytes: int) -> Iterator[list[FrameBuffers]]:
    """Groups frames that follow each other in one segment, in the order given, up to the bounds of one vectored call."""
    run: list[FrameBuffers] = []
    for frame in frames:
        if run:
            last = run[-1].extent
            is_adjacent = last.end == frame.extent.offset and frame.extent.offset % segment_bytes != 0
            is_full = len(run) == _RUN_FRAMES or frame.extent.end - run[0].extent.offset > _RUN_BYTES
            if not is_adjacent or is_full:
                yield run
                run = []
        run.append(frame)
    if run:
        yield run


def _is_aligned(payload: memoryview) -> bool:
    """Whether direct I/O can use a buffer as it is."""
    if len(payload) == 0 or len(payload) % ALIGNMENT_BYTES:
        return False
    address: int = np.frombuffer(payload, np.uint8).__array_interface__["data"][0]
    return address % ALIGNMENT_BYTES == 0
