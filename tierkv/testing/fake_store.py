"""`FakeBlockStore`: the `BlockStore` interface over a dict, for tests of what stands above a store.

One `FakeBackend` is what several handles (sessions) share; `FakeBlockStore.another()` opens a second handle. Time comes from a
clock, so expiry can be driven. Switches inject failures: `backend.unavailable`, `backend.damage(key)`, `backend.refuse`. It keeps
every promise of the interface (the contract suite runs on it) but has one tier, no I/O and no speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tierkv.clock import Clock, SystemClock
from tierkv.errors import ClosedError, ConflictError, InvalidRequestError, UnavailableError
from tierkv.interface import Grant, Lease, ReadyRun, Reservation
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId, block_key
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import (
    Durability,
    MissReason,
    PrefixMatch,
    ReserveOutcome,
    StoreStats,
    TierName,
    TierStats,
)
from tierkv.settings import LimitSettings
from tierkv.testing.fake_advice import FakeAdvice


@dataclass(slots=True)
class _Block:
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
    hints: Hints
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
    clock: Clock
    is_released: bool = False

    @property
    def is_valid(self) -> bool:
        return not self.is_released and self.clock.monotonic_s() < self.expires_at_s

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
        self.blocks: dict[BlockKey, _Block] = {}
        self.gone: dict[BlockKey, MissReason] = {}
        self.advice = FakeAdvice(self.blocks, capacity_blocks)
        self.reservations: dict[FakeReservation, FakeBlockStore] = {}
        self.leases: dict[FakeLease, FakeBlockStore] = {}
        self.handles: set[FakeBlockStore] = set()
        self.hits = 0
        self.misses: dict[str, int] = {}
        self.opened_at_s = self.clock.monotonic_s()
        self._uses = 0

    def damage(self, key: BlockKey) -> None:
        """The next acquire finds that the block's checksum is wrong. Raises KeyError for a block that is not held."""
        self.blocks[key].is_damaged = True

    def expire(self) -> None:
        """Returns what expired leases and reservations held."""
        self.advice.expire(self.clock.now_ns() / 1e9)
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
        """Drops a block and what follows it; None: deleted on purpose, so that they count as never seen."""
        going = [key]
        for gone in going:  # grows while it is walked
            going += [below for below, block in self.blocks.items() if block.parent == gone]
            del self.blocks[gone]
            self.advice.forget(gone)
            if reason is None:
                self.gone.pop(gone, None)
            else:
                self.gone[gone] = reason

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
        leaves = [key for key in self.blocks if key not in parents and key not in fixed and not self.advice.is_retained(key)]
        if not leaves:
            return False
        self.forget(min(leaves, key=lambda key: self.blocks[key].used_at), MissReason.EVICTED)
        return True

    def miss_of(self, key: BlockKey) -> MissReason:
        return self.gone.get(key, MissReason.NEVER_SEEN)

    def advise(self, keys: Sequence[BlockKey], hints: Hints, *, own_leases: int) -> None:
        """Does what `hints` say of held blocks. own_leases — leases on them that are the adviser's own."""
        if hints == NO_HINTS:
            return
        leases: dict[BlockKey, int] = {}
        for key in (key for lease in self.leases for key in lease.keys):
            leases[key] = leases.get(key, 0) + 1
        used = {key for key, count in leases.items() if count > own_leases}
        self.advice.take(keys, hints, used_by_others=used, now_s=self.clock.now_ns() / 1e9)

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        pending = self.pending_keys()
        assert not pending & self.blocks.keys(), "a block is both held and being written"
        assert self.capacity_blocks is None or len(pending) + len(self.blocks) <= self.capacity_blocks, "over capacity"
        assert all(block.namespace_id in self.namespaces for block in self.blocks.values()), "a block without a namespace"


