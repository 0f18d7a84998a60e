"""What the handles of `FakeBlockStore` share: blocks, reservations and leases in dicts, and the switches that make them fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tierkv.clock import Clock, SystemClock
from tierkv.interface import Grant, ReadyRun
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import MissReason, TierName
from tierkv.settings import LimitSettings


@dataclass(slots=True)
class FakeBlock:
    """One held block."""

    namespace_id: NamespaceId
    parent: BlockKey | None
    data: bytearray
    used_at: int = 0
    """Counts accesses, so that the least recent block is known without a clock."""
    is_damaged: bool = False


@dataclass(slots=True, eq=False)
class FakeReservation:
    """What `FakeBlockStore.reserve` returns."""

    namespace_id: NamespaceId
    parents: dict[BlockKey, BlockKey | None]
    buffers: dict[BlockKey, bytearray]
    expires_at_s: float
    grants: tuple[Grant, ...] = ()
    open_keys: set[BlockKey] = field(default_factory=set)
    is_over: bool = False
    """Expired, or its session ended: commits conflict from now on."""


@dataclass(slots=True, eq=False)
class FakeLease:
    """What `FakeBlockStore.acquire` returns."""

    keys: tuple[BlockKey, ...]
    views: tuple[memoryview, ...]
    miss: MissReason | None
    expires_at_s: float

    @property
    def num_blocks(self) -> int:
        return len(self.views)

    @property
    def tiers(self) -> tuple[TierName, ...]:
        return (TierName.HOST,) * len(self.views)

    def runs(self) -> Iterator[ReadyRun]:
        if self.views:
            yield ReadyRun(0, self.views)

    def blocks(self) -> tuple[memoryview, ...]:
        return self.views


class FakeBackend:
    """The content that handles share, and the switches that make it fail.

    capacity_blocks — blocks held or reserved at most, None: no bound. Set `unavailable` and every verb raises UnavailableError
    (`release` and `close` stay silent, as with a real client); set `refuse` and every new block is refused.
    """

    def __init__(
        self, *, capacity_blocks: int | None = None, clock: Clock | None = None, limits: LimitSettings | None = None
    ) -> None:
        self.capacity_blocks = capacity_blocks
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.limits = limits if limits is not None else LimitSettings()
        self.unavailable = False
        self.refuse = False
        self.namespaces: dict[NamespaceId, Namespace] = {}
        self.blocks: dict[BlockKey, FakeBlock] = {}
        self.gone: dict[BlockKey, MissReason] = {}
        self.reservations: dict[FakeReservation, object] = {}
        self.leases: dict[FakeLease, object] = {}
        self.handles: set[object] = set()
        self.hits = 0
        self.misses: dict[str, int] = {}
        self.opened_at_s = self.clock.monotonic_s()
        self._uses = 0

    def damage(self, key: BlockKey) -> None:
        """The next acquire finds that the block's checksum is wrong. Raises KeyError for a block that is not held."""
        self.blocks[key].is_damaged = True

    def expire(self) -> None:
        """Returns what expired leases and reservations held."""
        now_s = self.clock.monotonic_s()
        for reservation in [r for r in self.reservations if r.expires_at_s <= now_s]:
            self.end_reservation(reservation)
        for lease in [entry for entry in self.leases if entry.expires_at_s <= now_s]:
            del self.leases[lease]

    def end_reservation(self, reservation: FakeReservation) -> None:
        """Returns its extents; later commits conflict."""
        reservation.is_over = True
        reservation.open_keys.clear()
        self.reservations.pop(reservation, None)

    def pending_keys(self) -> set[BlockKey]:
        return {key for reservation in self.reservations for key in reservation.open_keys}

    def leased_keys(self) -> set[BlockKey]:
        return {key for lease in self.leases for key in lease.keys}

    def forget(self, key: BlockKey, reason: MissReason | None) -> None:
        """Drops a block; None: deleted on purpose, so that it counts as never seen."""
        del self.blocks[key]
        if reason is None:
            self.gone.pop(key, None)
        else:
            self.gone[key] = reason

    def touch(self, key: BlockKey) -> None:
        self._uses += 1
        self.blocks[key].used_at = self._uses

    def make_room(self, keep: set[BlockKey]) -> bool:
        """Whether one more block fits, after evicting a least recent block without descendants if need be."""
        if self.refuse:
            return False
        pending = self.pending_keys()
        if self.capacity_blocks is None or len(self.blocks) + len(pending) < self.capacity_blocks:
            return True
        parents = {block.parent for block in self.blocks.values()}
        parents |= {r.parents[key] for r in self.reservations for key in r.open_keys}
        fixed = self.leased_keys() | keep
        leaves = [key for key in self.blocks if key not in parents and key not in fixed]
        if not leaves:
            return False
        self.forget(min(leaves, key=lambda key: self.blocks[key].used_at), MissReason.EVICTED)
        return True

    def miss_of(self, key: BlockKey) -> MissReason:
        return self.gone.get(key, MissReason.NEVER_SEEN)

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        pending = self.pending_keys()
        assert not pending & self.blocks.keys(), "a block is both held and being written"
        assert self.capacity_blocks is None or len(pending) + len(self.blocks) <= self.capacity_blocks, "over capacity"
        assert all(block.namespace_id in self.namespaces for block in self.blocks.values()), "a block without a namespace"
