"""The care of a store: what it shows, what keeps its promises in time, how it begins and how it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

from tierkv.answers import VerifyReport
from tierkv.index.entry import BlockEntry
from tierkv.model.lifecycle import BlockState
from tierkv.model.outcomes import StoreStats
from tierkv.placement import planner
from tierkv.placement.waiting import promised, resolved
from tierkv.scrub import scrub
from tierkv.store.base import StoreBase


class StoreCare(StoreBase):
    """Snapshots, flushes, scrubs, expiries and the life of a store."""

    # -- care ------------------------------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """A snapshot."""
        books = self._books
        disk_blocks = 0 if books.disk is None else len(books.disk)  # asks the disk's index, so not under the lock
        with self._lock:
            writer = self._mover.writer
            return self._observer.snapshot(
                sessions=len(self._sessions),
                leases=len(self._leases),
                reservations=self._saver.reservations,
                disk_blocks=disk_blocks,
                disk_failure=None if writer is None else writer.failure,
                write_budget_left_bytes=None if writer is None else writer.budget_left_bytes,
            )

    def flush(self) -> Future[int]:
        """Done when everything committed before the call is on disk; how many blocks had to be written. Never fails."""
        with self._lock:
            if self._mover.writer is None or self._is_closed:
                return resolved(0)
            dirty = [entry for entry in self._books.index if can_be_written(entry) and not entry.is_on_disk]
            written: Future[int] = promised()
            self._mover.write_each(dirty, lambda failures: written.set_result(len(dirty) - failures))
            self._mover.writer.hurry()
        self._mover.kick()
        return written

    def drain(self) -> Future[int]:
        """Refuses reservations from now on, and flushes."""
        with self._lock:
            self._is_draining = True
        return self.flush()

    def verify(self, progress: Callable[[int, int, int], None] | None = None) -> VerifyReport:
        """Reads and checks every frame of every tier; blocks (minutes). progress(frames, frames_total, bytes)."""
        self._check_open()
        books = self._books
        disk_findings = () if self._disk_scrub is None else self._disk_scrub()
        disk_frames = 0 if books.disk is None else len(books.disk)
        report = progress or (lambda *_: None)
        return scrub(disk_findings, disk_frames, books, self._lock, self._checksum, report, self._mover.end_move)

    def expire(self) -> None:
        """Returns what expired leases and reservations held, and retries a disk that failed; about once a second."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if self._is_closed:
                return
            for lease in self._leases.expired(now_s):
                self._books.counters["leases_expired"] += 1
                self._notes.lease_expired(lease)
                self._drop_lease(lease)
            for reservation in self._saver.reservations.expired(now_s):
                if not reservation.is_expired:
                    self._notes.reservation_expired(reservation)
            self._saver.expire()
            self._adviser.tick()
            self._books.stage_again()
            writer = self._mover.writer
            if writer is not None and (writer.owes_writes or writer.failure is not None) and writer.is_writable:
                writer.owes_writes = False
                self._write_unwritten()
        self._mover.kick()

    def _write_unwritten(self) -> None:
        if self._mover.writer is None:
            return
        for entry in self._books.index:
            is_unwritten = entry.has_host_copy and not entry.is_on_disk and entry.moves == 0
            if is_unwritten and planner.is_written_through(entry.durability):
                self._mover.write(entry, lambda _ok: None)

    # -- life ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the mover's threads; blocks that survived in the arena alone go on to disk where their namespace promises it."""
        self._mover.start()
        self._page_mover.start()
        with self._lock:
            self._notes.recovered(list(self._books.index))
            for entry in self._books.index:
                entry.durability = self._namespaces.durability_of(entry.namespace_id)
            self._write_unwritten()

    def close(self, *, discard_arena: bool = False) -> None:
        """Flushes, ends every session, closes everything; may be called twice. What the disk refuses stays in a kept arena."""
        with self._lock:
            if self._is_closing:
                return
            self._is_draining = True
            self._is_closing = True
            # Reservations stay: their clients may still be writing, and a kept arena must remember where.
            for session in self._sessions.all():
                self._sessions.close(session)
                self._drop_leases(session)
        self.flush().result()
        with self._lock:
            self._is_closed = True
        self._page_mover.stop()
        self._mover.stop()
        self._on_close(discard_arena)

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant of books, holds or tiers does not hold."""
        with self._lock:
            self._books.check_integrity()
            pins: Counter[int] = Counter()
            for lease in self._leases:
                pins.update(id(entry) for entry in lease.entries)
            for session, pool in self._pool_of.items():
                assert session in pool.users, session[:4]
            for entry in self._books.index:
                assert entry.pins == pins[id(entry)], (entry.pins, entry.key.hex())
            self._saver.check_integrity()
            self.trail.check_integrity()


def can_be_written(entry: BlockEntry) -> bool:
    """Whether a block has bytes that could be brought to disk now: in the arena, or in a page from which they go there."""
    return entry.has_host_copy or (entry.num_device_copies > 0 and entry.state is not BlockState.RESERVED)
