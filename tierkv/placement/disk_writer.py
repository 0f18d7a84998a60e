"""The disk writer: the one thread that changes the disk tier. Batches of blocks go down, deletions in order with them.

A block is acknowledged as durable only after the tier's `put` returned (payload, sync, index commit). A medium that refuses a
write is left alone for `retry_s`, one whose write budget is spent until there is some again; RAM keeps serving, and the state shows
in `failure`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tierkv.clock import Clock
from tierkv.errors import InternalError, TierKVError
from tierkv.index.entry import BlockEntry
from tierkv.model.keys import BlockKey
from tierkv.model.lifecycle import BlockState
from tierkv.model.outcomes import MissReason
from tierkv.placement.disk_room import DiskRoom
from tierkv.placement.planner import plan_chains
from tierkv.placement.residency import Residency
from tierkv.placement.waiting import promised
from tierkv.placement.worker import Worker
from tierkv.placement.write_budget import WriteBudget
from tierkv.settings import DiskSettings
from tierkv.tiers.base import PutOutcome, Tier

_log = logging.getLogger(__name__)
_DEFRAGMENT_ROUNDS = 4
"""How often more victims are asked for when room is there but in pieces too small for a frame."""
_BATCH_SHARE = 8
"""A batch is at most this part of the disk."""


class DiskWriter:
    """Batches blocks to disk: write-through commits wait at most `interval_s`, demotions and flushes do not wait."""

    def __init__(
        self,
        *,
        lock: threading.RLock,
        residency: Residency,
        disk: Tier,
        settings: DiskSettings,
        clock: Clock,
        checksum: Callable[[memoryview], bytes],
    ) -> None:
        self._lock = lock
        self._books = residency
        self._disk = disk
        self.room = DiskRoom(residency, disk)
        self._settings = settings
        # Blocks of one batch do not push each other out, so that a batch must leave the disk other victims.
        self._batch_limit_bytes = min(settings.batch_bytes, disk.capacity_bytes // _BATCH_SHARE)
        self._checksum = checksum
        self._clock = clock
        self._queue: deque[BlockEntry] = deque()
        self._queued_bytes = 0
        self._oldest_s: float | None = None
        self._is_urgent = False
        self._deletes: list[tuple[list[BlockKey], Future[int]]] = []
        self._waiters: dict[BlockEntry, list[Callable[[bool], None]]] = {}  # a key may be deleted and come again
        self._failed_at_s: float | None = None
        self._failure: str | None = None
        budget_bytes = settings.write_budget_bytes_per_day
        self._budget = WriteBudget(budget_bytes, clock.monotonic_s()) if budget_bytes else None
        self.owes_writes = False
        """Whether blocks were left unwritten that are to be on disk; whoever tries them again resets it."""
        self._worker = Worker("tierkv-disk", self._write_once, wait_s=self._seconds_to_wait)

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        """Ends the thread; blocks that are queued stay unwritten, keys that are to be forgotten are forgotten."""
        self._worker.stop()
        if self._books.to_unwrite:
            self.delete(self._take_unwanted())
        self._delete(self._deletes)
        self._deletes.clear()

    def kick(self) -> None:
        self._worker.kick()

    @property
    def failure(self) -> str | None:
        """What keeps blocks from the disk now, a sentence."""
        if self._failure is None and self._budget is not None and self._budget.is_spent(self._clock.monotonic_s()):
            return f"the disk's write budget is spent ({self._budget.bytes_per_day} bytes a day); RAM keeps serving"
        return self._failure

    @property
    def budget_left_bytes(self) -> int | None:
        """What may still be written now; None without a budget."""
        return None if self._budget is None else self._budget.left_bytes(self._clock.monotonic_s())

    @property
    def is_writable(self) -> bool:
        """False for `retry_s` after the medium refused a write, and while the write budget is spent."""
        if self._budget is not None and self._budget.is_spent(self._clock.monotonic_s()):
            return False
        return not self._is_left_alone

    @property
    def _is_left_alone(self) -> bool:
        return self._failed_at_s is not None and self._clock.monotonic_s() - self._failed_at_s < self._settings.retry_s

    def enqueue(self, entries: Sequence[BlockEntry]) -> None:
        """Takes sealed entries, `moves` already raised for this job. Those that somebody waits for are not delayed."""
        with self._lock:
            self._queue.extend(entries)
            self._queued_bytes += sum(entry.block_bytes for entry in entries)
            self._is_urgent |= any(entry in self._waiters for entry in entries)
            if self._oldest_s is None:
                self._oldest_s = self._clock.monotonic_s()
        self._worker.kick()

    def delete(self, keys: list[BlockKey]) -> Future[int]:
        """Forgets keys on disk, in order with the writes: a key that is committed again later stays. Lock held."""
        future: Future[int] = promised()
        self._deletes.append((keys, future))
        self._worker.kick()
        return future

    def notify(self, entry: BlockEntry, report: Callable[[bool], None]) -> None:
        """`report(ok)` when the entry's write is over. Called with the lock held while the entry is queued or about to be."""
        self._waiters.setdefault(entry, []).append(report)

    def is_waited_for(self, entry: BlockEntry) -> bool:
        return entry in self._waiters

    def report_early(self, entry: BlockEntry) -> None:
        """A block that somebody waits for will not be written: it is on disk already, or lost. Lock held."""
        for report in self._waiters.pop(entry, []):
            report(entry.is_on_disk)

    def hurry(self) -> None:
        """What is queued is not delayed any longer. Lock held."""
        self._is_urgent = True
        self._worker.kick()

    def _seconds_to_wait(self) -> float | None:
        with self._lock:
            if self._oldest_s is None:
                return None
            return max(0.0, self._oldest_s + self._settings.interval_s - self._clock.monotonic_s())

    def _write_once(self) -> bool:
        """Writes one batch, if one is due. True if there may be more."""
        with self._lock:  # both at once: a block that was deleted and committed again must not be written before it is deleted
            deletes = list(self._deletes)
            self._deletes.clear()
            if self._books.to_unwrite and not self._is_left_alone:
                deletes.append((self._take_unwanted(), promised()))
            batch = self._take_batch()
        self._delete(deletes)
        if not batch:
            return False
        stored: list[BlockEntry] = []
        try:
            stored = self._write(batch)
        except Exception:
            _log.exception("a batch could not be written")
        finally:  # whatever happened, no block stays held and nobody waits for ever
            self._settle(batch, stored)
        return True

    def _write(self, batch: Sequence[BlockEntry]) -> list[BlockEntry]:
        """Brings a batch to disk; returns those of its blocks that are there now."""
        with self._lock:
            victims, admitted = self._admit(batch)
        if not self._make_room(victims):
            return []
        outcomes = self._put_making_room(admitted)
        return [entry for entry, outcome in zip(admitted, outcomes, strict=True) if outcome is not PutOutcome.NO_SPACE]

    def _settle(self, batch: Sequence[BlockEntry], stored: Sequence[BlockEntry]) -> None:
        """Ends the moves of a batch: the books learn what is on disk, evicting blocks leave the arena, waiters hear of it."""
        books = self._books
        with self._lock:
            for entry in stored:
                entry.is_on_disk = books.index.is_current(entry)
            orphans = [entry.key for entry in stored if not entry.is_on_disk]
            for entry in batch:
                if not entry.is_on_disk and books.index.is_current(entry):
                    books.lose_disk(entry.key, None)
                    self.owes_writes |= not self.is_writable
            reports = [(report, entry.is_on_disk) for entry in batch for report in self._finish(entry)]
        self._make_room(orphans)  # deleted while they were written: they must not come back
        for report, is_on_disk in reports:
            report(is_on_disk)

    def _admit(self, batch: Sequence[BlockEntry]) -> tuple[list[BlockKey], list[BlockEntry]]:
        """Who must leave the disk first, and which blocks of the batch are to be written at all. Lock held."""
        victims: list[BlockKey] = []
        admitted: list[BlockEntry] = []
        # Who checked a block on its way to disk may have queued it once more.
        wanted = [entry for entry in dict.fromkeys(batch) if self._is_wanted(entry)]
        for planned in plan_chains(wanted):
            # One that was found damaged, or that made room for an earlier chain, took along what follows it.
            chain = [entry for entry in planned if self._books.index.is_current(entry)]
            if not chain:
                continue
            gone, num_admitted = self.room.plan(chain)
            victims.extend(gone)
            admitted.extend(chain[:num_admitted])
        return victims, admitted

    def _is_wanted(self, entry: BlockEntry) -> bool:
        if entry.is_on_disk or not self._books.index.is_current(entry) or not self.is_writable:
            return False
        if self.room.is_admitted(entry):
            return False  # two jobs have passed it on, and it stands in this batch before
        # A crossing: bytes that survived a restart in the arena are believed only after a look at them.
        if entry.is_verified:
            return True
        view = self._books.host.view(entry.placed_at())[: entry.block_bytes]
        entry.is_verified = self._checksum(view) == entry.sealed_record().checksum
        if not entry.is_verified:
            self._books.counters["arena_stale"] += 1
            self._books.lose_host(entry, MissReason.CHECKSUM)
        return entry.is_verified

    def _delete(self, deletes: Sequence[tuple[list[BlockKey], Future[int]]]) -> None:
        for keys, future in deletes:
            try:
                future.set_result(self._disk.delete(keys))
            except Exception as error:
                _log.exception("deleting from disk failed")
                self._note_refusal(keys, error)
                future.set_exception(InternalError("deleting from disk failed", error=error))

    def _take_unwanted(self) -> list[BlockKey]:
        """Keys that the books have let go and the disk still holds. Lock held.

        What was refused before and has been written again since then is wanted again.
        """
        index = self._books.index
        unwanted = [key for key in self._books.to_unwrite if (entry := index.get(key)) is None or not entry.is_on_disk]
        self._books.to_unwrite.clear()
        return unwanted

    def _take_batch(self) -> list[BlockEntry]:
        for entry in self._books.to_demote:
            self._queue.append(entry)
            self._queued_bytes += entry.block_bytes
            self._is_urgent = True
        self._books.to_demote.clear()
        is_due = self._is_urgent or self._queued_bytes >= self._batch_limit_bytes
        if not is_due and self._oldest_s is not None:
            is_due = self._clock.monotonic_s() >= self._oldest_s + self._settings.interval_s
        batch: list[BlockEntry] = []
        num_bytes = 0
        while is_due and self._queue and num_bytes < self._batch_limit_bytes:
            entry = self._queue.popleft()
            num_bytes += entry.block_bytes
            batch.append(entry)
        self._queued_bytes -= num_bytes
        if not self._queue:
            self._is_urgent = False
            self._oldest_s = None
        return batch

    def _put_making_room(self, entries: list[BlockEntry]) -> list[PutOutcome]:
        """Puts blocks; where the tier has room by weight but not in one piece, evicts beyond need and tries again."""
        outcomes = self._put(entries)
        for spare_blocks in range(1, _DEFRAGMENT_ROUNDS + 1):
            lacking = [idx for idx, outcome in enumerate(outcomes) if outcome is PutOutcome.NO_SPACE]
            if not lacking or self._disk.degraded is not None:
                break
            with self._lock:
                victims = self.room.plan_spare([entries[idx] for idx in lacking], spare_blocks)
            if not victims or not self._make_room(victims):
                break
            for idx, outcome in zip(lacking, self._put([entries[idx] for idx in lacking]), strict=True):
                outcomes[idx] = outcome
        self._note_health(outcomes)
        return outcomes

    def _make_room(self, keys: Sequence[BlockKey]) -> bool:
        """Forgets keys on disk. False when the index refuses: nothing may then be written in their place."""
        if not keys:
            return True
        try:
            self._disk.delete(keys)
        except TierKVError as error:
            _log.warning("the disk does not forget %d blocks: %s", len(keys), error)
            self._note_refusal(keys, error)
            return False
        return True

    def _note_refusal(self, keys: Sequence[BlockKey], error: Exception) -> None:
        """The books have let these keys go already, so that nobody else would ever take them off the disk: they are tried again."""
        self._failed_at_s = self._clock.monotonic_s()
        self._failure = f"the disk index refuses changes ({error}); RAM keeps serving"
        with self._lock:
            self._books.to_unwrite.extend(keys)

    def _put(self, entries: list[BlockEntry]) -> list[PutOutcome]:
        if not entries:
            return []
        items = [(entry.sealed_record(), self._books.host.view(entry.placed_at())[: entry.block_bytes]) for entry in entries]
        try:
            outcomes = self._disk.put(items)
        except Exception:
            _log.exception("writing to disk failed")
            return [PutOutcome.NO_SPACE] * len(items)
        records = [record for (record, _), outcome in zip(items, outcomes, strict=True) if outcome is PutOutcome.STORED]
        with self._lock:
            self._books.counters["disk_written_bytes"] += sum(record.payload_bytes for record in records)
            if self._budget is not None:  # which whoever asks whether the disk is writable refills
                written = sum(self._disk.footprint_bytes(record.payload_bytes) for record in records)
                self._budget.take(written, self._clock.monotonic_s())
        return outcomes

    def _note_health(self, outcomes: Sequence[PutOutcome]) -> None:
        if not outcomes:
            return  # nothing was tried, so that nothing was learnt; the pause before the next try must not begin again
        refused = sum(outcome is PutOutcome.NO_SPACE for outcome in outcomes)
        if self._disk.degraded is not None:
            self._failed_at_s = self._clock.monotonic_s()
            self._failure = self._disk.degraded
        elif not refused:
            self._failed_at_s = None
            self._failure = None
        with self._lock:
            self._books.counters["disk_write_refusals"] += refused

    def _finish(self, entry: BlockEntry) -> list[Callable[[bool], None]]:
        """Ends the move; an evicting block leaves the arena now. Returns whom to tell, after the lock."""
        if entry.state is BlockState.EVICTING:
            if entry.is_on_disk:
                self._books.counters["demoted_bytes"] += entry.block_bytes
            self._books.finish_eviction(entry)
        self._books.end_move(entry)
        return self._waiters.pop(entry, [])
