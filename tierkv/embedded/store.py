"""`EmbeddedStore`: the verbs of blocks in this process.

Buffers are views of the arena, so nothing is copied on the way in or out except by `put` and `get`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierkv.answers import Explanation, ReserveResult
from tierkv.copying import check_buffers, copy_block
from tierkv.embedded.leases import EmbeddedLease, EmbeddedReservation, own_reservation
from tierkv.embedded.pages import EmbeddedPages
from tierkv.errors import InvalidRequestError
from tierkv.interface import Grant, Lease, Reservation
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, Extent, PrefixMatch, ReserveOutcome, StoreStats


class EmbeddedStore(EmbeddedPages):
    """A `BlockStore` and a `PageStore` in this process; see `tierkv.interface` and `tierkv.pages` for the contract of each verb."""

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
        own = own_reservation(reservation)
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
        own = own_reservation(reservation)
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
