"""`EmbeddedStore`: the `BlockStore` and `PageStore` interfaces over a `TieredStore` in this process, without a daemon.

One session; a thread looks after expiries. Buffers are views of the arena, so nothing is copied on the way in or out except by
`put` and `get`; the buffer of a pool is the pool's own map.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Self, TypeVar

from tierkv.answers import Acquisition, Explanation, PageAcquisition, ReserveResult
from tierkv.clock import Clock
from tierkv.copying import check_buffers, copy_block
from tierkv.errors import InvalidRequestError, UnavailableError
from tierkv.interface import Grant, Lease, ReadyRun, Reservation
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, Extent, MissReason, PrefixMatch, ReserveOutcome, StoreStats, TierName
from tierkv.pages import PageOutcome, PageRun, Pool
from tierkv.placement.worker import Worker
from tierkv.store import SessionId, TieredStore

DEFAULT_TIMEOUT_S = 30.0
_HOUSEKEEPING_S = 1.0
T = TypeVar("T")


class EmbeddedReservation:
    """Granted buffers of this process's arena."""

    def __init__(self, grants: tuple[Grant, ...], reservation_id: int) -> None:
        self.grants = grants
        self.reservation_id = reservation_id
        self.open_keys = {grant.key: None for grant in grants if grant.outcome is ReserveOutcome.GRANTED}

    def close(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self.open_keys.pop(key, None)


class EmbeddedLease:
    """Pinned blocks of this process's arena."""

    def __init__(
        self,
        store: TieredStore,
        session: SessionId,
        acquired: Acquisition,
        *,
        block_bytes: int,
        clock: Clock,
        asked_at_s: float,
        timeout_s: float,
    ) -> None:
        self.lease_id = acquired.lease_id
        self._store = store
        self._session = session
        self._clock = clock
        self._acquired = acquired
        self._block_bytes = block_bytes
        self._deadline_s = asked_at_s + timeout_s
        self._expires_at_s = asked_at_s + acquired.expires_in_s  # not from now on: the store's clock runs since it was asked
        self._num_blocks = len(acquired.tiers)
        self._miss = acquired.miss
        self._blocks: tuple[memoryview, ...] | None = None
        self.is_released = False

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def tiers(self) -> tuple[TierName, ...]:
        return self._acquired.tiers[: self._num_blocks]

    @property
    def miss(self) -> MissReason | None:
        return self._miss

    @property
    def is_valid(self) -> bool:
        return not self.is_released and not self._store.is_closing and self._clock.monotonic_s() < self._expires_at_s

    def runs(self) -> Iterator[ReadyRun]:
        done = 0
        for run in self._acquired.pending:
            if run.start_idx > done:
                yield self._ready(done, run.start_idx)
            try:
                result = run.done.result(max(0.0, self._deadline_s - self._clock.monotonic_s()))
                num_ready, miss = result.num_blocks, result.miss
            except FutureTimeoutError:
                num_ready, miss = 0, MissReason.TIMEOUT
                self._store.note_timeout(self._session, self.lease_id, run.start_idx)
            done = run.start_idx + num_ready
            if num_ready:
                yield self._ready(run.start_idx, done)
            if num_ready < run.num_blocks:
                self._num_blocks, self._miss = done, miss
                return
        if done < self._num_blocks:
            yield self._ready(done, self._num_blocks)

    def blocks(self) -> tuple[memoryview, ...]:
        if self._blocks is None:
            self._blocks = tuple(block for run in self.runs() for block in run.blocks)
        return self._blocks

    def _ready(self, start_idx: int, stop_idx: int) -> ReadyRun:
        extents = self._acquired.extents[start_idx:stop_idx]
        return ReadyRun(start_idx, tuple(self._store.view(extent)[: self._block_bytes].toreadonly() for extent in extents))


class EmbeddedPageLease:
    """Pages of this process's pool. A copy that fails ends it, and so does a deadline that passes while somebody waits."""

    def __init__(self, acquired: PageAcquisition, *, clock: Clock, deadline_s: float) -> None:
        self.pages = acquired.pages
        self.tiers = acquired.tiers
        self._pending = acquired.pending
        self._miss = acquired.miss
        self._clock = clock
        self._deadline_s = deadline_s
        self._limit = len(acquired.pages)

    @property
    def miss(self) -> MissReason | None:
        self._look()
        return self._miss

    @property
    def num_blocks(self) -> int:
        self._look()
        return self._limit

    @property
    def num_ready(self) -> int:
        self._look()
        return min(self._limit, self._pending[0].start_idx) if self._pending else self._limit

    @property
    def is_settled(self) -> bool:
        self._look()
        return not self._pending

    def wait(self, timeout_s: float | None = None) -> int:
        until_s = self._deadline_s if timeout_s is None else min(self._deadline_s, self._clock.monotonic_s() + timeout_s)
        while self._pending:
            run = self._pending[0]
            try:
                run.done.result(max(0.0, until_s - self._clock.monotonic_s()))
            except FutureTimeoutError:
                self._end(run.start_idx, MissReason.TIMEOUT)
            self._look()
        return self._limit

    def _look(self) -> None:
        """Takes note of the runs that are over, in order."""
        while self._pending and self._pending[0].done.done():
            run, result = self._pending[0], self._pending[0].done.result()
            self._pending = self._pending[1:]
            if result.num_blocks < run.num_blocks:
                self._end(run.start_idx + result.num_blocks, result.miss)

    def _end(self, num_blocks: int, miss: MissReason | None) -> None:
        self._pending = ()
        self._limit, self._miss = num_blocks, miss


class EmbeddedStore:
    """A `BlockStore` and a `PageStore` in this process; see `tierkv.interface` and `tierkv.pages` for the contract of each verb."""

    def __init__(self, store: TieredStore, *, clock: Clock, discard_arena: bool, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.tiered = store
        self._clock = clock
        self._discard_arena = discard_arena
        self._timeout_s = timeout_s
        self._session = store.open_session("embedded")
        self._pool_buffers: list[memoryview] = []
        self._housekeeper = Worker("tierkv-housekeeper", self._tidy, wait_s=lambda: _HOUSEKEEPING_S)
        self._housekeeper.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(
        self, identity: Identity, layout: Layout, *, durability: Durability | None = None, timeout_s: float | None = None
    ) -> Namespace:
        del timeout_s  # bounded by one index commit
        return self.tiered.register(identity, layout, durability)

    def lookup(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> PrefixMatch:
        del timeout_s  # answers at memory speed
        return self.tiered.lookup(namespace_id, keys)

    def reserve(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        *,
        parent: BlockKey | None = None,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> Reservation:
        del timeout_s  # answers at memory speed
        block_bytes = self.tiered.namespace(namespace_id).layout.block_bytes
        result = self.tiered.reserve(self._session, namespace_id, keys, parent, hints)
        return EmbeddedReservation(self._grants(keys, result, block_bytes), result.reservation_id)

    def _grants(self, keys: Sequence[BlockKey], result: ReserveResult, block_bytes: int) -> tuple[Grant, ...]:
        def buffer(extent: Extent | None) -> memoryview | None:
            return None if extent is None else self.tiered.view(extent)[:block_bytes]

        rows = zip(keys, result.outcomes, result.extents, strict=True)
        return tuple(Grant(key, outcome, buffer(extent)) for key, outcome, extent in rows)

    def commit(
        self,
        reservation: Reservation,
        keys: Sequence[BlockKey] | None = None,
        *,
        durability: Durability | None = None,
        timeout_s: float | None = None,
    ) -> int:
        own = _own_reservation(reservation)
        chosen = list(own.open_keys) if keys is None else list(keys)
        for key in chosen:
            if key not in own.open_keys:
                raise InvalidRequestError("this key was not granted here, or is committed or aborted already", key=key)
        if not chosen:
            return 0
        result = self.tiered.commit(self._session, own.reservation_id, chosen, durability)
        own.close(chosen)
        if result.durable is not None:
            self._wait(result.durable, timeout_s, "the blocks did not reach the disk in time; they are visible, not yet durable")
        return result.committed

    def abort(self, reservation: Reservation, keys: Sequence[BlockKey] | None = None, *, timeout_s: float | None = None) -> int:
        del timeout_s  # answers at memory speed
        own = _own_reservation(reservation)
        chosen = [key for key in (own.open_keys if keys is None else keys) if key in own.open_keys]
        own.close(chosen)
        return self.tiered.abort(self._session, own.reservation_id, chosen) if chosen else 0

    def acquire(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> EmbeddedLease:
        block_bytes = self.tiered.namespace(namespace_id).layout.block_bytes
        asked_at_s = self._clock.monotonic_s()
        acquired = self.tiered.acquire(self._session, namespace_id, keys, hints)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return EmbeddedLease(
            self.tiered,
            self._session,
            acquired,
            block_bytes=block_bytes,
            clock=self._clock,
            asked_at_s=asked_at_s,
            timeout_s=limit_s,
        )

    def release(self, lease: Lease) -> None:
        if not isinstance(lease, EmbeddedLease):
            raise InvalidRequestError("this lease was not given by this store", lease=type(lease).__name__)
        if not lease.is_released:
            lease.is_released = True
            self.tiered.release(self._session, [lease.lease_id])

    def prefetch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        del timeout_s  # answers at memory speed
        return self.tiered.prefetch(namespace_id, keys)

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
        block_bytes = self.tiered.namespace(namespace_id).layout.block_bytes
        check_buffers(list(sources), count=len(keys), block_bytes=block_bytes, is_written=False)
        reservation = self.reserve(namespace_id, keys, parent=parent, hints=hints)
        for grant, source in zip(reservation.grants, sources, strict=True):
            if grant.buffer is not None:
                copy_block(grant.buffer, source)
        self.commit(reservation, durability=durability, timeout_s=timeout_s)
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
        block_bytes = self.tiered.namespace(namespace_id).layout.block_bytes
        check_buffers(list(targets), count=len(keys), block_bytes=block_bytes, is_written=True)
        lease = self.acquire(namespace_id, keys, hints=hints, timeout_s=timeout_s)
        try:
            for run in lease.runs():
                for target, block in zip(targets[run.start_idx :], run.blocks, strict=False):
                    copy_block(target, block)
            if lease.is_valid:
                return lease.num_blocks
            self.tiered.count_late(lease.num_blocks)
            return 0
        finally:
            self.release(lease)

    def advise(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints, *, timeout_s: float | None = None) -> int:
        del timeout_s  # answers at memory speed
        return self.tiered.advise(namespace_id, keys, hints)

    def delete(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        return self._wait(self.tiered.delete(namespace_id, keys), timeout_s, "the disk did not forget the blocks in time")

    def clear(self, namespace_id: NamespaceId, *, timeout_s: float | None = None) -> int:
        return self._wait(self.tiered.clear(namespace_id), timeout_s, "the disk did not forget the blocks in time")

    def stats(self, *, timeout_s: float | None = None) -> StoreStats:
        del timeout_s  # answers at memory speed
        self.tiered.check_session(self._session)
        return self.tiered.stats()

    def flush(self, *, timeout_s: float | None = None) -> int:
        self.tiered.check_session(self._session)
        return self._wait(self.tiered.flush(), timeout_s, "the flush did not finish in time; it goes on")

    def explain(self, subject: bytes | str, token_ids: Sequence[int] = (), *, timeout_s: float | None = None) -> Explanation:
        """Why a block or a request hit or missed; see `tierkv.store.TieredStore.explain`."""
        del timeout_s  # bounded by the length of the trail
        return self.tiered.explain(subject, token_ids)

    def open_pool(self, namespace_id: NamespaceId, device: str, *, timeout_s: float | None = None) -> Pool:
        try:
            view = self.tiered.open_pool(self._session, namespace_id, device)
        except UnavailableError:  # pages of another size are on their way down
            self.flush(timeout_s=timeout_s)
            view = self.tiered.open_pool(self._session, namespace_id, device)
        buffer = self.tiered.pool_buffer(self._session)
        if buffer is not None:
            self._pool_buffers.append(buffer)
        return Pool(view.device, view.page_bytes, view.num_pages, buffer, view.ipc_handle)

    def reserve_pages(self, count: int, *, timeout_s: float | None = None) -> list[int]:
        del timeout_s  # answers at memory speed
        return self.tiered.reserve_pages(self._session, count)

    def commit_pages(
        self,
        namespace_id: NamespaceId,
        runs: Sequence[PageRun],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> list[tuple[PageOutcome, ...]]:
        result = self.tiered.commit_pages(self._session, namespace_id, runs, hints)
        if result.durable is not None:
            self._wait(result.durable, timeout_s, "the blocks did not reach the disk in time; they are visible, not yet durable")
        return result.outcomes

    def acquire_pages(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> EmbeddedPageLease:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic_s() + limit_s
        acquired = self.tiered.acquire_pages(self._session, namespace_id, keys, hints)
        return EmbeddedPageLease(acquired, clock=self._clock, deadline_s=deadline_s)

    def release_pages(self, pages: Sequence[int]) -> None:
        self.tiered.release_pages(self._session, pages)

    def close(self) -> None:
        self._housekeeper.stop()
        for buffer in self._pool_buffers:  # what is made of one, an array for example, keeps the memory mapped
            with contextlib.suppress(BufferError):
                buffer.release()
        self.tiered.close(discard_arena=self._discard_arena)
        self.tiered.end_pages(self._session)

    def _tidy(self) -> bool:
        self.tiered.expire()
        return False

    def _wait(self, future: Future[T], timeout_s: float | None, sentence: str) -> T:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return future.result(limit_s)
        except FutureTimeoutError:
            raise UnavailableError(sentence, timeout_s=limit_s) from None


def _own_reservation(reservation: Reservation) -> EmbeddedReservation:
    if not isinstance(reservation, EmbeddedReservation):
        raise InvalidRequestError("this reservation was not given by this store", reservation=type(reservation).__name__)
    return reservation
