"""The load path of a device: holds the longest held prefix in pages, and starts to bring what is not there. Called with the lock held.

Order matters, as in `tierkv.placement.loader`: what is on the device is held first, then pages are taken for the rest, then room is
made in the host tier for what is not there either. Where one of these ends, the prefix ends.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from tierkv.answers import PageAcquisition, PendingRun, RunResult
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import SessionId
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.lifecycle import BlockState
from tierkv.model.outcomes import MissReason, TierName
from tierkv.placement import planner
from tierkv.placement.device_room import DeviceRoom
from tierkv.placement.loader import Loader
from tierkv.placement.page_books import Page, PageBooks
from tierkv.placement.page_mover import PageMover
from tierkv.placement.requests import RequestTable
from tierkv.placement.residency import Residency
from tierkv.placement.waiting import after_all
from tierkv.policies.base import Cause


@dataclass(frozen=True, slots=True)
class HeldPages:
    """What `PageLoader.hold` found: the acquisition, and the entries of its blocks."""

    acquisition: PageAcquisition
    entries: list[BlockEntry]


class PageLoader:
    """Holds prefixes in pages."""

    def __init__(
        self,
        *,
        lock: threading.RLock,
        residency: Residency,
        loader: Loader,
        mover: PageMover,
        room: DeviceRoom,
        requests: RequestTable,
        run_blocks: int,
    ) -> None:
        self._lock = lock
        self._books = residency
        self._loader = loader
        self._mover = mover
        self._room = room
        self._requests = requests
        self._run_blocks = run_blocks

    def hold(
        self, pool: PageBooks, session: SessionId, namespace_id: NamespaceId, keys: Sequence[BlockKey], request_id: str
    ) -> HeldPages:
        """Holds a page for each block of the longest held prefix for which there is one. One access per block and request."""
        books = self._books
        entries = books.index.match(namespace_id, keys)
        miss = books.index.miss_reason(keys[len(entries)]) if len(entries) < len(keys) else None
        on_device = {entry.key for entry in entries if entry.key in pool.policy}
        places = self._hold_here(pool, session, entries)
        tiers = [TierName.DEVICE if entry in places else planner.found_in(entry) for entry in entries]
        in_host = {entry.key for entry in entries if not planner.is_away(entry) and entry.state is not BlockState.RESERVED}
        if len(places) < len(entries):
            places.update(self._bring(pool, session, entries, places))
        num_held = _num_placed(entries, places)
        if num_held < len(entries):
            miss = MissReason.CAPACITY
            for entry in entries[num_held:]:
                if entry in places:
                    pool.release(session, places.pop(entry).number)
            del entries[num_held:]
        self._note_access(pool, session, entries, on_device, in_host, request_id)
        pages = [places[entry] for entry in entries]
        numbers = tuple(page.number for page in pages)
        return HeldPages(PageAcquisition(numbers, tuple(tiers[:num_held]), self._pending(pages), miss), entries)

    @staticmethod
    def _hold_here(pool: PageBooks, session: SessionId, entries: Sequence[BlockEntry]) -> dict[BlockEntry, Page]:
        """Holds what is on the device, or on its way there; what was leaving stays."""
        places: dict[BlockEntry, Page] = {}
        for entry in entries:
            page = pool.page_of(entry.key)
            if page is not None:
                if page.is_leaving:
                    pool.keep(page)
                pool.hold(session, page)
                places[entry] = page
        return places

    def _bring(
        self, pool: PageBooks, session: SessionId, entries: Sequence[BlockEntry], places: dict[BlockEntry, Page]
    ) -> dict[BlockEntry, Page]:
        """Takes pages for what is not on the device and starts to fill them; returns those for which there was room on the way."""
        books = self._books
        missing = [entry for entry in entries if entry not in places]
        taken = self._room.take(pool, session, min(len(missing), planner.num_servable(missing)))
        wanted = missing[: len(taken)]
        if not all(books.index.is_current(entry) for entry in wanted):
            wanted = []  # making room took along what they follow
        for entry in wanted:
            books.pin(entry)
        away = [planner.is_away(entry) for entry in wanted]
        num_placed = self._loader.bring_in(wanted, away, list(places), Cause.LOAD)
        # Where making room took them along, they are nobody's any more.
        placed = [entry for entry in wanted[:num_placed] if books.index.is_current(entry)]
        for page in taken[len(placed) :]:
            pool.release(session, page.number)
        found = dict(zip(placed, taken, strict=False))
        head = [entry.key for entry in entries if entry in places and entry.key in pool.policy]
        pool.name(list(found.values()), [entry.key for entry in placed], head, is_ready=False)
        self._fill(pool, placed, found)
        for entry in wanted:
            books.unpin(entry)
        return found

    def _fill(self, pool: PageBooks, placed: Sequence[BlockEntry], found: dict[BlockEntry, Page]) -> None:
        """Starts the copies from the host tier: of what is readable now at once, of the rest when it is."""
        pending = self._loader.start_runs(placed)
        is_pending = [False] * len(placed)
        for run in pending:
            is_pending[run.start_idx : run.start_idx + run.num_blocks] = [True] * run.num_blocks
            parts = [(pool, found[entry], entry) for entry in placed[run.start_idx : run.start_idx + run.num_blocks]]
            future = self._mover.begin_fill(parts)
            if run.done.done():
                self._mover.fill(parts, future)
            else:  # by the thread that brought them: a copy that queued again would wait for all runs behind it
                run.done.add_done_callback(functools.partial(self._fill_after, parts, future))
        ready = [(pool, found[entry], entry) for entry, waits in zip(placed, is_pending, strict=True) if not waits]
        for start in range(0, len(ready), self._run_blocks):
            parts = ready[start : start + self._run_blocks]
            self._mover.fill(parts, self._mover.begin_fill(parts))

    def _fill_after(
        self, parts: Sequence[tuple[PageBooks, Page, BlockEntry]], future: Future[None], _done: Future[RunResult]
    ) -> None:
        self._mover.fill_here(parts, future)

    def _note_access(
        self,
        pool: PageBooks,
        session: SessionId,
        entries: Sequence[BlockEntry],
        on_device: set[BlockKey],
        in_host: set[BlockKey],
        request_id: str,
    ) -> None:
        """One access to each block on each tier whose policy had it, and still has. What was brought in was counted by that."""
        keys = [entry.key for entry in entries]
        first = self._requests.first_accesses(session, request_id, keys)
        fresh = set(first)
        here = [key for key in keys if key in on_device and key in fresh]
        if here:
            pool.policy.on_access(here)
        # Making room may have sent down host copies that the request did not need.
        kept = [key for key in keys if key in in_host and key in self._books.host_policy]
        self._loader.note_access(entries, kept, first)

    def _pending(self, pages: Sequence[Page]) -> tuple[PendingRun, ...]:
        """Runs of pages that wait for one copy."""
        runs: list[PendingRun] = []
        start = 0
        for stop in range(1, len(pages) + 1):
            fill = pages[start].fill
            if stop == len(pages) or pages[stop].fill is not fill:
                if fill is not None:
                    part = pages[start:stop]
                    done = after_all([fill], lambda part=part: self._evaluate(part))  # type: ignore[misc]
                    runs.append(PendingRun(start, len(part), done))
                start = stop
        return tuple(runs)

    def _evaluate(self, pages: Sequence[Page]) -> RunResult:
        with self._lock:
            num_ready = next((idx for idx, page in enumerate(pages) if not page.is_ready), len(pages))
        return RunResult(num_ready, None if num_ready == len(pages) else MissReason.CHECKSUM)


def _num_placed(entries: Sequence[BlockEntry], places: dict[BlockEntry, Page]) -> int:
    """How many leading blocks have a page that is still theirs."""
    for idx, entry in enumerate(entries):
        page = places.get(entry)
        if page is None or page.key != entry.key:
            return idx
    return len(entries)
