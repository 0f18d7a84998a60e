"""The load path's decisions: pin the longest held prefix and start whatever stands between its blocks and their reader.

Called with the store's lock held; jobs run in the mover. Order matters: pin first, then bring in, so that making room for
the end of a prefix never takes its beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from tierkv.answers import PendingRun, RunResult
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import SessionId
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import MissReason, TierName
from tierkv.placement import planner
from tierkv.placement.mover import Mover
from tierkv.placement.planner import Readiness
from tierkv.placement.requests import RequestTable
from tierkv.placement.residency import Residency
from tierkv.placement.waiting import after_all
from tierkv.policies.base import Cause


@dataclass(frozen=True, slots=True)
class HeldPrefix:
    """Pinned entries, where each was found, what is still under way, and why the prefix ends."""

    entries: list[BlockEntry]
    tiers: tuple[TierName, ...]
    pending: tuple[PendingRun, ...]
    miss: MissReason | None


class Loader:
    """Holds prefixes for `acquire` and `prefetch`."""

    def __init__(
        self,
        *,
        lock: threading.RLock,
        residency: Residency,
        mover: Mover,
        requests: RequestTable,
        run_blocks: int,
        verify_every_hit: bool,
    ) -> None:
        self._lock = lock
        self._books = residency
        self._mover = mover
        self._requests = requests
        self._run_blocks = run_blocks
        self._verify_every_hit = verify_every_hit

    def hold(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, reader: SessionId | None, request_id: str = ""
    ) -> HeldPrefix:
        """Pins the longest held prefix of `keys`.

        reader — whose access to the blocks it is, with its request if that has a name; None: preparation for one, not an access.
        """
        books = self._books
        entries = books.index.match(namespace_id, keys)
        if books.pools:
            del entries[planner.num_servable(entries) :]
        miss = books.index.miss_reason(keys[len(entries)]) if len(entries) < len(keys) else None
        tiers = tuple(planner.found_in(entry) for entry in entries)
        for entry in entries:
            books.pin(entry)
        away = [planner.is_away(entry) for entry in entries]
        num_held = self.bring_in(entries, away, (), Cause.PREFETCH if reader is None else Cause.LOAD)
        if num_held < len(entries):
            miss = MissReason.CAPACITY
            for entry in entries[num_held:]:
                books.unpin(entry)
            del entries[num_held:]
            tiers = tiers[:num_held]
        if reader is not None:
            first = self._requests.first_accesses(reader, request_id, [entry.key for entry in entries])
            here = [entry.key for entry, is_away in zip(entries, away, strict=False) if not is_away]
            self.note_access(entries, here, first)
        return HeldPrefix(entries, tiers, self.start_runs(entries), miss)

    def bring_in(self, entries: Sequence[BlockEntry], away: Sequence[bool], head: Sequence[BlockEntry], cause: Cause) -> int:
        """Gets back what is leaving and gives room to what is elsewhere only; returns how many leading entries made it.

        away — which of the pinned `entries` need that; head — what the request has beside them.
        """
        if not any(away):
            return len(entries)
        stays = [entry for entry, is_away in zip(entries, away, strict=True) if not is_away]
        wanted = [entry for entry, is_away in zip(entries, away, strict=True) if is_away]
        num_placed = self._books.bring_in(wanted, [*head, *stays], cause)
        return entries.index(wanted[num_placed]) if num_placed < len(wanted) else len(entries)

    def note_access(self, entries: Sequence[BlockEntry], here: list[BlockKey], first: Sequence[BlockKey]) -> None:
        """One access to each block on the host and the disk, by one call for all. What was brought in was counted by that.

        here — those of the blocks that the host policy had; first — keys that the request had not accessed before.
        """
        books = self._books
        on_disk = [entry.key for entry in entries if entry.is_on_disk] if books.disk_policy is not None else []
        if len(first) < len(entries):
            fresh = set(first)
            here, on_disk = [key for key in here if key in fresh], [key for key in on_disk if key in fresh]
        if here:
            books.host_policy.on_access(here)
        if books.disk_policy is not None and on_disk:
            books.disk_policy.on_access(on_disk)

    def start_runs(self, entries: Sequence[BlockEntry]) -> tuple[PendingRun, ...]:
        """Starts what stands between pinned entries and their reader; the runs tell positions in `entries`."""
        kinds = [self._readiness(entry) for entry in entries]
        pending: list[PendingRun] = []
        for run in planner.plan_runs(kinds, run_blocks=self._run_blocks):
            part = entries[run.start_idx : run.stop_idx]
            jobs = self._start(part, run.readiness)
            done = after_all(jobs, lambda part=part: self._evaluate(part))  # type: ignore[misc]
            pending.append(PendingRun(run.start_idx, len(part), done))
        return tuple(pending)

    def _readiness(self, entry: BlockEntry) -> Readiness:
        kind = planner.readiness(entry)
        if kind is Readiness.READY and self._verify_every_hit and entry.record is not None:
            return Readiness.VERIFY
        return kind

    def _start(self, entries: Sequence[BlockEntry], kind: Readiness) -> list[Future[None]]:
        if kind is Readiness.WAIT:
            return list({id(job): job for entry in entries if (job := entry.promotion) is not None}.values())
        for entry in entries:
            entry.moves += 1
        return [self._mover.promote(entries) if kind is Readiness.PROMOTE else self._mover.verify(entries)]

    def _evaluate(self, entries: Sequence[BlockEntry]) -> RunResult:
        with self._lock:
            for num_blocks, entry in enumerate(entries):
                if not (entry.is_readable and entry.is_verified):
                    return RunResult(num_blocks, MissReason.CHECKSUM)
        return RunResult(len(entries), None)
