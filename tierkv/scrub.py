"""The scrub: reads every block at rest and compares it with its checksum. Moves and repairs nothing; blocks for as long as it takes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator

from tierkv.answers import DamagedFrame, VerifyReport
from tierkv.index.entry import BlockEntry
from tierkv.model.outcomes import BlockRecord
from tierkv.placement.residency import Residency

Progress = Callable[[int, int, int], None]
Checksum = Callable[[memoryview], bytes]
EndMove = Callable[[BlockEntry], None]
Finding = tuple[BlockRecord, str, str | None]
"""A record, the place that was read, and what is wrong with it."""


def scrub(
    disk: Iterable[Finding],
    disk_frames: int,
    books: Residency,
    lock: threading.RLock,
    checksum: Checksum,
    progress: Progress,
    end_move: EndMove,
) -> VerifyReport:
    """Checks the arena of a living store, then its disk. progress(frames, frames_total, bytes); end_move — `Mover.end_move`."""
    with lock:
        sealed = [entry for entry in books.index if entry.is_readable and entry.record is not None]
    findings = itertools.chain(_arena_findings(sealed, books, lock, checksum, end_move), disk)
    return _report(findings, len(sealed) + disk_frames, progress)


def scrub_disk(disk: Iterable[Finding], disk_frames: int, progress: Progress) -> VerifyReport:
    """Checks a disk that no store has open."""
    return _report(disk, disk_frames, progress)


def _report(findings: Iterable[Finding], total: int, progress: Progress) -> VerifyReport:
    frames = num_bytes = 0
    damaged: list[DamagedFrame] = []
    for record, where, problem in findings:
        frames += 1
        num_bytes += record.payload_bytes
        if problem is not None:
            damaged.append(DamagedFrame(record.key, where, problem))
        progress(frames, total, num_bytes)
    return VerifyReport(frames, num_bytes, tuple(damaged))


def _arena_findings(
    entries: list[BlockEntry], books: Residency, lock: threading.RLock, checksum: Checksum, end_move: EndMove
) -> Iterator[Finding]:
    for entry in entries:
        with lock:
            if not entry.is_readable:
                continue  # evicted meanwhile
            entry.moves += 1
            extent, record = entry.placed_at(), entry.sealed_record()
        try:
            agrees = checksum(books.host.view(extent)[: entry.block_bytes]) == record.checksum
        finally:
            with lock:
                end_move(entry)
        yield record, f"arena at {extent.offset}", None if agrees else "the checksum of a block does not agree"
