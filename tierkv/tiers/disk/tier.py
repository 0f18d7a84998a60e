"""The disk tier: blocks as frames in segments, found through the index, checked on every read.

Order of a write: frames, sync, index commit, acknowledgement. Order of a delete: index commit, then the extent may be reused. A copy
that cannot be read or believed goes to quarantine and is never served again. A medium that is full or fails makes `put` answer
NO_SPACE and shows in `degraded`. Formats: `docs/format.md`.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import lmdb

from tierkv.errors import DataError
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import BlockRecord, Extent, TierName
from tierkv.settings import DiskSettings
from tierkv.tiers.base import Buffer, Framer, GetOutcome, PutOutcome
from tierkv.tiers.disk.index import DiskIndex, Quarantined
from tierkv.tiers.disk.io import FileIO, SegmentIO
from tierkv.tiers.disk.segments import FrameBuffers, SegmentSpace, frame_bytes
from tierkv.tiers.extents import ALIGNMENT_BYTES, ExtentAllocator
from tierkv.tiers.pins import ReadPins
from tierkv.tiers.records import Placed, resolve_overlaps

_log = logging.getLogger(__name__)


class DiskTier:
    """Blocks on disk.

    folder — the data folder, locked by the caller; framer — makes and checks frame headers; io — how files are reached.
    """

    name = TierName.DISK

    def __init__(self, folder: Path, settings: DiskSettings, framer: Framer, *, io: SegmentIO | None = None) -> None:
        self.capacity_bytes = settings.capacity_bytes - settings.capacity_bytes % ALIGNMENT_BYTES
        self.degraded: str | None = None
        self._settings = settings
        self._framer = framer
        self._index = DiskIndex(folder / "index", capacity_bytes=self.capacity_bytes, segment_bytes=settings.segment_bytes)
        segment_bytes = self._index.segment_bytes
        self._space = SegmentSpace(
            folder / "segments",
            segment_bytes=segment_bytes,
            capacity_bytes=self.capacity_bytes,
            io=io or FileIO(direct=settings.direct_io),
        )
        self._segment_bytes = segment_bytes
        self._allocator = ExtentAllocator(self.capacity_bytes, boundary_bytes=segment_bytes)
        self._pins = ReadPins(self._allocator)
        self._lock = threading.Lock()  # over allocator, pins and index changes; never over segment I/O
        self._recover()

    def _recover(self) -> None:
        """Claims what the index says is used; records that cannot be right are forgotten."""
        held = self._index.places()
        isolated = [(item, item.placed[1]) for item in self._index.quarantined()]
        claims = [*held, *((BlockKey(b"q%d" % item.number), extent, -1) for item, extent in isolated)]
        kept, dropped = resolve_overlaps(claims, self._fits)
        gone = set(dropped)
        self._index.delete([key for key, _, _ in held if key in gone])
        self._index.forget_quarantined([item.number for item, _ in isolated if b"q%d" % item.number in gone])
        self._allocator.claim_many(kept)

    def _fits(self, extent: Extent) -> bool:
        is_inside = extent.offset >= 0 and extent.length > 0 and extent.end <= self.capacity_bytes
        is_aligned = extent.offset % ALIGNMENT_BYTES == 0 and extent.length % ALIGNMENT_BYTES == 0
        return is_inside and is_aligned and extent.offset // self._segment_bytes == (extent.end - 1) // self._segment_bytes

    @property
    def used_bytes(self) -> int:
        return self.capacity_bytes - self._allocator.free_bytes

    def footprint_bytes(self, payload_bytes: int) -> int:
        return frame_bytes(payload_bytes)

    def __contains__(self, key: BlockKey) -> bool:
        return self.record(key) is not None

    def __len__(self) -> int:
        return len(self._index)

    def record(self, key: BlockKey) -> BlockRecord | None:
        placed = self._index.get([key])[0]
        return None if placed is None else placed[0]

    def records(self) -> Iterator[BlockRecord]:
        return (record for record, _ in self._index.all())

    # -- put -------------------------------------------------------------------------------------------------------------

    def put(self, items: Sequence[tuple[BlockRecord, Buffer]]) -> list[PutOutcome]:
        held = self._index.get([record.key for record, _ in items])
        fresh = [idx for idx, placed in enumerate(held) if placed is None]
        outcomes = [PutOutcome.ALREADY] * len(items)
        extents = self._allocate([items[idx][0].payload_bytes for idx in fresh])
        stored = fresh[: len(extents)]
        is_stored = self._store([items[idx] for idx in stored], extents)
        for position, idx in enumerate(fresh):
            has_room = position < len(extents)
            outcomes[idx] = PutOutcome.STORED if has_room and is_stored else PutOutcome.NO_SPACE
        return outcomes

    def _allocate(self, lengths: Sequence[int]) -> list[Extent]:
        """Extents for a leading part of the payloads; quarantined copies give way where room is short."""
        with self._lock:
            wanted = [frame_bytes(length) for length in lengths]
            extents = self._allocator.allocate_run(wanted)
            while len(extents) < len(wanted) and self._drop_oldest_quarantined():
                extents += self._allocator.allocate_run(wanted[len(extents) :])
            return extents

    def _store(self, items: Sequence[tuple[BlockRecord, Buffer]], extents: Sequence[Extent]) -> bool:
        if not items:
            return True
        try:
            self._space.write(
                [
                    FrameBuffers(extent, memoryview(self._framer.seal(record)), payload)
                    for (record, payload), extent in zip(items, extents, strict=True)
                ]
            )
            with self._lock:
                self._index.put([(record, extent) for (record, _), extent in zip(items, extents, strict=True)])
        except (OSError, lmdb.Error) as error:
            _log.warning("the disk refused %d blocks: %s", len(items), error)
            self.degraded = f"the disk refuses writes ({error}); RAM keeps serving"
            with self._lock:
                for extent in extents:
                    self._allocator.free(extent)
            return False
        self.degraded = None
        return True

    # -- get -------------------------------------------------------------------------------------------------------------

    def get(self, keys: Sequence[BlockKey], targets: Sequence[Buffer]) -> list[GetOutcome]:
        with self._lock:  # a delete must not free an extent between the look-up and the hold
            placed = self._index.get(keys)
            held = [item[1] for item in placed if item is not None]
            self._pins.hold(held)
        try:
            return self._read(placed, targets)
        finally:
            with self._lock:
                self._pins.drop(held)

    def _read(self, placed: Sequence[Placed | None], targets: Sequence[Buffer]) -> list[GetOutcome]:
        outcomes = [GetOutcome.MISS] * len(placed)
        wanted = [(idx, item) for idx, item in enumerate(placed) if item is not None]
        headers = memoryview(bytearray(self._framer.header_bytes * len(wanted)))
        frames = [
            FrameBuffers(item[1], _part(headers, position, self._framer.header_bytes), targets[idx])
            for position, (idx, item) in enumerate(wanted)
            if len(targets[idx]) == item[0].payload_bytes
        ]
        if len(frames) != len(wanted):
            raise DataError("a target does not have the length of its payload")
        damaged: list[tuple[Placed, str]] = []
        for (idx, item), frame, read_problem in zip(wanted, frames, self._space.read(frames), strict=True):
            problem = read_problem or self._problem_of(item[0], frame)
            outcomes[idx] = GetOutcome.HIT if problem is None else GetOutcome.DAMAGED
            if problem is not None:
                damaged.append((item, problem))
        if damaged:
            self._isolate(damaged)
        return outcomes

    def _problem_of(self, record: BlockRecord, frame: FrameBuffers) -> str | None:
        try:
            self._framer.check(record, frame.header, frame.payload)
        except DataError as error:
            return str(error)
        return None

    # -- forget ----------------------------------------------------------------------------------------------------------

    def delete(self, keys: Iterable[BlockKey]) -> int:
        with self._lock:
            placed = [item for item in self._index.get(list(dict.fromkeys(keys))) if item is not None]
            if placed:
                self._index.delete([record.key for record, _ in placed])
                self._pins.free([extent for _, extent in placed])
        return len(placed)

    def _isolate(self, damaged: Sequence[tuple[Placed, str]]) -> None:
        for (record, extent), problem in damaged:
            _log.warning(
                "a damaged frame is quarantined: key %s, %s: %s", record.key.hex()[:16], self._space.place_name(extent), problem
            )
        with self._lock:
            still_held = self._index.get([item[0].key for item, _ in damaged])
            moved = [pair for pair, held in zip(damaged, still_held, strict=True) if held is not None and held[1] == pair[0][1]]
            self._index.quarantine(moved)
            surplus = sum(1 for _ in self._index.quarantined()) - self._settings.quarantine_entries
            for _ in range(surplus):
                self._drop_oldest_quarantined()

    def _drop_oldest_quarantined(self) -> bool:
        oldest = next(self._index.quarantined(), None)
        if oldest is None:
            return False
        self._index.forget_quarantined([oldest.number])
        self._pins.free([oldest.placed[1]])
        return True

    # -- care ------------------------------------------------------------------------------------------------------------

    def quarantined(self) -> list[Quarantined]:
        """What is set aside, oldest first."""
        return list(self._index.quarantined())

    def scrub(self) -> Iterator[tuple[BlockRecord, str, str | None]]:
        """Reads and checks every frame in the order of the disk: (record, place, what is wrong or None). Moves nothing."""
        for record, extent in sorted(self._index.all(), key=lambda item: item[1].offset):
            with self._lock:
                held = self._index.get([record.key])[0]
                if held is None or held[1] != extent:
                    continue  # deleted meanwhile
                self._pins.hold([extent])
            try:
                yield record, self._space.place_name(extent), self._scrub_one(record, extent)
            finally:
                with self._lock:
                    self._pins.drop([extent])

    def _scrub_one(self, record: BlockRecord, extent: Extent) -> str | None:
        if frame_bytes(record.payload_bytes) != extent.length:
            return "the index gives the payload another length than its extent"
        payload = memoryview(mmap.mmap(-1, max(record.payload_bytes, 1)))[: record.payload_bytes]
        frame = FrameBuffers(extent, memoryview(bytearray(self._framer.header_bytes)), payload)
        return self._space.read([frame])[0] or self._problem_of(record, frame)

    def put_namespace(self, namespace_id: NamespaceId, canonical: bytes, durability: str) -> None:
        """Keeps a registered namespace; durable on return."""
        self._index.put_namespace(namespace_id, canonical, durability)

    def namespaces(self) -> list[tuple[NamespaceId, bytes, str]]:
        """What `put_namespace` kept: (id, canonical identity, durability)."""
        return self._index.namespaces()

    def check_integrity(self) -> None:
        with self._lock:
            self._allocator.check_integrity()
            used = sum(extent.length for _, extent in self._index.all())
            used += sum(item.placed[1].length for item in self._index.quarantined())
            used += sum(extent.length for extent in self._pins.waiting())
            assert used == self.used_bytes, (used, self.used_bytes)

    def close(self) -> None:
        """May be called twice."""
        self._space.close()
        self._index.close()


def _part(buffer: memoryview, position: int, length: int) -> memoryview:
    return buffer[position * length : (position + 1) * length]
