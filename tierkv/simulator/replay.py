"""Runs policies over a trace and counts: hits in blocks and in prefixes, hits by tier, writes to disk, orphans, distance to Belady.

Shares are of all block accesses of the trace as it lists them, partial blocks included: those can never hit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tierkv.clock import Clock
from tierkv.errors import InvalidRequestError
from tierkv.simulator.cache import TierCache
from tierkv.simulator.capacity import Capacity
from tierkv.simulator.catalogue import BOUND, Cache, is_daemon_policy, make_cache
from tierkv.simulator.oracle import HintKind, SessionOracle
from tierkv.simulator.trace import NO_PARENT, Trace

_REQUESTS_A_STEP = 256
"""Between two looks at the clock, and at who waits for progress."""
_STEPS_A_CHECK = 16
"""Between two searches for orphans; their time is not counted."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is common to all runs of one trace."""

    policies: Sequence[str]
    """Known names, see `catalogue.check_policy`."""
    capacities: Sequence[Capacity]
    disk: Capacity | None = None
    write_back: bool = False
    hints: HintKind | None = None
    """The daemon's policies run a second time, with these hints."""


@dataclass(frozen=True, slots=True)
class Run:
    """One policy at one capacity."""

    policy: str
    capacity: str
    capacity_blocks: int
    disk_capacity_blocks: int | None
    hints: HintKind | None


@dataclass(frozen=True, slots=True)
class Result:
    """What one run counted; ratios between 0 and 1. What a policy has not is None."""

    policy: str
    capacity: str
    capacity_blocks: int
    disk_capacity_blocks: int | None
    hints: str | None
    block_hit: float
    """Share of accesses to blocks that were held."""
    prefix_hit: float
    """Share of accesses inside the leading run of held blocks: what an engine need not compute."""
    host_hit: float
    disk_hit: float
    """The two parts of prefix_hit: found in the host tier, found on disk only."""
    belady_gap: float | None
    """Belady's prefix_hit less this one at the same capacity; None where Belady did not run, or with a disk."""
    orphans: int
    """The most blocks found held without their parent; none under the daemon's policies."""
    disk_writes: int
    """Blocks."""
    accesses_per_s: float
    p: float | None
    w: float | None
    """Where ARC's adaptation stood at the end, in the host tier: p in blocks, w in powers of two."""


def plan_runs(trace: Trace, settings: Settings) -> list[Run]:
    """Every run that `settings` asks for; InvalidRequestError for a capacity of less than one block of this trace."""
    disk_blocks = None if settings.disk is None else settings.disk.blocks(trace.num_unique)
    if settings.hints is not None and trace.num_sessions == 0:
        raise InvalidRequestError("hints are told from sessions, and the trace names none", trace=trace.name)
    runs: list[Run] = []
    for policy in settings.policies:
        is_daemons = is_daemon_policy(policy)
        plain = [
            Run(policy, capacity.text, capacity.blocks(trace.num_unique), disk_blocks if is_daemons else None, None)
            for capacity in settings.capacities
        ]
        runs += plain
        if settings.hints is not None and is_daemons:
            runs += [replace(run, hints=settings.hints) for run in plain]
    return runs


def replay(trace: Trace, run: Run, *, write_back: bool, clock: Clock, progress: Callable[[int], None] = lambda _: None) -> Result:
    """Replays the trace through a cold cache. progress — called with the number of accesses since the last call.

    Speed is told by `clock` and covers the policy and its cache, not the search for orphans.
    """
    cache = make_cache(run.policy, trace, run.capacity_blocks, run.disk_capacity_blocks, write_back=write_back)
    oracle = None if run.hints is None else SessionOracle(trace, run.hints)
    totals = _Totals()
    full_only = is_daemon_policy(run.policy)
    for step, first in enumerate(range(0, len(trace.requests), _REQUESTS_A_STEP)):
        before = totals.accesses
        started = clock.monotonic_s()
        for idx in range(first, min(first + _REQUESTS_A_STEP, len(trace.requests))):
            request = trace.requests[idx]
            if request.is_save:
                cache.save(request.keys[: request.num_full] if full_only else request.keys)
                continue
            served = cache.request(request.keys[: request.num_full] if full_only else request.keys)
            totals.accesses += len(request.keys)
            totals.block_hits += served.block_hits
            totals.prefix_hits += served.prefix_hits
            totals.disk_hits += served.disk_hits
            if oracle is not None and isinstance(cache, TierCache):
                oracle.after(idx, cache)
        totals.seconds += clock.monotonic_s() - started
        if step % _STEPS_A_CHECK == _STEPS_A_CHECK - 1:
            totals.orphans = max(totals.orphans, num_orphans(cache, trace))
        progress(totals.accesses - before)
    totals.orphans = max(totals.orphans, num_orphans(cache, trace))
    cache.check_integrity()
    return _result(run, totals, cache)


def num_orphans(cache: Cache, trace: Trace) -> int:
    """How many held blocks have a parent that is held nowhere. O(held blocks)."""
    parents = trace.parents
    return sum(1 for key in cache if parents[key] != NO_PARENT and parents[key] not in cache)


def with_belady_gaps(results: Sequence[Result]) -> list[Result]:
    """The results, each with its distance to Belady's at the same capacity, where Belady ran and there is one tier."""
    bounds = {result.capacity: result.prefix_hit for result in results if result.policy == BOUND}
    return [
        result
        if result.disk_capacity_blocks is not None or result.capacity not in bounds
        else replace(result, belady_gap=bounds[result.capacity] - result.prefix_hit)
        for result in results
    ]


@dataclass(slots=True)
class _Totals:
    accesses: int = 0
    block_hits: int = 0
    prefix_hits: int = 0
    disk_hits: int = 0
    orphans: int = 0
    seconds: float = 0.0


def _result(run: Run, totals: _Totals, cache: Cache) -> Result:
    state = cache.state()
    adaptive = state if state is not None and state.name.startswith("arc") else None
    accesses = max(1, totals.accesses)
    return Result(
        policy=run.policy if run.hints is None else f"{run.policy}+hints",
        capacity=run.capacity,
        capacity_blocks=run.capacity_blocks,
        disk_capacity_blocks=run.disk_capacity_blocks,
        hints=run.hints,
        block_hit=totals.block_hits / accesses,
        prefix_hit=totals.prefix_hits / accesses,
        host_hit=(totals.prefix_hits - totals.disk_hits) / accesses,
        disk_hit=totals.disk_hits / accesses,
        belady_gap=None,
        orphans=totals.orphans,
        disk_writes=cache.disk_writes,
        accesses_per_s=accesses / max(totals.seconds, 1e-9),
        p=None if adaptive is None else adaptive.p,
        w=None if adaptive is None else adaptive.w,
    )
