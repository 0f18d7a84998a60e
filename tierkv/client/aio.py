"""The asyncio client: the verbs of `BlockStore` as coroutines over a daemon. Contract of each verb: `tierkv.interface`.

Differences from the synchronous one: `acquire` gives a lease whose `runs()` is an asynchronous iterator, copies of `put` and `get` run in
a thread, and a client belongs to the event loop it was made on. Requests, replies and bookkeeping are shared (`verbs`, `progress`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from tierkv.client import verbs
from tierkv.client.address import Address, LocalAddress, Metadata, parse_address
from tierkv.client.breaker import Breaker
from tierkv.client.link import attach_to
from tierkv.client.progress import ChunkAssembler, LeaseProgress, View
from tierkv.client.scratch import put_requests, scratch_grants
from tierkv.client.verbs import ClientReservation, Registration, own_reservation
from tierkv.clock import Clock, SystemClock
from tierkv.copying import check_buffers, copy_block
from tierkv.errors import ClosedError, ConflictError, InvalidRequestError, TierKVError, UnavailableError
from tierkv.interface import ReadyRun
from tierkv.mapping import ArenaMap
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, MissReason, PrefixMatch, ReserveOutcome, StoreStats, TierName
from tierkv.wire import messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire._generated import tierkv_pb2_grpc
from tierkv.wire.limits import SESSION_METADATA, client_options
from tierkv.wire.status import error_of_rpc

DEFAULT_TIMEOUT_S = 5.0
_RELEASE_TIMEOUT_S = 5.0
T = TypeVar("T")


async def connect(
    address: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    label: str = "",
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> AsyncClient:
    """`tierkv.connect` for asyncio."""
    client = AsyncClient(
        parse_address(address, token=token, ca_file=ca_file), timeout_s=timeout_s, label=label or f"pid {os.getpid()}"
    )
    try:
        await client.attach()
    except BaseException:
        await client.close()
        raise
    return client


class AsyncLink:
    """One attachment: channel, session stream, map. Made by `open`, never mended."""

    def __init__(self, channel: grpc.aio.Channel, arena: ArenaMap | None, base: Metadata, epoch: int) -> None:
        self.stub: Any = tierkv_pb2_grpc.TierKVStub(channel)
        self.arena = arena
        self.metadata = base
        self.epoch = epoch
        self.lease_ttl_s = 0.0
        self.is_alive = True
        self.is_stopping = False
        self._channel = channel
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: Address, *, label: str, epoch: int, timeout_s: float) -> AsyncLink:
        """Attaches and opens a session within the timeout. Raises UnavailableError, or what the daemon refused with."""
        secret, arena, base = b"", None, ()  # type: tuple[bytes, ArenaMap | None, Metadata]
        if isinstance(address, LocalAddress):
            welcome, arena, target = await asyncio.to_thread(attach_to, address, label, timeout_s)
            secret = welcome.attach_secret
            channel = grpc.aio.insecure_channel(target, options=client_options())
        else:
            base, credentials = address.metadata(), address.credentials()
            channel = (
                grpc.aio.insecure_channel(address.target, options=client_options())
                if credentials is None
                else grpc.aio.secure_channel(address.target, credentials, options=client_options())
            )
        link = cls(channel, arena, base, epoch)
        try:
            await asyncio.wait_for(link._open_session(label, secret), timeout_s)
        except TimeoutError:
            await link.close()
            raise UnavailableError("the daemon did not open a session in time", timeout_s=timeout_s) from None
        except BaseException:
            await link.close()
            raise
        return link

    async def _open_session(self, label: str, secret: bytes) -> None:
        stream = self.stub.OpenSession(pb.OpenSessionRequest(label=label, attach_secret=secret), metadata=self.metadata or None)
        try:
            first = await stream.read()
        except grpc.RpcError as error:
            raise error_of_rpc(error) from error
        if first is grpc.aio.EOF:
            raise UnavailableError("the daemon ended the session at once")
        self.lease_ttl_s = first.opened.lease_ttl_s
        self.metadata = (*self.metadata, (SESSION_METADATA, first.opened.session_secret))
        self._watching = asyncio.get_running_loop().create_task(self._watch(stream))

    async def _watch(self, stream: Any) -> None:
        try:
            while await stream.read() is not grpc.aio.EOF:  # nothing but "closing" can follow
                self.is_stopping = True
        except grpc.RpcError:
            pass
        finally:
            self.is_alive = False

    async def close(self) -> None:
        """May be called twice."""
        self.is_alive = False
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self._channel.close()
        if self.arena is not None:
            self.arena.close()


class AsyncArrivals:
    """`tierkv.client.sync.Arrivals` for asyncio."""

    def __init__(
        self,
        open_stream: Callable[[], Any],
        take: Callable[[Any], ReadyRun | None],
        end: Callable[[], None],
        on_break: Callable[[grpc.RpcError], None],
    ) -> None:
        self._open_stream = open_stream
        self._take = take
        self._end = end
        self._on_break = on_break
        self._stream: Any = None

    async def runs(self) -> AsyncIterator[ReadyRun]:
        try:
            if self._stream is None:
                self._stream = self._open_stream()
            while (event := await self._stream.read()) is not grpc.aio.EOF:
                run = self._take(event)
                if run is not None:
                    yield run
        except grpc.RpcError as error:
            self._on_break(error)
        self._end()

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()


class AsyncLease:
    """A lease of a daemon's blocks. `async for run in lease.runs()`, or `await lease.blocks()`."""

    def __init__(
        self, link: AsyncLink, progress: LeaseProgress, arrivals: AsyncArrivals, *, expires_at_s: float, clock: Clock
    ) -> None:
        self.link = link
        self.progress = progress
        self.is_released = False
        self._first = ReadyRun(0, tuple(progress.blocks))
        self._arrivals = arrivals
        self._expires_at_s = expires_at_s
        self._clock = clock

    @property
    def num_blocks(self) -> int:
        return self.progress.num_blocks

    @property
    def tiers(self) -> tuple[TierName, ...]:
        return self.progress.tiers

    @property
    def miss(self) -> MissReason | None:
        return self.progress.miss

    @property
    def is_valid(self) -> bool:
        return not self.is_released and self.link.is_alive and self._clock.monotonic_s() < self._expires_at_s

    async def runs(self) -> AsyncIterator[ReadyRun]:
        """See `tierkv.interface.Lease.runs`."""
        if self._first.blocks:
            yield self._first
        if not self.progress.is_complete:
            async for run in self._arrivals.runs():
                yield run

    async def blocks(self) -> tuple[memoryview, ...]:
        """See `tierkv.interface.Lease.blocks`."""
        if not self.progress.is_complete:
            async for _ in self._arrivals.runs():
                pass
        return tuple(self.progress.blocks[: self.progress.num_blocks])

    def stop_reading(self) -> None:
        """No more blocks are wanted."""
        if not self.progress.is_complete:
            self._arrivals.cancel()


