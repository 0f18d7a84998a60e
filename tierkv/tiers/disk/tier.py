"""The disk tier: blocks as frames in segments, found through the index, checked on every read.

Order of a write: frames, sync, index commit, acknowledgement. Order of a delete: index commit, then the extent may be reused. A copy
that cannot be read or believed goes to quarantine and is never served again. A medium that is full or fails makes `put` answer
NO_SPACE and shows in `degraded`. Formats: `docs/format.md`.

Locks: `_writing` lets one `put` at a time do its I/O, because a failed sync is reported once, and of two writers only one would
learn that its bytes are lost. `_lock` guards allocator and pins, for moments; no frame is read or written under it, only the index
looked up, and readers need no other.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lmdb

from tierkv.errors import DataError, InvalidRequestError, UnavailableError
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import BlockRecord, Extent, TierName
from tierkv.settings import DiskSettings
from tierkv.tiers.base import Buffer, Framer, GetOutcome, PutOutcome
from tierkv.tiers.disk.folder import sync_folder
from tierkv.tiers.disk.index import DiskIndex, Quarantined
from tierkv.tiers.disk.io import FileIO, SegmentIO
from tierkv.tiers.disk.recovery import claim_recorded
from tierkv.tiers.disk.segments import FrameBuffers, SegmentSpace, frame_bytes
from tierkv.tiers.extents import ALIGNMENT_BYTES, ExtentAllocator
from tierkv.tiers.pins import ReadPins
from tierkv.tiers.records import Placed

_log = logging.getLogger(__name__)


class DiskTier:
    """Blocks on disk.

    folder — the data folder, locked by the caller; framer — makes and checks frame headers; io — how files are reached.
    Raises DataError for an index that cannot be opened, InvalidRequestError for a segment size that cannot be.
    """

    name = TierName.DISK

    def __init__(self, folder: Path, settings: DiskSettings, framer: Framer, *, io: SegmentIO | None = None) -> None:
        if settings.segment_bytes <= 0 or settings.segment_bytes % ALIGNMENT_BYTES:
            raise InvalidRequestError("a segment is a multiple of 4096 bytes", segment_bytes=settings.segment_bytes)
        self.capacity_bytes = settings.capacity_bytes - settings.capacity_bytes % ALIGNMENT_BYTES
        self.degraded: str | None = None
        self._settings = settings
        self._framer = framer
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        medium = io or FileIO(direct=settings.direct_io)
        self._index_path = folder / "index"
        with ExitStack() as opened, self._index_readable():
            self._index = DiskIndex(
                self._index_path,
                capacity_bytes=self.capacity_bytes,
                segment_bytes=settings.segment_bytes,
                commit=medium.commit,
            )
            opened.callback(self._index.close)
            self._space = SegmentSpace(
                folder / "segments",
                segment_bytes=self._index.segment_bytes,
                capacity_bytes=self.capacity_bytes,
                io=medium,
            )
            self._allocator = ExtentAllocator(self.capacity_bytes, boundary_bytes=self._index.segment_bytes)
            self._pins = ReadPins(self._allocator)
            claim_recorded(self._index, self._allocator)
            self._space.trim()
            self._unmade_bytes = 0
            self._missing = self._withhold_missing()
            sync_folder(self._index_path)
            sync_folder(folder)
            opened.pop_all()

    def _withhold_missing(self) -> list[int]:
        """Takes segments without a file out of the allocator until `_grow` makes them; their numbers, the lowest last.

        A segment that was lost with blocks in it stays in: reading those blocks finds out, and writing to it makes it again.
        """
        existing = set(self._space.existing())
        missing: list[int] = []
        num_lost = 0
        for number in range(-(-self.capacity_bytes // self._index.segment_bytes)):
            if number not in existing and self._allocator.is_free(self._space.range_of(number)):
                self._allocator.claim(self._space.range_of(number))
                self._unmade_bytes += self._space.range_of(number).length
                missing.append(number)
            elif number not in existing:
                num_lost += 1
        if num_lost:
            _log.warning("%d segment files are missing; the blocks in them are lost", num_lost)
        return missing[::-1]

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self.capacity_bytes - self._allocator.free_bytes - self._unmade_bytes

    def footprint_bytes(self, payload_bytes: int) -> int:
        return frame_bytes(payload_bytes)

    def __contains__(self, key: BlockKey) -> bool:
        return self.record(key) is not None

    def __len__(self) -> int:
        with self._index_readable():
            return len(self._index)

    @contextmanager
    def _index_readable(self) -> Iterator[None]:
        """Raises DataError where LMDB finds the index damaged."""
        try:
            yield
        except lmdb.Error as error:
            raise DataError(
                "the disk index cannot be read; it is damaged, or its disk is full; without it the tier starts empty",
                path=self._index_path,
                error=error,
            ) from error

    def _look_up(self, keys: Sequence[BlockKey]) -> list[Placed | None]:
        try:
            return self._index.get(keys)
        except lmdb.Error as error:
            raise UnavailableError("the disk index cannot be read", error=error) from error

    def record(self, key: BlockKey) -> BlockRecord | None:
        placed = self._look_up([key])[0]
        return None if placed is None else placed[0]

    def records(self) -> Iterator[BlockRecord]:
        with self._index_readable():
            placed = self._index.all()
        return (record for record, _ in placed)

    # -- put

    def put(self, items: Sequence[tuple[BlockRecord, Buffer]]) -> list[PutOutcome]:
        if any(len(payload) != record.payload_bytes for record, payload in items):
            raise InvalidRequestError("a payload does not have the length that its record states")
        with self._writing:
            return self._put(items)

    def _put(self, items: Sequence[tuple[BlockRecord, Buffer]]) -> list[PutOutcome]:
        held = self._look_up([record.key for record, _ in items])
        outcomes = [PutOutcome.ALREADY] * len(items)
        fresh: dict[BlockKey, int] = {}
        for idx, (record, _) in enumerate(items):
            if held[idx] is None:
                fresh.setdefault(record.key, idx)  # a key that comes twice is held already the second time
        wanted = [items[idx] for idx in fresh.values()]
        headers = [memoryview(self._framer.seal(record)) for record, _ in wanted]
        extents = self._allocate([frame_bytes(len(payload)) for _, payload in wanted])
        is_stored = self._store(wanted[: len(extents)], headers, extents)
        if is_stored and len(extents) == len(wanted):
            self.degraded = None
        for position, (record, _) in enumerate(wanted):
            outcomes[fresh[record.key]] = PutOutcome.STORED if is_stored and position < len(extents) else PutOutcome.NO_SPACE
        for idx, (record, _) in enumerate(items):
            if fresh.get(record.key, idx) != idx and outcomes[fresh[record.key]] is PutOutcome.NO_SPACE:
                outcomes[idx] = PutOutcome.NO_SPACE
        return outcomes

    def _allocate(self, lengths: Sequence[int]) -> list[Extent]:
        """Extents for a leading part: from what is there, then from a new segment, then at the cost of what is in quarantine."""
        extents: list[Extent] = []
        while True:
            with self._lock:
                extents += self._allocator.allocate_run(lengths[len(extents) :])
            if len(extents) == len(lengths) or not (self._grow() or self._drop_oldest_quarantined()):
                return extents

    def _grow(self) -> bool:
        """Makes one more segment; False when there is none left to make, or the medium has no room for it."""
        if not self._missing:
            return False
        number = self._missing[-1]
        try:
            self._space.prepare(number)
        except OSError as error:
            self._refuse(0, error)
            return False
        with self._lock:
            self._missing.pop()
            self._unmade_bytes -= self._space.range_of(number).length
            self._allocator.free(self._space.range_of(number))
        return True

    def _store(self, items: Sequence[tuple[BlockRecord, Buffer]], headers: Sequence[Buffer], extents: Sequence[Extent]) -> bool:
        """Writes, syncs, indexes; False, with the extents given back, when the medium refused."""
        if not items:
            return True
        placed = [(record, extent) for (record, _), extent in zip(items, extents, strict=True)]
        frames = [
            FrameBuffers(extent, header, payload)
            for (_, payload), header, extent in zip(items, headers, extents, strict=False)  # headers also of what has no place
        ]
        try:
            self._space.write(frames)
            self._index.put(placed)
        except Exception as error:
            with self._lock:
                self._pins.free(extents)
            if not isinstance(error, OSError | lmdb.Error):
                raise
            self._refuse(len(items), error)
            return False
        return True

    def _refuse(self, num_blocks: int, error: Exception) -> None:
        self.degraded = f"the disk refuses writes ({error}); RAM keeps serving"
        _log.warning("%s; %d blocks are not stored", self.degraded, num_blocks)

    # -- get

    def get(self, keys: Sequence[BlockKey], targets: Sequence[Buffer]) -> list[GetOutcome]:
        with self._lock:  # a delete must not free an extent between the look-up and the hold
            placed = self._look_up(keys)
            held = [item[1] for item in placed if item is not None]
            self._pins.hold(held)
        try:
            return self._read(placed, targets)
        finally:
            with self._lock:
                self._pins.drop(held)

    def _read(self, placed: Sequence[Placed | None], targets: Sequence[Buffer]) -> list[GetOutcome]:
        found = [(idx, item) for idx, item in enumerate(placed) if item is not None]
        found.sort(key=lambda pair: pair[1][1].offset)
        outcomes = [GetOutcome.MISS] * len(placed)
        damaged: list[tuple[Placed, str]] = []
        wanted: list[tuple[int, Placed, FrameBuffers]] = []
        for idx, item in found:
            if frame_bytes(item[0].payload_bytes) != item[1].length:
                outcomes[idx] = GetOutcome.DAMAGED
                damaged.append((item, "the index gives the payload another length than its extent"))
            elif len(targets[idx]) != item[0].payload_bytes:
                raise InvalidRequestError(
                    "a target does not have the length of its payload", length=len(targets[idx]), payload=item[0].payload_bytes
                )
            else:
                header = memoryview(bytearray(self._framer.header_bytes))
                wanted.append((idx, item, FrameBuffers(item[1], header, targets[idx])))
        problems = self._check_all([(item[0], frame) for _, item, frame in wanted])
        for (idx, item, _), problem in zip(wanted, problems, strict=True):
            outcomes[idx] = GetOutcome.HIT if problem is None else GetOutcome.DAMAGED
            if problem is not None:
                damaged.append((item, problem))
        if damaged:
            self._isolate(damaged)
        return outcomes

    def _check_all(self, frames: Sequence[tuple[BlockRecord, FrameBuffers]]) -> list[str | None]:
        """Reads frames and checks them; for each what is wrong, or None."""
        problems = self._space.read([frame for _, frame in frames])
        return [problem or self._problem_of(record, frame) for (record, frame), problem in zip(frames, problems, strict=True)]

    def _problem_of(self, record: BlockRecord, frame: FrameBuffers) -> str | None:
        try:
            self._framer.check(record, frame.header, frame.payload)
        except DataError as error:
            return str(error)
        return None

    # -- forget

    def delete(self, keys: Iterable[BlockKey]) -> int:
        """Raises UnavailableError when the index refuses the change; the blocks are then still held."""
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return 0
        try:
            extents = self._index.delete(wanted)
        except (OSError, lmdb.Error) as error:
            raise UnavailableError("the disk index cannot be written; nothing was deleted", error=error) from error
        with self._lock:
            self._pins.free(extents)
        return len(extents)

    def _isolate(self, damaged: Sequence[tuple[Placed, str]]) -> None:
        for (record, extent), problem in damaged:
            place = self._space.place_name(extent)
            _log.warning("a damaged frame is quarantined: key %s, %s: %s", record.key.hex()[:16], place, problem)
        try:
            pushed_out = self._index.quarantine(damaged, limit=self._settings.quarantine_entries)
        except (OSError, lmdb.Error) as error:
            # It stays indexed: the next read finds the same damage and tries again. Nothing damaged was served.
            self.degraded = f"the disk index cannot be written ({error}); damaged frames stay where they are"
            return
        with self._lock:
            self._pins.free(pushed_out)

    def _drop_oldest_quarantined(self) -> bool:
        try:
            extents = self._index.forget_oldest_quarantined()
        except (OSError, lmdb.Error) as error:
            self._refuse(0, error)
            return False
        with self._lock:
            self._pins.free(extents)
        return bool(extents)

    # -- care

    def quarantined(self) -> list[Quarantined]:
        """What is set aside, oldest first."""
        with self._index_readable():
            return self._index.quarantined()

    def scrub(self) -> Iterator[tuple[BlockRecord, str, str | None]]:
        """Reads and checks every frame in the order of the disk: (record, place, what is wrong or None). Moves nothing."""
        memory = memoryview(mmap.mmap(-1, ALIGNMENT_BYTES))
        with self._index_readable():
            placed = self._index.all()
        for record, extent in sorted(placed, key=lambda item: item[1].offset):
            if len(memory) < extent.length:
                memory = memoryview(mmap.mmap(-1, extent.length))
            with self._lock:
                held = self._index.get([record.key])[0]
                if held is None or held[1] != extent:
                    continue  # deleted meanwhile
                self._pins.hold([extent])
            try:
                problem = self._scrub_one(record, extent, memory)
            finally:
                with self._lock:
                    self._pins.drop([extent])
            yield record, self._space.place_name(extent), problem

    def _scrub_one(self, record: BlockRecord, extent: Extent, memory: memoryview) -> str | None:
        if frame_bytes(record.payload_bytes) != extent.length:
            return "the index gives the payload another length than its extent"
        header = memoryview(bytearray(self._framer.header_bytes))
        return self._check_all([(record, FrameBuffers(extent, header, memory[: record.payload_bytes]))])[0]

    def put_namespace(self, namespace_id: NamespaceId, canonical: bytes, durability: str) -> None:
        """Keeps a registered namespace; durable on return. Raises UnavailableError when the index refuses."""
        try:
            self._index.put_namespace(namespace_id, canonical, durability)
        except (OSError, lmdb.Error) as error:
            raise UnavailableError("the namespace could not be written to disk", error=error) from error

    def namespaces(self) -> list[tuple[NamespaceId, bytes, str]]:
        """What `put_namespace` kept: (id, canonical identity, durability)."""
        with self._index_readable():
            return self._index.namespaces()

    def check_integrity(self) -> None:
        """To be called while nothing is under way."""
        with self._lock:
            self._allocator.check_integrity()
            extents = [extent for _, extent in self._index.all()]
            extents += [item.placed[1] for item in self._index.quarantined()]
            extents += self._pins.waiting()
            extents += [self._space.range_of(number) for number in self._missing]
            extents += self._allocator.free_runs()
        end = 0
        for extent in sorted(extents, key=lambda extent: extent.offset):
            assert extent.offset == end, (extent, end)
            end = extent.end
        assert end == self.capacity_bytes, (end, self.capacity_bytes)

    def close(self) -> None:
        """May be called twice."""
        self._space.close()
        self._index.close()
