"""The segment space: one address space over preallocated files, in which frames lie in 4 KiB-aligned extents.

Runs of adjacent frames move with one vectored call, straight between the caller's memory and the file where the memory is
page-aligned, else through an aligned buffer. It knows neither keys nor records. Layout: `docs/format.md`, "Segments".
"""

from __future__ import annotations

import mmap
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
_SEGMENT_NAME_DIGITS = 8


def frame_bytes(payload_bytes: int) -> int:
    """Bytes of the extent for one payload."""
    return HEADER_PAGE_BYTES + round_up(payload_bytes)


@dataclass(frozen=True, slots=True)
class FrameBuffers:
    """A frame to move: its place, its header (read: at least as long as asked for) and its payload, exact length."""

    extent: Extent
    header: memoryview
    payload: memoryview


class SegmentSpace:
    """Segment files under `folder`, opened and made as they are needed."""

    def __init__(self, folder: Path, *, segment_bytes: int, capacity_bytes: int, io: SegmentIO) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._capacity_bytes = capacity_bytes
        self._io = io
        self._files: dict[int, SegmentFile] = {}
        self._lock = threading.Lock()

    def place_name(self, extent: Extent) -> str:
        """File and offset, for people."""
        number, offset = divmod(extent.offset, self._segment_bytes)
        return f"segments/{self._name(number)} at {offset}"

    def write(self, frames: Sequence[FrameBuffers]) -> None:
        """Writes frames and syncs the files they touch. Raises OSError, with nothing promised about any of them."""
        touched: set[int] = set()
        for run in _runs(frames, self._segment_bytes):
            number, offset = divmod(run[0].extent.offset, self._segment_bytes)
            self._file(number).write(_write_buffers(run), offset)
            touched.add(number)
        for number in sorted(touched):
            self._file(number).sync()

    def read(self, frames: Sequence[FrameBuffers]) -> list[str | None]:
        """Fills headers and payloads; for each frame what went wrong, or None. Never raises OSError."""
        problems: list[str | None] = []
        for run in _runs(frames, self._segment_bytes):
            found = self._read_run(run)
            if len(run) > 1 and any(problem is not None for problem in found):
                found = [self._read_run([frame])[0] for frame in run]  # one bad sector must not cost its neighbours
            problems.extend(found)
        return problems

    def _read_run(self, run: list[FrameBuffers]) -> list[str | None]:
        number, offset = divmod(run[0].extent.offset, self._segment_bytes)
        headers = memoryview(mmap.mmap(-1, HEADER_PAGE_BYTES * len(run)))
        payloads = [_aligned_or_bounce(frame.payload) for frame in run]
        buffers: list[memoryview] = []
        for position, payload in enumerate(payloads):
            buffers += [headers[position * HEADER_PAGE_BYTES : (position + 1) * HEADER_PAGE_BYTES], payload]
        try:
            found = self._existing_file(number).read(buffers, offset)
        except OSError as error:
            return [f"the segment cannot be read: {error.strerror or error}"] * len(run)
        problems: list[str | None] = []
        end = 0
        for position, (frame, payload) in enumerate(zip(run, payloads, strict=True)):
            end += HEADER_PAGE_BYTES + len(payload)
            if end > found:
                problems.append("the segment ends before the frame does")
                continue
            start = position * HEADER_PAGE_BYTES
            frame.header[:] = headers[start : start + len(frame.header)]
            if payload is not frame.payload:
                frame.payload[:] = payload[: len(frame.payload)]
            problems.append(None)
        return problems

    def close(self) -> None:
        """May be called twice."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _file(self, number: int) -> SegmentFile:
        """The file of a segment, made where it does not exist yet."""
        with self._lock:
            file = self._files.get(number)
            if file is None:
                length = min(self._segment_bytes, self._capacity_bytes - number * self._segment_bytes)
                file = self._files[number] = self._io.open(self._folder / self._name(number), length)
            return file

    def _existing_file(self, number: int) -> SegmentFile:
        """Reading must not make files: a missing one is a problem of its frames."""
        if number not in self._files and not (self._folder / self._name(number)).exists():
            raise FileNotFoundError(2, "the segment file is missing")
        return self._file(number)

    @staticmethod
    def _name(number: int) -> str:
        return f"{number:0{_SEGMENT_NAME_DIGITS}d}.seg"


def _runs(frames: Iterable[FrameBuffers], segment_bytes: int) -> Iterator[list[FrameBuffers]]:
    """Groups frames that follow each other in one segment, in the order given, up to the bound of one vectored call."""
    run: list[FrameBuffers] = []
    for frame in frames:
        if run:
            last = run[-1].extent
            is_adjacent = last.end == frame.extent.offset and frame.extent.offset % segment_bytes != 0
            if not is_adjacent or len(run) == _RUN_FRAMES:
                yield run
                run = []
        run.append(frame)
    if run:
        yield run


def _write_buffers(run: list[FrameBuffers]) -> list[memoryview]:
    headers = memoryview(mmap.mmap(-1, HEADER_PAGE_BYTES * len(run)))
    buffers: list[memoryview] = []
    for position, frame in enumerate(run):
        start = position * HEADER_PAGE_BYTES
        headers[start : start + len(frame.header)] = frame.header
        payload = _aligned_or_bounce(frame.payload)
        if payload is not frame.payload:
            payload[: len(frame.payload)] = frame.payload
        buffers += [headers[start : start + HEADER_PAGE_BYTES], payload]
    return buffers


def _aligned_or_bounce(payload: memoryview) -> memoryview:
    """The buffer itself where direct I/O can use it, else an aligned one of the rounded length."""
    address = np.frombuffer(payload, np.uint8).__array_interface__["data"][0] if len(payload) else 1
    if address % ALIGNMENT_BYTES == 0 and len(payload) % ALIGNMENT_BYTES == 0:
        return payload
    return memoryview(mmap.mmap(-1, max(round_up(len(payload)), ALIGNMENT_BYTES)))