class AsyncClient:
    """The verbs of `BlockStore` as coroutines."""

    def __init__(
        self, address: Address, *, timeout_s: float = DEFAULT_TIMEOUT_S, label: str = "", clock: Clock | None = None
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._address = address
        self._timeout_s = timeout_s
        self._label = label
        self._clock = clock or SystemClock()
        self._breaker = Breaker(self._clock)
        self._attaching = asyncio.Lock()
        self._link: AsyncLink | None = None
        self._epoch = 0
        self._known: dict[NamespaceId, Registration] = {}
        self._releasing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- attachment ------------------------------------------------------------------------------------------------------

    async def attach(self, *, timeout_s: float | None = None) -> None:
        """Attaches now instead of with the first call."""
        await self._attached(self._deadline(timeout_s))

    def _deadline(self, timeout_s: float | None) -> float:
        return self._clock.monotonic_s() + (self._timeout_s if timeout_s is None else timeout_s)

    def _left(self, deadline_s: float) -> float:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise UnavailableError("the deadline passed before the daemon was asked")
        return left_s

    async def _attached(self, deadline_s: float) -> AsyncLink:
        if self._is_closed:
            raise ClosedError("the client is closed")
        if self._link is not None and self._link.is_alive:
            return self._link
        self._breaker.before_call()
        try:
            async with asyncio.timeout(self._left(deadline_s)), self._attaching:
                return self._link if self._link is not None and self._link.is_alive else await self._attach_anew(deadline_s)
        except (UnavailableError, TimeoutError) as error:
            self.counters["unavailable"] += 1
            self._breaker.failed()
            if isinstance(error, UnavailableError):
                raise
            raise UnavailableError("the daemon could not be attached to in time") from error

    async def _attach_anew(self, deadline_s: float) -> AsyncLink:
        old, self._link = self._link, None
        if old is not None:
            await old.close()
            self.counters["reattached"] += 1
        self._epoch += 1
        link = await AsyncLink.open(self._address, label=self._label, epoch=self._epoch, timeout_s=self._left(deadline_s))
        try:
            for known in self._known.values():
                await link.stub.Register(verbs.register_request(known), timeout=self._left(deadline_s), metadata=link.metadata)
        except grpc.RpcError as error:
            await link.close()
            raise error_of_rpc(error) from error
        self._breaker.succeeded()
        self._link = link
        return link

    def _translated(self, link: AsyncLink, rpc_error: grpc.RpcError) -> TierKVError:
        error = error_of_rpc(rpc_error)
        if isinstance(error, UnavailableError):
            self.counters["unavailable"] += 1
            self._breaker.failed()
        else:
            self._breaker.succeeded()
        if isinstance(error, ClosedError):
            link.is_alive = False
        return error

    async def _guard(self, link: AsyncLink, call: Coroutine[Any, Any, Any]) -> Any:
        self.counters["calls"] += 1
        try:
            result = await call
        except grpc.RpcError as error:
            raise self._translated(link, error) from error
        self._breaker.succeeded()
        return result

    async def _with_link(self, deadline_s: float, use: Callable[[AsyncLink], Coroutine[Any, Any, T]]) -> T:
        """`use(link)`; once more on a new link where the daemon does not know the session (any more), under the same deadline."""
        link = await self._attached(deadline_s)
        self._breaker.before_call()
        try:
            return await use(link)
        except ClosedError:
            return await use(await self._attached(deadline_s))

    async def _call(self, name: str, request: object, timeout_s: float | None) -> Any:
        """One unary call that needs nothing of an earlier session."""
        deadline_s = self._deadline(timeout_s)
        return await self._with_link(deadline_s, lambda link: self._call_on(link, name, request, deadline_s))

    async def _call_on(self, link: AsyncLink, name: str, request: object, deadline_s: float) -> Any:
        timeout_s = self._left(deadline_s)

        async def call() -> Any:
            return await getattr(link.stub, name)(request, timeout=timeout_s, metadata=link.metadata)

        return await self._guard(link, call())

    # -- verbs -----------------------------------------------------------------------------------------------------------

    async def register(
        self, identity: Identity, layout: Layout, *, durability: Durability | None = None, timeout_s: float | None = None
    ) -> Namespace:
        known = Registration(identity, layout, durability)
        namespace = verbs.namespace_of(known, await self._call("Register", verbs.register_request(known), timeout_s))
        self._known[namespace.namespace_id] = known
        return namespace

    def _block_bytes(self, namespace_id: NamespaceId) -> int:
        known = self._known.get(namespace_id)
        if known is None:
            raise InvalidRequestError("this namespace is not registered; register its identity first", namespace=namespace_id)
        return known.layout.block_bytes

    async def lookup(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> PrefixMatch:
        return verbs.match_of(await self._call("Lookup", verbs.lookup_request(namespace_id, keys), timeout_s))

    async def reserve(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        *,
        parent: BlockKey | None = None,
        timeout_s: float | None = None,
    ) -> ClientReservation:
        block_bytes = self._block_bytes(namespace_id)
        deadline_s = self._deadline(timeout_s)
        return await self._with_link(
            deadline_s, lambda link: self._reserve_on(link, namespace_id, keys, parent, block_bytes, deadline_s)
        )

    async def _reserve_on(
        self,
        link: AsyncLink,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        parent: BlockKey | None,
        block_bytes: int,
        deadline_s: float,
    ) -> ClientReservation:
        if link.arena is None:
            reply = await self._call_on(link, "Lookup", verbs.lookup_request(namespace_id, keys), deadline_s)
            grants = scratch_grants(keys, num_present=len(reply.tiers), block_bytes=block_bytes)
            return ClientReservation(namespace_id, grants, reservation_id=0, epoch=link.epoch, parent=parent)
        reply = await self._call_on(link, "Reserve", verbs.reserve_request(namespace_id, keys, parent), deadline_s)
        view = link.arena.view
        grants = verbs.grants_of(keys, reply, lambda offset: view(offset, block_bytes))
        return ClientReservation(namespace_id, grants, reservation_id=reply.reservation_id, epoch=link.epoch, parent=parent)

    async def commit(
        self,
        reservation: ClientReservation,
        keys: Sequence[BlockKey] | None = None,
        *,
        durability: Durability | None = None,
        timeout_s: float | None = None,
    ) -> int:
        own = own_reservation(reservation)
        chosen = own.choose(keys)
        if not chosen:
            return 0
        deadline_s = self._deadline(timeout_s)
        link = await self._attached(deadline_s)
        if own.reservation_id == 0:
            buffers: dict[BlockKey, memoryview | None] = {grant.key: grant.buffer for grant in own.grants}
            sources = [buffer for key in chosen if (buffer := buffers[key]) is not None]
            parent = own.parent_of(chosen[0])
            outcomes = await self._stream_put(link, own.namespace_id, chosen, sources, parent, durability, deadline_s)
            own.close(chosen)
            return sum(outcome in (ReserveOutcome.GRANTED, ReserveOutcome.PRESENT) for outcome in outcomes)
        if link.epoch != own.epoch:
            own.close(chosen)
            raise ConflictError("the daemon was attached to again since; this reservation is gone, reserve again")
        reply = await self._call_on(link, "Commit", verbs.commit_request(own.reservation_id, chosen, durability), deadline_s)
        own.close(chosen)
        return int(reply.committed)

    async def _stream_put(
        self,
        link: AsyncLink,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        sources: Sequence[memoryview],
        parent: BlockKey | None,
        durability: Durability | None,
        deadline_s: float,
    ) -> tuple[ReserveOutcome, ...]:
        requests = put_requests(namespace_id, keys, sources, parent, durability)
        timeout_s = self._left(deadline_s)

        async def call() -> Any:
            return await link.stub.Put(requests, timeout=timeout_s, metadata=link.metadata)

        return messages.outcomes_of((await self._guard(link, call())).outcomes)

    async def abort(
        self, reservation: ClientReservation, keys: Sequence[BlockKey] | None = None, *, timeout_s: float | None = None
    ) -> int:
        own = own_reservation(reservation)
        chosen = [key for key in (list(own.open_keys) if keys is None else keys) if key in own.open_keys]
        own.close(chosen)
        if not chosen or own.reservation_id == 0:
            return len(chosen)
        deadline_s = self._deadline(timeout_s)
        link = await self._attached(deadline_s)
        if link.epoch != own.epoch:  # its session is gone, and all it held with it
            return len(chosen)
        return int((await self._call_on(link, "Abort", verbs.abort_request(own.reservation_id, chosen), deadline_s)).aborted)

    async def acquire(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> AsyncLease:
        block_bytes = self._block_bytes(namespace_id)
        deadline_s = self._deadline(timeout_s)
        return await self._with_link(deadline_s, lambda link: self._acquire_on(link, namespace_id, keys, block_bytes, deadline_s))

    async def _acquire_on(
        self, link: AsyncLink, namespace_id: NamespaceId, keys: Sequence[BlockKey], block_bytes: int, deadline_s: float
    ) -> AsyncLease:
        progress = LeaseProgress()
        if link.arena is None:
            arrivals = await self._open_get(link, progress, verbs.get_request(namespace_id, keys), deadline_s)
            expires_at_s = float("inf")  # the bytes are ours
        else:
            expires_at_s = self._clock.monotonic_s() + link.lease_ttl_s
            view = link.arena.view
            arrivals = await self._acquire_in_arena(
                link, progress, namespace_id, keys, deadline_s, lambda offset: view(offset, block_bytes).toreadonly()
            )
        if progress.miss is not None:
            self.counters[f"misses_{progress.miss}"] += len(keys) - progress.num_blocks
        return AsyncLease(link, progress, arrivals, expires_at_s=expires_at_s, clock=self._clock)

    async def _acquire_in_arena(
        self,
        link: AsyncLink,
        progress: LeaseProgress,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        deadline_s: float,
        view: View,
    ) -> AsyncArrivals:
        reply = await self._call_on(link, "Acquire", verbs.acquire_request(namespace_id, keys), deadline_s)
        progress.take_reply(reply, view)
        request = pb.AwaitRequest(lease_id=reply.lease_id)

        def open_stream() -> Any:
            left_s = max(0.001, deadline_s - self._clock.monotonic_s())
            return link.stub.Await(request, timeout=left_s, metadata=link.metadata)

        return AsyncArrivals(
            open_stream,
            lambda event: progress.take_await(event, view),
            lambda: None,
            lambda error: self._end_early(link, progress, error),
        )

    async def _open_get(self, link: AsyncLink, progress: LeaseProgress, request: pb.GetRequest, deadline_s: float) -> AsyncArrivals:
        stream = link.stub.Get(request, timeout=self._left(deadline_s), metadata=link.metadata)
        chunks = ChunkAssembler(progress)
        chunks.take(await self._guard(link, stream.read()))
        return AsyncArrivals(lambda: stream, chunks.take, chunks.end, lambda error: self._end_early(link, progress, error))

    def _end_early(self, link: AsyncLink, progress: LeaseProgress, rpc_error: grpc.RpcError) -> None:
        """The stream broke: what arrived is held, the rest is a miss."""
        error = self._translated(link, rpc_error)
        is_late = getattr(rpc_error, "code", lambda: None)() is grpc.StatusCode.DEADLINE_EXCEEDED
        progress.ended(len(progress.blocks), MissReason.TIMEOUT if is_late else MissReason.UNAVAILABLE)
        self.counters[f"lease_cut_{type(error).__name__}"] += 1

    async def release(self, lease: AsyncLease) -> None:
        """Costs no round trip: nobody waits for the answer."""
        if lease.is_released:
            return
        lease.is_released = True
        lease.stop_reading()
        if lease.progress.lease_id is None or not lease.progress.tiers or not lease.link.is_alive or self._is_closed:
            return
        task = asyncio.get_running_loop().create_task(self._release_on(lease.link, lease.progress.lease_id))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release_on(self, link: AsyncLink, lease_id: int) -> None:
        try:
            await link.stub.Release(pb.ReleaseRequest(lease_ids=[lease_id]), timeout=_RELEASE_TIMEOUT_S, metadata=link.metadata)
        except grpc.RpcError:
            self.counters["release_failures"] += 1  # it expires

    async def prefetch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        return int((await self._call("Prefetch", verbs.prefetch_request(namespace_id, keys), timeout_s)).started)

    async def put(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        sources: Sequence[memoryview],
        *,
        parent: BlockKey | None = None,
        durability: Durability | None = None,
        timeout_s: float | None = None,
    ) -> tuple[ReserveOutcome, ...]:
        check_buffers(list(sources), count=len(keys), block_bytes=self._block_bytes(namespace_id), is_written=False)
        deadline_s = self._deadline(timeout_s)
        link = await self._attached(deadline_s)
        if link.arena is None:
            verbs.check_keys(keys)
            return await self._stream_put(link, namespace_id, keys, sources, parent, durability, deadline_s)
        reservation = await self.reserve(namespace_id, keys, parent=parent, timeout_s=self._left(deadline_s))
        pairs = [
            (grant.buffer, source) for grant, source in zip(reservation.grants, sources, strict=True) if grant.buffer is not None
        ]
        await asyncio.to_thread(_copy_all, pairs)
        await self.commit(reservation, durability=durability, timeout_s=self._left(deadline_s))
        return tuple(grant.outcome for grant in reservation.grants)

    async def get(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        targets: Sequence[memoryview],
        *,
        timeout_s: float | None = None,
    ) -> int:
        check_buffers(list(targets), count=len(keys), block_bytes=self._block_bytes(namespace_id), is_written=True)
        lease = await self.acquire(namespace_id, keys, timeout_s=timeout_s)
        try:
            async for run in lease.runs():
                await asyncio.to_thread(_copy_all, list(zip(targets[run.start_idx :], run.blocks, strict=False)))
            return lease.num_blocks if lease.is_valid else 0
        finally:
            await self.release(lease)

    async def delete(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        return int((await self._call("Delete", verbs.delete_request(namespace_id, keys), timeout_s)).deleted)

    async def clear(self, namespace_id: NamespaceId, *, timeout_s: float | None = None) -> int:
        return int((await self._call("Clear", pb.ClearRequest(namespace_id=namespace_id), timeout_s)).deleted)

    async def stats(self, *, timeout_s: float | None = None) -> StoreStats:
        return messages.stats_of(await self._call("Stats", pb.StatsRequest(), timeout_s))

    async def flush(self, *, timeout_s: float | None = None) -> int:
        return int((await self._call("Flush", pb.FlushRequest(), timeout_s)).written)

    async def drain(self, *, timeout_s: float | None = None) -> int:
        """See `tierkv.client.sync.Client.drain`."""
        return int((await self._call("Drain", pb.DrainRequest(), timeout_s)).written)

    async def close(self) -> None:
        """Ends the session. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in list(self._releasing):
            task.cancel()
        await asyncio.gather(*self._releasing, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None:
            await link.close()


def _copy_all(pairs: list[tuple[memoryview, memoryview]]) -> None:
    for target, source in pairs:
        copy_block(target, source)
