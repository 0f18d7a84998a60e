"""The synchronous client: `BlockStore` over a daemon. Contract of each verb: `tierkv.interface`; the page verbs are in `pages`.

Control goes over gRPC, a call for many keys; blocks are read and written in place in the arena, or streamed where no memory is shared.
Nothing blocks past its deadline; a daemon that is away costs an UnavailableError, at once while the breaker is open, and is attached
to again by the next call after it came back.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from typing import Self, TypeVar

from tierkv.answers import Explanation
from tierkv.client import verbs
from tierkv.client.address import Address, parse_address
from tierkv.client.attachment import Attachment
from tierkv.client.lease import ClientLease
from tierkv.client.link import Link
from tierkv.client.loading import open_lease
from tierkv.client.pages import PageClient
from tierkv.client.scratch import put_requests, scratch_grants
from tierkv.client.verbs import ClientReservation, PutCall, Registration, own_reservation
from tierkv.clock import Clock, SystemClock
from tierkv.copying import check_buffers, copy_block
from tierkv.errors import ConflictError, InvalidRequestError
from tierkv.interface import Lease, Reservation
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, MissReason, PrefixMatch, ReserveOutcome, StoreStats
from tierkv.wire import explanations, messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import KEYS_PER_CALL

DEFAULT_TIMEOUT_S = 5.0
T = TypeVar("T")


def connect(
    address: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    label: str = "",
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> Client:
    """A client of the daemon at `address` (None: the default run folder; a run folder; or host:port), attached.

    timeout_s — default deadline of every verb; label — shown in the daemon's status; token, ca_file — for TCP. Raises
    UnavailableError when no daemon answers.
    """
    client = Client(parse_address(address, token=token, ca_file=ca_file), timeout_s=timeout_s, label=label or f"pid {os.getpid()}")
    try:
        client.attach()
    except BaseException:
        client.close()
        raise
    return client


class Client(PageClient):
    """A `BlockStore`, and a `PageStore`, kept by a daemon. Safe to use from several threads; not across a fork."""

    def __init__(
        self, address: Address, *, timeout_s: float = DEFAULT_TIMEOUT_S, label: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(Attachment(address, label=label, timeout_s=timeout_s, clock=clock or SystemClock()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shares_memory(self) -> bool:
        """Whether blocks are read and written in place."""
        return self._attachment.current is not None and self._attachment.current.arena is not None

    @property
    def counters(self) -> Counter[str]:
        """Calls, misses by reason, unavailable, reattached."""
        return self._attachment.counters

    def attach(self, *, timeout_s: float | None = None) -> None:
        """Attaches now instead of with the first call."""
        self._attachment.link(self._attachment.deadline(timeout_s))

    def wait_populated(self, timeout_s: float = 60.0) -> None:
        """Blocks until the map of the arena is warm; never needed, but good before a measurement."""
        if self._attachment.current is not None:
            self._attachment.current.wait_populated(timeout_s)

    # -- verbs -----------------------------------------------------------------------------------------------------------

    def register(
        self, identity: Identity, layout: Layout, *, durability: Durability | None = None, timeout_s: float | None = None
    ) -> Namespace:
        known = Registration(identity, layout, durability)
        namespace = verbs.namespace_of(known, self._attachment.call("Register", verbs.register_request(known), timeout_s))
        self._attachment.known[namespace.namespace_id] = known
        return namespace

    def lookup(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> PrefixMatch:
        return verbs.match_of(self._attachment.call("Lookup", verbs.lookup_request(namespace_id, keys), timeout_s))

    def reserve(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        *,
        parent: BlockKey | None = None,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> ClientReservation:
        block_bytes = self._block_bytes(namespace_id)
        deadline_s = self._attachment.deadline(timeout_s)
        return self._attachment.with_link(
            deadline_s, lambda link: self._reserve_on(link, namespace_id, keys, parent, hints, block_bytes, deadline_s)
        )

    def _reserve_on(
        self,
        link: Link,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        parent: BlockKey | None,
        hints: Hints,
        block_bytes: int,
        deadline_s: float,
    ) -> ClientReservation:
        if link.arena is None:
            chain = keys if parent is None else [parent, *keys[: KEYS_PER_CALL - 1]]
            verbs.check_keys(keys)
            reply = self._attachment.call_on(link, "Lookup", verbs.lookup_request(namespace_id, chain), deadline_s)
            num_present = len(reply.tiers) - (parent is not None)
            grants = scratch_grants(keys, num_present=num_present, block_bytes=block_bytes)
            return ClientReservation(namespace_id, grants, reservation_id=0, epoch=link.epoch, parent=parent, hints=hints)
        request = verbs.reserve_request(namespace_id, keys, parent, hints)
        reply = self._attachment.call_on(link, "Reserve", request, deadline_s)
        view = link.arena.view
        grants = verbs.grants_of(keys, reply, lambda offset: view(offset, block_bytes))
        return ClientReservation(namespace_id, grants, reservation_id=reply.reservation_id, epoch=link.epoch, parent=parent)

    def commit(
        self,
        reservation: Reservation,
        keys: Sequence[BlockKey] | None = None,
        *,
        durability: Durability | None = None,
        timeout_s: float | None = None,
    ) -> int:
        own = own_reservation(reservation)
        chosen = own.choose(keys)
        if not chosen:
            return 0
        deadline_s = self._attachment.deadline(timeout_s)
        if own.reservation_id == 0:
            return self._commit_scratch(own, chosen, durability, deadline_s)
        request = verbs.commit_request(own.reservation_id, chosen, durability)
        try:
            committed = int(self._attachment.call_in(own.epoch, "Commit", request, deadline_s).committed)
        except ConflictError:
            own.close(list(own.open_keys))  # all of it went, not only what was to be committed now
            raise
        own.close(chosen)
        return committed

    def _commit_scratch(
        self, own: ClientReservation, chosen: list[BlockKey], durability: Durability | None, deadline_s: float
    ) -> int:
        buffers = {grant.key: grant.buffer for grant in own.grants}
        sources = [buffer for key in chosen if (buffer := buffers[key]) is not None]
        put = PutCall(own.namespace_id, chosen, sources, own.parent_of(chosen[0]), durability, own.hints)
        outcomes = self._attachment.with_link(deadline_s, lambda link: self._stream_put(link, put, deadline_s))
        own.close(chosen)
        return sum(outcome in (ReserveOutcome.GRANTED, ReserveOutcome.PRESENT) for outcome in outcomes)

    def _stream_put(self, link: Link, put: PutCall, deadline_s: float) -> tuple[ReserveOutcome, ...]:
        requests = put_requests(put)
        reply = self._attachment.guard(
            link, lambda: link.stub.Put(requests, timeout=self._attachment.left(deadline_s), metadata=link.metadata)
        )
        return messages.outcomes_of(reply.outcomes)

    def abort(self, reservation: Reservation, keys: Sequence[BlockKey] | None = None, *, timeout_s: float | None = None) -> int:
        own = own_reservation(reservation)
        chosen = [key for key in (list(own.open_keys) if keys is None else keys) if key in own.open_keys]
        aborted = len(chosen)
        if chosen and own.reservation_id != 0:
            request = verbs.abort_request(own.reservation_id, chosen)
            # A conflict: its session is gone, and all it held with it.
            with contextlib.suppress(ConflictError):
                aborted = int(self._attachment.call_in(own.epoch, "Abort", request, self._attachment.deadline(timeout_s)).aborted)
        own.close(chosen)
        return aborted

    def acquire(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> ClientLease:
        block_bytes = self._block_bytes(namespace_id)
        deadline_s = self._attachment.deadline(timeout_s)
        return self._attachment.with_link(
            deadline_s, lambda link: open_lease(self._attachment, link, namespace_id, keys, block_bytes, hints, deadline_s)
        )

    def release(self, lease: Lease) -> None:
        if not isinstance(lease, ClientLease):
            raise InvalidRequestError("this lease was not given by this store", lease=type(lease).__name__)
        if lease.is_released:
            return
        lease.is_released = True
        if self._attachment.is_foreign:  # it is the lease of the process that forked, and so is the channel
            return
        lease.stop_reading()
        link, lease_id = lease.link, lease.progress.lease_id
        if lease_id is None or not link.is_alive:
            return
        # Nobody waits for the answer: a lease that cannot be released expires.
        self._releasing.send(link, "Release", pb.ReleaseRequest(lease_ids=[lease_id]))

    def prefetch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        return int(self._attachment.call("Prefetch", verbs.prefetch_request(namespace_id, keys), timeout_s).started)

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
        check_buffers(list(sources), count=len(keys), block_bytes=self._block_bytes(namespace_id), is_written=False)
        verbs.check_keys(keys)
        deadline_s = self._attachment.deadline(timeout_s)
        put = PutCall(namespace_id, keys, sources, parent, durability, hints)

        def put_on(link: Link) -> tuple[ReserveOutcome, ...]:
            way = self._stream_put if link.arena is None else self._put_in_arena
            return way(link, put, deadline_s)

        return self._attachment.with_link(deadline_s, put_on)

    def _put_in_arena(self, link: Link, put: PutCall, deadline_s: float) -> tuple[ReserveOutcome, ...]:
        """Reserve, copy, commit on one link, without the objects that a caller of the single verbs gets."""
        assert link.arena is not None
        reserve = verbs.reserve_request(put.namespace_id, put.keys, put.parent, put.hints)
        reply = self._attachment.call_on(link, "Reserve", reserve, deadline_s)
        outcomes = verbs.outcomes_for(put.keys, reply)
        granted = [source for outcome, source in zip(outcomes, put.sources, strict=True) if outcome is ReserveOutcome.GRANTED]
        for offset, source in zip(reply.offsets, granted, strict=True):
            copy_block(link.arena.view(offset, source.nbytes), source)
        if granted:
            request = verbs.commit_request(reply.reservation_id, [], put.durability)  # no keys: all that were granted
            self._attachment.call_on(link, "Commit", request, deadline_s)
        return outcomes

    def get(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        targets: Sequence[memoryview],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> int:
        check_buffers(list(targets), count=len(keys), block_bytes=self._block_bytes(namespace_id), is_written=True)
        lease = self.acquire(namespace_id, keys, hints=hints, timeout_s=timeout_s)
        try:
            for run in lease.runs():
                for target, block in zip(targets[run.start_idx :], run.blocks, strict=False):
                    copy_block(target, block)
            if lease.is_valid:
                return lease.num_blocks
            self.counters[f"misses_{MissReason.TIMEOUT}"] += lease.num_blocks
            return 0
        finally:
            self.release(lease)

    def advise(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints, *, timeout_s: float | None = None) -> int:
        return int(self._attachment.call("Advise", verbs.advise_request(namespace_id, keys, hints), timeout_s).advised)

    def delete(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        return int(self._attachment.call("Delete", verbs.delete_request(namespace_id, keys), timeout_s).deleted)

    def clear(self, namespace_id: NamespaceId, *, timeout_s: float | None = None) -> int:
        return int(self._attachment.call("Clear", pb.ClearRequest(namespace_id=namespace_id), timeout_s).deleted)

    def stats(self, *, timeout_s: float | None = None) -> StoreStats:
        return messages.stats_of(self._attachment.call("Stats", pb.StatsRequest(), timeout_s))

    def flush(self, *, timeout_s: float | None = None) -> int:
        return int(self._attachment.call("Flush", pb.FlushRequest(), timeout_s).written)

    def drain(self, *, timeout_s: float | None = None) -> int:
        """The daemon takes nothing new from now on; returns when nothing is dirty: how many blocks were written."""
        return int(self._attachment.call("Drain", pb.DrainRequest(), timeout_s).written)

    def explain(self, subject: bytes | str, token_ids: Sequence[int] = (), *, timeout_s: float | None = None) -> Explanation:
        """Why a block (its key, or the leading 4 bytes or more) or a request (its id) hit or missed.

        token_ids — of the subject's first block: then what is held under other namespaces is known for certain. Raises
        InvalidRequestError for what cannot be, and for an abbreviated key that is not unique.
        """
        return explanations.explanation_of(
            self._attachment.call("Explain", explanations.explain_message(subject, token_ids), timeout_s)
        )

    def close(self) -> None:
        if self._attachment.is_foreign:
            return
        self._releasing.cancel()
        self._releasing_pages.cancel()
        self._attachment.close()
        self.close_pool()
