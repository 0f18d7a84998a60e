"""The page mover: carries bytes between pages and the arena. Down in a thread of its own (`staging`), up on the mover's promoters.

    commit of pages ─→ to_stage ─→ room in the host tier, copy, READY ─→ scribe, disk: as any commit
    acquire of pages ─→ host copy readable ─→ fill: copy to the page ─→ whoever waits

A job raises the moves of the page and of the entry under the lock before it looks at bytes; nothing is copied under it. What the host
tier does not take now waits in `Residency.unstaged`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from tierkv.index.entry import BlockEntry
from tierkv.index.trail import What
from tierkv.model.lifecycle import BlockEvent, BlockState
from tierkv.model.outcomes import TierName
from tierkv.placement.mover import Mover
from tierkv.placement.page_books import Page, PageBooks
from tierkv.placement.planner import plan_chains
from tierkv.placement.requests import RequestTable
from tierkv.placement.residency import Residency
from tierkv.placement.staging import NEEDED, Claim, Staging, StagingFor
from tierkv.placement.waiting import promised
from tierkv.placement.worker import Worker
from tierkv.policies.base import Cause
from tierkv.tiers.base import GetOutcome

_log = logging.getLogger(__name__)
_BATCH_BLOCKS = 64
_BATCH_BYTES = 64 << 20
"""Readers of a batch wait for all of it."""


class PageMover:
    """Owns the stager's thread, which `start` begins; without pools there is none."""

    def __init__(self, *, lock: threading.RLock, residency: Residency, mover: Mover, requests: RequestTable) -> None:
        self._lock = lock
        self._books = residency
        self._mover = mover
        self._requests = requests
        self._stager = Worker("tierkv-stage", self._stage_once)
        self._admitted: list[Staging] = []
        """Demotions: the host tier has room for them already."""
        mover.on_staging = self._stager.kick

    def start(self) -> None:
        if self._books.pools:
            self._stager.start()

    def stop(self) -> None:
        """Ends the thread. What is queued is copied all the same, for a kept arena and for who waits for it."""
        self._stager.stop()
        while self._stage_once():
            pass

    # -- down --------------------------------------------------------------------------------------------------------------

    def demote(self, pool: PageBooks, chain: Sequence[BlockEntry]) -> list[BlockEntry]:
        """Room in the host tier for the leading blocks of a chain that leave the device; returns which get copied. Lock held."""
        books = self._books
        if not all(books.index.is_current(entry) and entry.state is BlockState.FREE for entry in chain):
            return []  # making room for an earlier chain took them along
        placed = books.stage(chain, books.index.ancestors(chain[0].parent), Cause.PREFETCH)
        for entry in chain[:placed]:
            page = pool.page_of(entry.key)
            assert page is not None
            pool.leave(page)
            pool.begin_move(page)
            entry.moves += 1
            self._admitted.append(Staging(entry, pool, page, NEEDED))
        if placed:
            self._promise(chain[:placed])
            self._stager.kick()
        return list(chain[:placed])

    def _stage_once(self) -> bool:
        """Copies one batch of pages to the arena. True if there may be more."""
        with self._lock:
            queued = self._take_batch()
            batch, self._admitted = self._admitted + self._admit(queued), []
        self._mover.kick()  # making room may have sent others down
        if not batch:
            return bool(queued)
        outcomes = [self._mover.read_page(staging.entry, staging.pool, staging.page) for staging in batch]
        with self._lock:
            done = self._settle(batch, outcomes)
        for future in done:
            future.set_result(None)
        self._mover.kick()
        return True

    def _take_batch(self) -> list[Staging]:
        queue = self._books.to_stage
        page_bytes = max((staging.pool.page_bytes for staging in queue[:_BATCH_BLOCKS]), default=1)
        count = min(_BATCH_BLOCKS, max(1, _BATCH_BYTES // page_bytes))
        batch = queue[:count]
        del queue[:count]
        return batch

    def _admit(self, queued: Sequence[Staging]) -> list[Staging]:
        """Finds room in the host tier for those that still need it. Lock held."""
        wanted = [staging for staging in queued if self._is_wanted(staging)]
        by_entry = {staging.entry: staging for staging in wanted}
        admitted: list[Staging] = []
        for chain in plan_chains(list(by_entry)):
            for part in _by_request([by_entry[entry] for entry in chain]):
                admitted += part[: self._admit_part(part)]
        taken = set(admitted)
        for staging in queued:
            if staging not in taken:
                self._give_up(staging, is_refused=staging.entry in by_entry)
        return admitted

    def _admit_part(self, part: Sequence[Staging]) -> int:
        """Room for blocks of one chain and one request; how many leading ones got it."""
        books, request = self._books, part[0].request
        entries = [staging.entry for staging in part if books.index.is_current(staging.entry)]
        if len(entries) < len(part):
            return 0  # making room for an earlier chain took them along
        placed = self._claim(entries, request)
        rest = entries[placed:]
        if rest and request.claim is not Claim.NEED and all(books.is_promised_to_disk(entry) for entry in rest):
            placed += self._claim(rest, NEEDED)  # a promise comes before the shares of requests
        self._promise(entries[:placed])
        return placed

    def _claim(self, entries: Sequence[BlockEntry], request: StagingFor) -> int:
        """Room for the leading blocks of a chain, as much as their claim gives them."""
        books = self._books
        head = books.index.ancestors(entries[0].parent)
        if request.claim is Claim.NEED:
            return books.stage(entries, head, Cause.PREFETCH)
        if request.claim is Claim.FREE or request.session is None:
            return books.stage(entries, head, Cause.SAVE, spent=books.host_policy.capacity, is_noted=False)
        spent = self._requests.spent(request.session, request.request_id)
        placed = books.stage(entries, head, Cause.SAVE, spent=spent)
        added = [entry for entry in entries[:placed] if not entry.is_passing]
        weight = sum(books.host.footprint_bytes(entry.block_bytes) for entry in added)
        self._requests.add_spent(request.session, request.request_id, weight)
        return placed

    def _promise(self, entries: Sequence[BlockEntry]) -> None:
        """Readers of these wait for one future."""
        future: Future[None] = promised()
        for entry in entries:
            entry.promotion = future

    def _is_wanted(self, staging: Staging) -> bool:
        entry = staging.entry
        is_elsewhere = entry.state is not BlockState.FREE or entry.is_on_disk
        return self._books.index.is_current(entry) and not is_elsewhere and staging.page.key == entry.key

    def _give_up(self, staging: Staging, *, is_refused: bool) -> None:
        """A block is not copied: it needs no copy any more, or the host tier has no room now. Lock held."""
        books, entry = self._books, staging.entry
        if is_refused and books.index.is_current(entry):
            books.counters["stage_refused"] += 1
            books.unstaged[entry.key] = None
        staging.pool.end_move(staging.page)
        self._mover.end_move(entry)

    def _settle(self, batch: Sequence[Staging], outcomes: Sequence[GetOutcome]) -> list[Future[None]]:
        """Ends the copies of a batch; returns whom to tell. Lock held."""
        books = self._books
        done: dict[int, Future[None]] = {}
        staged = [staging.entry.key for staging, outcome in zip(batch, outcomes, strict=True) if outcome is GetOutcome.HIT]
        books.trail.note(What.STAGED, staged, "a copy of its page", tier=TierName.HOST)
        for staging, outcome in zip(batch, outcomes, strict=True):
            entry, pool, page = staging.entry, staging.pool, staging.page
            if entry.promotion is not None:
                done[id(entry.promotion)] = entry.promotion
                entry.promotion = None
            is_current = entry.state is BlockState.FILLING
            if is_current and outcome is GetOutcome.HIT:
                entry.is_verified = True
                books.became_readable(entry, BlockEvent.VERIFIED)
                books.counters["pages_staged"] += 1
                books.to_seal.append(entry)  # the move is the scribe's now
            if page.key == entry.key and (page.is_leaving or (is_current and outcome is GetOutcome.DAMAGED)):
                pool.forget(page)
            if is_current and outcome is not GetOutcome.HIT:
                books.abandon(entry, None)
            if not (is_current and outcome is GetOutcome.HIT):
                self._mover.end_move(entry)
            pool.end_move(page)
        return list(done.values())

    # -- up ----------------------------------------------------------------------------------------------------------------

    def begin_fill(self, parts: Sequence[tuple[PageBooks, Page, BlockEntry]]) -> Future[None]:
        """Raises the moves for copies from host to pages, and gives those who want them one future. Lock held; `fill` follows."""
        future: Future[None] = promised()
        for pool, page, entry in parts:
            pool.begin_move(page)
            page.fill = future
            entry.moves += 1
        return future

    def fill(self, parts: Sequence[tuple[PageBooks, Page, BlockEntry]], future: Future[None]) -> None:
        """Copies host copies to pages on a promoter; those that are not readable leave their pages without a name."""
        try:
            job = self._mover.run_soon(lambda: self.fill_here(parts, future))
        except RuntimeError:  # the store has stopped, or no thread can be had: then the job may be queued all the same
            self._settle_fill(parts, set(), future)
        else:
            job.add_done_callback(lambda done: self._settle_fill(parts, set(), future) if done.cancelled() else None)

    def fill_here(self, parts: Sequence[tuple[PageBooks, Page, BlockEntry]], future: Future[None]) -> None:
        """As `fill`, in this thread: blocks for the copies."""
        copied: set[int] = set()
        try:
            for pool, page, entry in parts:
                if self._is_fillable(page, entry):
                    pool.memory.write(pool.offset_of(page), self._books.host.view(entry.placed_at())[: entry.block_bytes])
                    copied.add(page.number)
        except Exception:
            _log.exception("a page could not be written")
        finally:
            self._settle_fill(parts, copied, future)

    def _is_fillable(self, page: Page, entry: BlockEntry) -> bool:
        with self._lock:
            return page.key == entry.key and entry.is_readable and entry.is_verified

    def _settle_fill(self, parts: Sequence[tuple[PageBooks, Page, BlockEntry]], copied: set[int], future: Future[None]) -> None:
        with self._lock:
            if future.done():  # another has settled it; the moves are not this job's any more
                return
        try:
            with self._lock:
                came = [entry.key for _, page, entry in parts if page.number in copied]
                self._books.trail.note(What.PROMOTED, came, "copied from the host", tier=TierName.DEVICE)
                for pool, page, entry in parts:
                    self._end_fill(pool, page, entry, is_copied=page.number in copied)
        finally:  # whatever happened, nobody waits for ever
            future.set_result(None)
        self._mover.kick()

    def _end_fill(self, pool: PageBooks, page: Page, entry: BlockEntry, *, is_copied: bool) -> None:
        page.fill = None
        if page.key == entry.key and is_copied and entry.state is not BlockState.LOST:
            self._books.counters["pages_copied"] += 1
            pool.became_ready(page)
        elif page.key == entry.key:
            pool.forget(page)
        pool.end_move(page)
        self._mover.end_move(entry)


def _by_request(chain: Sequence[Staging]) -> list[list[Staging]]:
    """Cuts a chain where another request goes on with it."""
    parts: list[list[Staging]] = []
    for staging in chain:
        if parts and parts[-1][-1].request == staging.request:
            parts[-1].append(staging)
        else:
            parts.append([staging])
    return parts
