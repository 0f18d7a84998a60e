"""The load path's decisions: pin the longest held prefix and start whatever stands between its blocks and their reader.

Called with the store's lock held; jobs run in the mover. Order matters: pin first, then rescue and place, so that making room for
the end of a prefix never takes its beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from tierkv.answers import PendingRun, RunResult
from tierkv.index.entry import BlockEntry
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.lifecycle import BlockEvent, BlockState
from tierkv.model.outcomes import MissReason, TierName
from tierkv.placement import planner
from tierkv.placement.mover import Mover
from tierkv.placement.planner import Readiness
from tierkv.placement.residency import Residency
from tierkv.placement.waiting import after_all


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
        self, *, lock: threading.RLock, residency: Residency, mover: Mover, run_blocks: int, verify_every_hit: bool
    ) -> None:
        self._lock = lock
        self._books = residency
        self._mover = mover
        self._run_blocks = run_blocks
        self._verify_every_hit = verify_every_hit

    def hold(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, is_access: bool) -> HeldPrefix:
        """Pins the longest held prefix of `keys`; is_access — whether the policies hear of it."""
        books = self._books
        entries = books.index.match(namespace_id, keys)
        miss = books.index.miss_reason(keys[len(entries)]) if len(entries) < len(keys) else None
        tiers = tuple(planner.found_in(entry) for entry in entries)
        for entry in entries:
            books.pin(entry)
        num_held = self._bring_in(entries)
        if num_held < len(entries):
            miss = MissReason.CAPACITY
            for entry in entries[num_held:]:
                books.unpin(entry)
            del entries[num_held:]
            tiers = tiers[:num_held]
        if is_access:
            self._note_access(entries, tiers)
        return HeldPrefix(entries, tiers, self._start_runs(entries), miss)

    def _bring_in(self, entries: list[BlockEntry]) -> int:
        """Rescues what is leaving and gives room to what is only on disk; returns how many leading entries made it."""
        num_held = len(entries)
        for idx, entry in enumerate(entries):
            if entry.state is BlockState.EVICTING and not self._books.rescue(entry):
                num_held = idx
                break
        on_disk = [(idx, entry) for idx, entry in enumerate(entries[:num_held]) if entry.state is BlockState.FREE]
        placed = self._books.place([entry for _, entry in on_disk], BlockEvent.PROMOTE)
        return on_disk[placed][0] if placed < len(on_disk) else num_held

    def _note_access(self, entries: list[BlockEntry], tiers: tuple[TierName, ...]) -> None:
        """One access per block, tail first, so that the head ends most recent. A block placed just now was counted by that."""
        books = self._books
        for entry, tier in zip(reversed(entries), reversed(tiers), strict=True):
            if tier is TierName.HOST:
                books.host_policy.on_access(entry.key)
            if entry.is_on_disk and books.disk_policy is not None and entry.key in books.disk_policy:
                books.disk_policy.on_access(entry.key)

    def _start_runs(self, entries: list[BlockEntry]) -> tuple[PendingRun, ...]:
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

    def _start(self, entries: list[BlockEntry], kind: Readiness) -> list[Future[None]]:
        if kind is Readiness.WAIT:
            return list({id(job): job for entry in entries if (job := entry.promotion) is not None}.values())
        for entry in entries:
            entry.moves += 1
        return [self._mover.promote(entries) if kind is Readiness.PROMOTE else self._mover.verify(entries)]

    def _evaluate(self, entries: list[BlockEntry]) -> RunResult:
        with self._lock:
            for num_blocks, entry in enumerate(entries):
                if not (entry.is_readable and entry.is_verified):
                    return RunResult(num_blocks, MissReason.CHECKSUM)
        return RunResult(len(entries), None)