class FakeBlockStore:
    """One handle on a `FakeBackend`; every verb is immediate, so `timeout_s` has no effect."""

    def __init__(
        self,
        backend: FakeBackend | None = None,
        *,
        capacity_blocks: int | None = None,
        clock: Clock | None = None,
        durability: Durability = Durability.INTERVAL,
    ) -> None:
        self.backend = backend if backend is not None else FakeBackend(capacity_blocks=capacity_blocks, clock=clock)
        self.backend.handles.add(self)
        self._durability = durability
        self._closed = False

    @property
    def unavailable(self) -> bool:
        """Whether every verb raises UnavailableError."""
        return self.backend.unavailable

    @unavailable.setter
    def unavailable(self, value: bool) -> None:
        self.backend.unavailable = value

    def damage(self, key: BlockKey) -> None:
        """Makes the next acquire of `key` find a wrong checksum."""
        self.backend.damage(key)

    def another(self) -> FakeBlockStore:
        """A second handle (session) on the same content."""
        return FakeBlockStore(self.backend)

    def register(
        self, identity: Identity, layout: Layout, *, durability: Durability | None = None, timeout_s: float | None = None
    ) -> Namespace:
        self._enter()
        namespace_id = identity.fingerprint(layout)
        promise = durability if durability is not None else self._durability
        return self.backend.namespaces.setdefault(namespace_id, Namespace(namespace_id, identity, layout, promise))

    def lookup(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> PrefixMatch:
        self._enter(namespace_id, keys)
        held = self._prefix(namespace_id, keys)
        miss = self.backend.miss_of(keys[len(held)]) if len(held) < len(keys) else None
        return PrefixMatch((TierName.HOST,) * len(held), miss)

    def reserve(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        *,
        parent: BlockKey | None = None,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> FakeReservation:
        self._enter(namespace_id, keys if parent is None else [parent, *keys])
        backend = self.backend
        parents = dict(zip(keys, [parent, *keys], strict=False))
        expires_at_s = backend.clock.monotonic_s() + backend.limits.reservation_ttl_s
        reservation = FakeReservation(namespace_id, parents, {}, expires_at_s, hints)
        backend.reservations[reservation] = self
        reservation.grants = tuple(self._grants(reservation, keys))
        if not reservation.open_keys:  # no commit will take the hints
            backend.advise(
                [grant.key for grant in reservation.grants if grant.outcome is ReserveOutcome.PRESENT], hints, own_leases=0
            )
        return reservation

    def commit(
        self,
        reservation: Reservation,
        keys: Sequence[BlockKey] | None = None,
        *,
        durability: Durability | None = None,
        timeout_s: float | None = None,
    ) -> int:
        self._enter()
        own = self._own(reservation)
        chosen = self._chosen(own, keys)
        if own.is_over:
            raise ConflictError("the reservation expired; look up and reserve again", granted=len(own.buffers))
        for key in chosen:
            self.backend.blocks[key] = _Block(own.namespace_id, own.parents[key], own.buffers[key])
            self.backend.gone.pop(key, None)
        for key in reversed(chosen):  # the head ends most recent, so that a chain is lost from its tail
            self.backend.touch(key)
        self.backend.advise(chosen, own.hints, own_leases=0)
        self._give_back(own, chosen)
        return len(chosen)

    def abort(self, reservation: Reservation, keys: Sequence[BlockKey] | None = None, *, timeout_s: float | None = None) -> int:
        self._enter()
        own = self._own(reservation)
        named = own.open_keys if keys is None else {block_key(key) for key in keys}
        returned = own.open_keys & named
        self._give_back(own, list(returned))
        return len(returned)

    def acquire(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> FakeLease:
        self._enter(namespace_id, keys)
        backend = self.backend
        held = self._prefix(namespace_id, keys)
        damaged = next((idx for idx, key in enumerate(held) if backend.blocks[key].is_damaged), None)
        if damaged is not None:
            backend.forget(held[damaged], MissReason.CHECKSUM)
            held = held[:damaged]
        miss = backend.miss_of(keys[len(held)]) if len(held) < len(keys) else None
        for key in reversed(held):
            backend.touch(key)
        backend.hits += len(held)
        if miss is not None:
            backend.misses[miss] = backend.misses.get(miss, 0) + len(keys) - len(held)
        views = tuple(memoryview(backend.blocks[key].data).toreadonly() for key in held)
        lease = FakeLease(tuple(held), views, miss, backend.clock.monotonic_s() + backend.limits.lease_ttl_s, backend.clock)
        if held:
            backend.leases[lease] = self
        backend.advise(held, hints, own_leases=1)
        return lease

    def release(self, lease: Lease) -> None:
        if not isinstance(lease, FakeLease):
            raise InvalidRequestError("this lease is of another store", lease=type(lease).__name__)
        lease.is_released = True
        self.backend.leases.pop(lease, None)

    def prefetch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        self._enter(namespace_id, keys)
        return 0

    def put(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        sources: Sequence[memoryview],
        *,
        parent: BlockKey | None = None,
        durability: Durability | None = None,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> tuple[ReserveOutcome, ...]:
        self._enter(namespace_id, keys)
        sized = self._sized(namespace_id, keys, sources)
        reservation = self.reserve(namespace_id, keys, parent=parent, hints=hints)
        for grant, source in zip(reservation.grants, sized, strict=True):
            if grant.buffer is not None:
                grant.buffer[:] = source
        self.commit(reservation, durability=durability)
        return tuple(grant.outcome for grant in reservation.grants)

    def get(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        targets: Sequence[memoryview],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> int:
        self._enter(namespace_id, keys)
        sized = self._sized(namespace_id, keys, targets)
        if any(target.readonly for target in sized):
            raise InvalidRequestError("a target must be writable", num_targets=len(sized))
        lease = self.acquire(namespace_id, keys, hints=hints)
        for target, block in zip(sized, lease.blocks(), strict=False):
            target[:] = block
        self.release(lease)
        return lease.num_blocks

    def advise(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints, *, timeout_s: float | None = None) -> int:
        self._enter(namespace_id, keys)
        blocks = self.backend.blocks
        held = [key for key in keys if key in blocks and blocks[key].namespace_id == namespace_id]
        self.backend.advise(held, hints, own_leases=0)
        return len(held)

    def delete(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        self._enter(namespace_id, keys)
        backend = self.backend
        busy = backend.leased_keys() | backend.pending_keys()
        for key in keys:
            if key in busy:
                raise ConflictError("a block is leased or being written; delete it later", key=key)
        held = {key for key in keys if key in backend.blocks and backend.blocks[key].namespace_id == namespace_id}
        for key in held:
            if key in backend.blocks:  # it has not gone with one before it
                backend.forget(key, None)
        return len(held)

    def clear(self, namespace_id: NamespaceId, *, timeout_s: float | None = None) -> int:
        self._enter(namespace_id)
        leased = self.backend.leased_keys()
        free = [k for k, block in self.backend.blocks.items() if block.namespace_id == namespace_id and k not in leased]
        for key in free:
            if key in self.backend.blocks:
                self.backend.forget(key, None)
        return len(free)

    def stats(self, *, timeout_s: float | None = None) -> StoreStats:
        self._enter()
        backend = self.backend
        used_bytes = sum(len(block.data) for block in backend.blocks.values())
        return StoreStats(
            version="fake",
            uptime_s=backend.clock.monotonic_s() - backend.opened_at_s,
            tiers=(TierStats(TierName.HOST, used_bytes, used_bytes, len(backend.blocks)),),
            hits={TierName.HOST.value: backend.hits},
            misses=dict(backend.misses),
            sessions=len(backend.handles),
            leases=len(backend.leases),
            reservations=len(backend.reservations),
        )

    def flush(self, *, timeout_s: float | None = None) -> int:
        self._enter()
        return 0

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        backend = self.backend
        backend.handles.discard(self)
        for reservation in [r for r, owner in backend.reservations.items() if owner is self]:
            backend.end_reservation(reservation)
        for lease in [entry for entry, owner in backend.leases.items() if owner is self]:
            lease.is_released = True
            del backend.leases[lease]

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        self.backend.check_integrity()

    def _enter(self, namespace_id: NamespaceId | None = None, keys: Sequence[BlockKey] = ()) -> None:
        """What every verb does first: refuse when closed or away, check the input, let time pass."""
        if self._closed:
            raise ClosedError("this store handle is closed; open a new one")
        if self.backend.unavailable:
            raise UnavailableError("the store is away")
        self.backend.expire()
        if namespace_id is not None and namespace_id not in self.backend.namespaces:
            raise InvalidRequestError("unknown namespace; register it first", namespace=namespace_id)
        if len(keys) > self.backend.limits.keys_per_call:
            raise InvalidRequestError("too many keys in a call", num_keys=len(keys), limit=self.backend.limits.keys_per_call)
        for key in keys:
            block_key(key)
        if len(set(keys)) != len(keys):
            raise InvalidRequestError("a key stands twice in one call", num_keys=len(keys))

    def _prefix(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> list[BlockKey]:
        held: list[BlockKey] = []
        for key in keys:
            block = self.backend.blocks.get(key)
            if block is None or block.namespace_id != namespace_id:
                break
            held.append(key)
        return held

    def _grants(self, reservation: FakeReservation, keys: Sequence[BlockKey]) -> Iterator[Grant]:
        backend = self.backend
        block_bytes = backend.namespaces[reservation.namespace_id].layout.block_bytes
        keep = {*keys, *(parent for parent in reservation.parents.values() if parent is not None)}
        parent = next(iter(reservation.parents.values()), None)
        is_full = parent is not None and parent not in backend.blocks and parent not in backend.pending_keys()
        for key in keys:
            if key in backend.blocks:
                if backend.blocks[key].namespace_id != reservation.namespace_id:
                    raise InvalidRequestError("this key belongs to another namespace", key=key)
                yield Grant(key, ReserveOutcome.PRESENT, None)
            elif key in backend.pending_keys():
                yield Grant(key, ReserveOutcome.PENDING, None)
            elif is_full or not backend.make_room(keep):
                is_full = True
                yield Grant(key, ReserveOutcome.REFUSED, None)
            else:
                reservation.buffers[key] = bytearray(block_bytes)
                reservation.open_keys.add(key)
                yield Grant(key, ReserveOutcome.GRANTED, memoryview(reservation.buffers[key]))

    def _own(self, reservation: Reservation) -> FakeReservation:
        if not isinstance(reservation, FakeReservation):
            raise InvalidRequestError("this reservation is of another store", reservation=type(reservation).__name__)
        return reservation

    def _chosen(self, own: FakeReservation, keys: Sequence[BlockKey] | None) -> list[BlockKey]:
        """The keys to commit, head first. Raises InvalidRequestError naming the first that cannot be."""
        if keys is None:
            return [key for key in own.buffers if key in own.open_keys]
        for key in keys:
            if block_key(key) not in own.buffers:
                raise InvalidRequestError("this reservation did not grant the key", key=key)
            if not own.is_over and key not in own.open_keys:
                raise InvalidRequestError("the key was committed or aborted before", key=key)
        if len(set(keys)) != len(keys):
            raise InvalidRequestError("a key stands twice in one commit", num_keys=len(keys))
        return list(keys)

    def _give_back(self, own: FakeReservation, keys: Sequence[BlockKey]) -> None:
        own.open_keys.difference_update(keys)
        if not own.open_keys:
            self.backend.reservations.pop(own, None)

    def _sized(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], buffers: Sequence[memoryview]) -> list[memoryview]:
        block_bytes = self.backend.namespaces[namespace_id].layout.block_bytes
        if len(buffers) != len(keys):
            raise InvalidRequestError("one buffer a key", num_keys=len(keys), num_buffers=len(buffers))
        for idx, buffer in enumerate(buffers):
            if buffer.nbytes != block_bytes or not buffer.c_contiguous:
                raise InvalidRequestError(
                    "a buffer must have the layout's bytes, contiguous", idx=idx, found_bytes=buffer.nbytes, block_bytes=block_bytes
                )
        return [buffer.cast("B") for buffer in buffers]
