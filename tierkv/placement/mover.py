"""The mover: threads that carry bytes between tiers. Order of every move: put, verify, index, then let go of the source.

    commit ─→ Scribe: checksum, arena index ─→ DiskWriter: batches to disk ─→ waiters (strict, flush)
    acquire of a disk block ─→ Promoter: read into the arena, verified ─→ Scribe: arena index
    commit of a page ─→ Stager (`tierkv.placement.page_mover`): page to arena ─→ Scribe, as a commit

No lock is held over I/O: a job raises `entry.moves` under the lock before it looks at bytes and lowers it afterwards, which keeps
the extent where it is. The arena index has one writer, the scribe, so its puts and forgets keep their order.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tierkv.clock import Clock
from tierkv.errors import CapacityError
from tierkv.index.entry import BlockEntry
from tierkv.index.trail import What
from tierkv.model.keys import BlockKey
from tierkv.model.lifecycle import BlockEvent, BlockState
from tierkv.model.outcomes import BlockRecord, Extent, MissReason, TierName
from tierkv.placement.disk_writer import DiskWriter
from tierkv.placement.page_books import Page, PageBooks
from tierkv.placement.planner import is_written_through
from tierkv.placement.residency import Residency
from tierkv.placement.staging import NEEDED
from tierkv.placement.waiting import Countdown, promised
from tierkv.placement.worker import Worker
from tierkv.settings import StoreSettings
from tierkv.tiers.base import GetOutcome

_log = logging.getLogger(__name__)
IDENTITY_CODEC = 0
_SCRIBE_BATCH_BLOCKS = 256
_SCRIBE_PAUSE_S = 0.002
"""Lets the answer to a commit leave before the scribe wants the interpreter, and gathers commits that come together."""

Checksum = Callable[[memoryview], bytes]


class Mover:
    """Owns the threads. `start` and `stop` frame its life; everything between is asynchronous."""

    def __init__(
        self,
        *,
        lock: threading.RLock,
        residency: Residency,
        settings: StoreSettings,
        clock: Clock,
        checksum: Checksum,
    ) -> None:
        self._lock = lock
        self._books = residency
        self._checksum = checksum
        self._settings = settings
        self._forgetting: list[Future[None]] = []
        self._scribe = Worker("tierkv-scribe", self._scribe_once, pause_s=_SCRIBE_PAUSE_S)
        self._promoters = ThreadPoolExecutor(settings.promote_threads, thread_name_prefix="tierkv-promote")
        self.on_staging: Callable[[], None] = lambda: None
        """Wakes whoever copies pages to the arena."""
        self.writer: DiskWriter | None = None
        if residency.disk is not None:
            self.writer = DiskWriter(
                lock=lock, residency=residency, disk=residency.disk, settings=settings.disk, clock=clock, checksum=checksum
            )

    def start(self) -> None:
        self._scribe.start()
        if self.writer is not None:
            self.writer.start()

    def stop(self) -> None:
        """Ends the threads. Call after a flush: writes that are queued are left; what is not sealed yet still is, for a kept arena."""
        self._promoters.shutdown(wait=True, cancel_futures=True)
        if self.writer is not None:
            self.writer.stop()
        self._scribe.stop()
        while self._scribe_once():
            pass

    def kick(self) -> None:
        """Wakes whoever has work in the books' lists; called with the lock held or not. Waking a thread for nothing is felt by the call."""
        if self._books.to_seal or self._books.to_forget:
            self._scribe.kick()
        if self._books.to_stage:
            self.on_staging()
        if (self._books.to_demote or self._books.to_unwrite) and self.writer is not None:
            self.writer.kick()

    # -- sealing and the arena index -------------------------------------------------------------------------------------

    def _scribe_once(self) -> bool:
        """Seals committed blocks and brings the arena index up to date. True if there may be more."""
        books = self._books
        with self._lock:
            fresh = books.to_seal[:_SCRIBE_BATCH_BLOCKS]
            del books.to_seal[:_SCRIBE_BATCH_BLOCKS]
            forgets, waiting = self._take_forgets()
        if not fresh and not forgets:
            return False
        try:
            self._seal_all(fresh, forgets)
        finally:  # whatever happened, no block stays held
            with self._lock:
                self._pass_on(fresh)
            _finish(waiting)
        return True

    def forget(self, keys: Sequence[BlockKey]) -> Future[None]:
        """Done when the arena index does not know the keys, so that no restart brings them back. Lock held; kick afterwards."""
        done: Future[None] = Future()
        if keys:
            self._books.to_forget.update(keys)
            self._forgetting.append(done)
        else:
            done.set_result(None)
        return done

    def _take_forgets(self) -> tuple[set[BlockKey], list[Future[None]]]:
        """What is to leave the arena index, and who waits for that. Lock held."""
        forgets, waiting = set(self._books.to_forget), list(self._forgetting)
        self._books.to_forget.clear()
        self._forgetting.clear()
        return forgets, waiting

    def _seal_all(self, fresh: Sequence[BlockEntry], forgets: set[BlockKey]) -> None:
        """Checksums and arena index; blocks that were deleted meanwhile need neither."""
        for entry in fresh:
            if entry.record is None and entry.state is not BlockState.LOST:
                entry.record = self._seal(entry)
        with self._lock:
            puts = [(entry.sealed_record(), entry.placed_at()) for entry in fresh if entry.state is not BlockState.LOST]
            present = {record.key for record, _ in puts}
            forgets = {key for key in forgets if key not in present and not self._is_in_arena(key)}
        self._write_arena_index(puts, forgets)

    def end_move(self, entry: BlockEntry) -> None:
        """Somebody outside who raised `entry.moves` is done; who wanted the block written meanwhile gets it written. Lock held."""
        self._pass_on([entry])

    def _pass_on(self, entries: Sequence[BlockEntry]) -> None:
        """A job is over: a block that is to be on disk goes to the writer, which ends the move; for others it ends here."""
        to_write: list[BlockEntry] = []
        for entry in entries:
            is_waited_for = self.writer is not None and self.writer.is_waited_for(entry)
            is_leaving = entry.state is BlockState.EVICTING
            is_wanted = is_waited_for or is_leaving or is_written_through(entry.durability)
            is_sealed = entry.has_host_copy and entry.record is not None
            if self.writer is not None and is_wanted and not entry.is_on_disk and is_sealed:
                to_write.append(entry)
            else:
                if self.writer is not None and _is_decided(entry):
                    self.writer.report_early(entry)
                self._books.end_move(entry)
        if to_write and self.writer is not None:
            self.writer.enqueue(to_write)

    def write(self, entry: BlockEntry, report: Callable[[bool], None]) -> None:
        """Sees to it that a block with a host copy, or in a page, is written to disk; `report(ok)` then. Lock held; needs a disk tier."""
        assert self.writer is not None
        self.writer.notify(entry, report)
        if entry.moves > 0 or entry.state is BlockState.RESERVED:
            return  # the job under way passes the block on; so does who is writing it, when it commits
        if entry.has_host_copy:
            entry.moves += 1
            self.writer.enqueue([entry])
        else:
            self._books.stage_soon([entry], NEEDED)

    def write_each(self, entries: Sequence[BlockEntry], finish: Callable[[int], None]) -> None:
        """Writes blocks with host copies to disk; `finish(failures)` when the last is over. Lock held; needs a disk tier."""
        countdown = Countdown(len(entries), finish)
        for entry in entries:
            self.write(entry, countdown.report)

    def write_all(self, entries: Sequence[BlockEntry]) -> Future[None] | None:
        """A future of all these blocks being on disk (CapacityError where one cannot be), None for no blocks. Lock held."""
        if not entries:
            return None
        future: Future[None] = promised()

        def finish(failures: int) -> None:
            if failures:
                sentence = "blocks could not be written to disk; they are visible, not durable"
                future.set_exception(CapacityError(sentence, blocks=failures))
            else:
                future.set_result(None)

        self.write_each(entries, finish)
        return future

    def _seal(self, entry: BlockEntry) -> BlockRecord:
        checksum = self._checksum(self._books.host.view(entry.placed_at())[: entry.block_bytes])
        return BlockRecord(
            key=entry.key,
            namespace_id=entry.namespace_id,
            parent=entry.parent,
            generation=entry.generation,
            block_bytes=entry.block_bytes,
            checksum=checksum,
            codec=IDENTITY_CODEC,
            payload_bytes=entry.block_bytes,
            payload_checksum=checksum,
        )

    def _is_in_arena(self, key: BlockKey) -> bool:
        entry = self._books.index.get(key)
        return entry is not None and entry.has_host_copy and entry.record is not None

    def _write_arena_index(self, puts: list[tuple[BlockRecord, Extent]], forgets: set[BlockKey]) -> None:
        try:
            self._books.host.adopt(puts)
            self._books.host.forget(forgets)
        except Exception:
            # The arena index only makes a restart warmer; what it misses is on disk or recomputed.
            self._books.counters["arena_index_failures"] += 1
            _log.exception("the arena index could not be written")

    # -- promotion -------------------------------------------------------------------------------------------------------

    def promote(self, entries: Sequence[BlockEntry]) -> Future[None]:
        """Brings FILLING entries from a page or from disk; afterwards each is READY or gone. Lock held, moves already raised."""
        sources = [self._books.lend_page(entry.key) for entry in entries]
        return self.submit(functools.partial(self._promote_now, sources=sources), entries)

    def verify(self, entries: Sequence[BlockEntry]) -> Future[None]:
        """Checks bytes that survived a restart in the arena; afterwards each is verified or lost. Moves already raised."""
        return self.submit(self._verify_now, entries)

    def submit(self, job: Callable[[list[BlockEntry]], None], entries: Sequence[BlockEntry]) -> Future[None]:
        """Runs `job` on a promoter; readers of the entries wait for it."""
        future = self._promoters.submit(job, list(entries))
        for entry in entries:
            entry.promotion = future
        return future

    def run_soon(self, job: Callable[[], None]) -> Future[None]:
        """Runs `job` on a promoter; it is cancelled when the store stops first. Raises RuntimeError once it has stopped."""
        return self._promoters.submit(job)

    def _promote_now(self, entries: list[BlockEntry], sources: Sequence[tuple[PageBooks, Page] | None]) -> None:
        outcomes, records = self._read_lower(entries, sources)
        from_pages = {entry for entry, source in zip(entries, sources, strict=True) if source is not None}
        with self._lock:
            self._note_promotions(entries, outcomes, from_pages)
            for pool, page in filter(None, sources):
                pool.end_move(page)
            for entry, outcome, record in zip(entries, outcomes, records, strict=True):
                entry.promotion = None
                if entry.state is BlockState.LOST:  # deleted meanwhile, or a block before it was
                    self._pass_on([entry])
                elif outcome is GetOutcome.HIT and (record is not None or entry in from_pages):
                    entry.record = None if record is None else _in_host_form(record)
                    entry.is_verified = True
                    self._books.became_readable(entry, BlockEvent.VERIFIED)
                    counter, amount = ("pages_staged", 1) if entry in from_pages else ("promoted_bytes", entry.block_bytes)
                    self._books.counters[counter] += amount
                    self._books.to_seal.append(entry)  # for the arena index; the move ends there
                else:
                    if entry in from_pages:
                        self._books.lose_pages(entry)
                    else:
                        self._lose_disk_copy(entry, outcome)
                    self._books.lose_host(entry, MissReason.CHECKSUM)
                    self._pass_on([entry])
        self.kick()

    def _note_promotions(
        self, entries: Sequence[BlockEntry], outcomes: Sequence[GetOutcome], from_pages: Collection[BlockEntry]
    ) -> None:
        """Tells the trail what came and what did not, by where it was read. Lock held."""
        sources = ((True, "a page", TierName.DEVICE), (False, "disk, checksums agree", TierName.DISK))
        for is_page, source, tier in sources:
            read = [pair for pair in zip(entries, outcomes, strict=True) if (pair[0] in from_pages) is is_page]
            came = [entry.key for entry, outcome in read if outcome is GetOutcome.HIT]
            lost = [entry.key for entry, outcome in read if outcome is not GetOutcome.HIT]
            self._books.trail.note(What.PROMOTED, came, f"read from {source}", tier=TierName.HOST)
            self._books.trail.note(What.LOST, lost, "the copy could not be read or believed", tier=tier)

    def _read_lower(
        self, entries: list[BlockEntry], sources: Sequence[tuple[PageBooks, Page] | None]
    ) -> tuple[list[GetOutcome], list[BlockRecord | None]]:
        """Fills the extents of entries, from the pages that were lent for some and from disk for the others."""
        on_disk = [entry for entry, source in zip(entries, sources, strict=True) if source is None]
        from_disk = iter(zip(*self._read_disk(on_disk), strict=True)) if on_disk else iter(())
        outcomes: list[GetOutcome] = []
        records: list[BlockRecord | None] = []
        for entry, source in zip(entries, sources, strict=True):
            outcome, record = next(from_disk) if source is None else (self.read_page(entry, *source), entry.record)
            outcomes.append(outcome)
            records.append(record)
        return outcomes, records

    def read_page(self, entry: BlockEntry, pool: PageBooks, page: Page) -> GetOutcome:
        """Copies a page to the entry's extent; a block that has been sealed before is checked. No lock held."""
        try:  # all of it: what is raised here would leave the moves of a whole batch raised
            target = self._books.host.view(entry.placed_at())[: entry.block_bytes]
            pool.memory.read(pool.offset_of(page), target)
        except Exception:
            _log.exception("a page could not be read")
            return GetOutcome.MISS
        if entry.record is not None and self._checksum(target) != entry.record.checksum:
            return GetOutcome.DAMAGED
        return GetOutcome.HIT

    def _read_disk(self, entries: list[BlockEntry]) -> tuple[list[GetOutcome], list[BlockRecord | None]]:
        disk = self._books.disk
        if disk is None:
            return [GetOutcome.MISS] * len(entries), [None] * len(entries)
        keys = [entry.key for entry in entries]
        targets = [self._books.host.view(entry.placed_at())[: entry.block_bytes] for entry in entries]
        try:
            records = [disk.record(key) for key in keys]
            return disk.get(keys, targets), records
        except Exception:
            _log.exception("reading from disk failed")
            return [GetOutcome.MISS] * len(entries), [None] * len(entries)

    def _verify_now(self, entries: list[BlockEntry]) -> None:
        for entry in entries:
            view = self._books.host.view(entry.placed_at())[: entry.block_bytes]
            is_intact = self._checksum(view) == entry.sealed_record().checksum
            outcome: GetOutcome | None = None
            if not is_intact and entry.is_on_disk:
                # Nobody reads an unverified block, so its extent can be filled again from the disk's copy.
                (outcome,), _ = self._read_disk([entry])
                is_intact = outcome is GetOutcome.HIT
            with self._lock:
                entry.promotion = None
                if is_intact:
                    entry.is_verified = True
                elif entry.state is not BlockState.LOST:
                    self._books.counters["arena_stale"] += 1
                    self._books.trail.note(What.LOST, [entry.key], "its bytes in the arena do not match", tier=TierName.HOST)
                    if outcome is not None and entry.is_on_disk:
                        self._lose_disk_copy(entry, outcome)
                    self._books.lose_host(entry, MissReason.CHECKSUM)
                self._pass_on([entry])
        self.kick()

    def _lose_disk_copy(self, entry: BlockEntry, outcome: GetOutcome) -> None:
        """The disk's copy could not be had. Lock held."""
        self._books.counters["damaged" if outcome is GetOutcome.DAMAGED else "disk_read_misses"] += 1
        if self.writer is not None:  # unreadable, or could not be set aside: what the books forget must not stay on disk
            self._books.to_unwrite.append(entry.key)
        self._books.lose_disk(entry.key, MissReason.CHECKSUM)


def _is_decided(entry: BlockEntry) -> bool:
    """Whether, once the job that asks is over, nobody is at work on the block who could still bring it to disk."""
    if entry.is_on_disk or entry.state is BlockState.RESERVED:
        return entry.is_on_disk
    is_unsealed = entry.has_host_copy and entry.record is None
    return entry.moves == 1 or not (is_unsealed or entry.state is BlockState.FILLING)


def _finish(waiting: Sequence[Future[None]]) -> None:
    for done in waiting:
        done.set_result(None)


def _in_host_form(record: BlockRecord) -> BlockRecord:
    """The record of a block whose exact bytes lie in the arena, whatever codec the disk keeps it in."""
    return dataclasses.replace(record, codec=IDENTITY_CODEC, payload_bytes=record.block_bytes, payload_checksum=record.checksum)
