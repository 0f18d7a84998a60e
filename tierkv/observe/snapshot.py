"""What a store tells of itself: hits and misses as they are counted, and the snapshot that status and metrics show. Lock held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import tierkv
from tierkv.clock import Clock
from tierkv.index.holds import HoldTable, Reservation
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import MissReason, PolicyStats, StoreStats, TierName, TierStats
from tierkv.placement.residency import Residency
from tierkv.policies.base import Policy
from tierkv.policy_state import PolicyKeeper


class Observer:
    """Counts blocks served by tier and blocks not served by reason, since the store was opened."""

    def __init__(self, residency: Residency, clock: Clock, keeper: PolicyKeeper) -> None:
        self._books = residency
        self._keeper = keeper
        self._clock = clock
        self._started_at_s = clock.monotonic_s()
        self._hits: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()

    def count(self, tiers: Sequence[TierName], *, miss: MissReason | None, num_missed: int) -> None:
        """One acquire: where its blocks were found, and how many were not, for what reason."""
        self._hits.update(tiers)
        if miss is not None:
            self._misses[miss] += num_missed

    def snapshot(
        self,
        *,
        sessions: int,
        leases: int,
        reservations: HoldTable[Reservation],
        disk_blocks: int,
        disk_failure: str | None,
        write_budget_left_bytes: int | None,
    ) -> StoreStats:
        """Everything at one moment. disk_blocks — counted before: asking the disk's index is no work for under the lock."""
        books = self._books
        num_reserved = sum(len(reservation.granted) for reservation in reservations)
        host_blocks = len(books.host_policy) - num_reserved
        tiers = list(self._devices())
        tiers.append(TierStats(TierName.HOST, books.host.capacity_bytes, books.host.used_bytes, host_blocks))
        if books.disk is not None:
            tiers.append(TierStats(TierName.DISK, books.disk.capacity_bytes, books.disk.used_bytes, disk_blocks))
        of_pools = [pool.memory.degraded for pool in books.pools]
        return StoreStats(
            version=tierkv.__version__,
            uptime_s=self._clock.monotonic_s() - self._started_at_s,
            tiers=tuple(tiers),
            hits=dict(self._hits),
            misses=dict(self._misses),
            sessions=sessions,
            leases=leases,
            reservations=len(reservations),
            counters={**books.counters, **self._keeper.counters},
            degraded=tuple(
                sentence for sentence in (disk_failure, books.host.degraded, *of_pools, *self._keeper.problems) if sentence
            ),
            policies=tuple(self._policies()),
            write_budget_left_bytes=write_budget_left_bytes,
        )

    def _devices(self) -> Iterator[TierStats]:
        """All devices as one tier; pages that somebody fills are used too."""
        pools = self._books.pools
        if pools:
            used_bytes = sum((pool.num_pages - pool.num_free) * pool.page_bytes for pool in pools)
            capacity_bytes = sum(pool.memory.memory_bytes for pool in pools)
            yield TierStats(TierName.DEVICE, capacity_bytes, used_bytes, sum(pool.num_named for pool in pools))

    def _policies(self) -> Iterator[PolicyStats]:
        if self._books.pools:
            yield _together([_policy_stats(TierName.DEVICE, pool.policy) for pool in self._books.pools])
        yield _policy_stats(TierName.HOST, self._books.host_policy)
        if self._books.disk_policy is not None:
            yield _policy_stats(TierName.DISK, self._books.disk_policy)


def _policy_stats(tier: TierName, policy: Policy[BlockKey]) -> PolicyStats:
    state = policy.state()
    return PolicyStats(
        tier=tier,
        name=state.name,
        t1_bytes=state.t1_weight,
        t2_bytes=state.t2_weight,
        waiting_bytes=state.waiting_weight,
        b1_keys=state.b1_keys,
        b2_keys=state.b2_keys,
        ghost_hits_b1=state.ghost_hits_b1,
        ghost_hits_b2=state.ghost_hits_b2,
        p=state.p,
        w=state.w,
    )


def _together(parts: Sequence[PolicyStats]) -> PolicyStats:
    """The policies of several pools as one: sums, and the mean of what steers them."""
    first, count = parts[0], len(parts)
    return PolicyStats(
        tier=first.tier,
        name=first.name,
        t1_bytes=sum(part.t1_bytes for part in parts),
        t2_bytes=sum(part.t2_bytes for part in parts),
        waiting_bytes=sum(part.waiting_bytes for part in parts),
        b1_keys=sum(part.b1_keys for part in parts),
        b2_keys=sum(part.b2_keys for part in parts),
        ghost_hits_b1=sum(part.ghost_hits_b1 for part in parts),
        ghost_hits_b2=sum(part.ghost_hits_b2 for part in parts),
        p=sum(part.p for part in parts) / count,
        w=sum(part.w for part in parts) / count,
    )
