"""The gRPC servicer: messages in, verbs of the store, messages out. Thin on purpose; semantics are in the proto's comments.

The store's verbs answer at memory speed and run on the event loop; whatever waits is a future of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from tierkv import __version__
from tierkv.clock import Clock
from tierkv.errors import ConflictError, InvalidRequestError
from tierkv.settings import LimitSettings
from tierkv.store import Acquisition, TieredStore
from tierkv.wire import explanations, messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import LABEL_BYTES, PROTOCOL_VERSION
from tierkvd.arrivals import arrivals
from tierkvd.calls import Context, answer_by_s, session_secret, streaming, unary, within
from tierkvd.page_servicer import PageServicer
from tierkvd.recordings import Recordings
from tierkvd.scrubs import Scrubs
from tierkvd.sessions import SessionHandle
from tierkvd.streams import Streams

COMMIT_GRACE_S = 2.0
"""What clients get to commit what they reserved when the daemon is asked to stop."""


class Servicer(PageServicer):
    """One per daemon, on its event loop. The page verbs are `PageServicer`'s."""

    def __init__(self, store: TieredStore, clock: Clock, limits: LimitSettings) -> None:
        super().__init__(store, clock)
        self._limits = limits
        self._streams = Streams(store, clock)
        self.scrubs = Scrubs(store)
        self._recordings = Recordings(store)

    async def stop(self) -> None:
        """Opens no more sessions, tells those there are, and gives them a moment to commit. The servers must still serve meanwhile."""
        self._is_stopping = True
        self._recordings.stop()
        self.sessions.announce_stop()
        await self.sessions.wait_closed(COMMIT_GRACE_S)

    @streaming
    async def OpenSession(self, request: pb.OpenSessionRequest, context: Context) -> AsyncGenerator[pb.SessionEvent, None]:  # noqa: N802
        self.check_serving()
        if len(request.label.encode()) > LABEL_BYTES:
            raise InvalidRequestError("a label has at most 256 bytes", length=len(request.label))
        session = self.sessions.open(request.label, request.attach_secret)
        try:
            opened = pb.SessionOpened(
                session_secret=session.session,
                daemon_version=__version__,
                protocol_version=PROTOCOL_VERSION,
                lease_ttl_s=self._limits.lease_ttl_s,
                reservation_ttl_s=self._limits.reservation_ttl_s,
            )
            yield pb.SessionEvent(opened=opened)
            await session.closing.wait()
            yield pb.SessionEvent(closing=pb.SessionClosing(reason="the daemon is stopping"))
            await self.sessions.finish(session, COMMIT_GRACE_S)
        finally:
            self.sessions.close(session)

    def _session(self, context: Context, *, needs_memory: bool = False) -> SessionHandle:
        session = self.sessions.get(session_secret(context))
        if needs_memory and not session.shares_memory:
            raise InvalidRequestError("this session shares no memory with the daemon; use Put and Get")
        return session

    @unary
    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:  # noqa: N802
        self._session(context)
        identity, layout = messages.identity_of(request.identity), messages.layout_of(request.layout)
        durability = messages.durability_of(request.durability)
        # A new namespace waits for an index commit.
        namespace = await asyncio.to_thread(self._store.register, identity, layout, durability)
        return pb.RegisterReply(
            namespace_id=namespace.namespace_id,
            block_bytes=layout.block_bytes,
            durability=messages.durability_number(namespace.durability),  # type: ignore[arg-type]  # a number of the enum
        )

    @unary
    async def Lookup(self, request: pb.LookupRequest, context: Context) -> pb.LookupReply:  # noqa: N802
        self._session(context)
        match = self._store.lookup(messages.unpack_namespace_id(request.namespace_id), messages.unpack_keys(request.keys))
        return pb.LookupReply(tiers=messages.tier_numbers(match.tiers), miss=messages.miss_number(match.miss))  # type: ignore[arg-type]

    @unary
    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.ReserveReply:  # noqa: N802
        self.check_serving()
        session = self._session(context, needs_memory=True)
        keys, parent = messages.unpack_keys(request.keys), messages.unpack_parent(request.parent)
        namespace_id, hints = messages.unpack_namespace_id(request.namespace_id), messages.hints_of(request.hints)
        result = self._store.reserve(session.session, namespace_id, keys, parent, hints)
        return pb.ReserveReply(
            reservation_id=result.reservation_id,
            outcomes=messages.outcome_numbers(result.outcomes),  # type: ignore[arg-type]
            offsets=[extent.offset for extent in result.extents if extent is not None],
        )

    @unary
    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitReply:  # noqa: N802
        session = self._session(context, needs_memory=True)
        keys = messages.unpack_keys(request.keys) if request.keys else None
        durability = messages.durability_of(request.durability)
        result = self._store.commit(session.session, request.reservation_id, keys, durability)
        if result.durable is not None:
            await within(result.durable, context)
        return pb.CommitReply(committed=result.committed)

    @unary
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:  # noqa: N802
        session = self._session(context, needs_memory=True)
        keys = messages.unpack_keys(request.keys) if request.keys else None
        return pb.AbortReply(aborted=self._store.abort(session.session, request.reservation_id, keys))

    @unary
    async def Acquire(self, request: pb.AcquireRequest, context: Context) -> pb.AcquireReply:  # noqa: N802
        session = self._session(context, needs_memory=True)
        keys, hints = messages.unpack_keys(request.keys), messages.hints_of(request.hints)
        acquired = self._store.acquire(session.session, messages.unpack_namespace_id(request.namespace_id), keys, hints)
        num_ready = len(acquired.tiers)
        if acquired.pending:
            session.remember(acquired)
            num_ready = acquired.pending[0].start_idx
        return pb.AcquireReply(
            lease_id=acquired.lease_id,
            tiers=messages.tier_numbers(acquired.tiers),  # type: ignore[arg-type]  # numbers of the enum
            miss=messages.miss_number(acquired.miss),  # type: ignore[arg-type]
            offsets=[extent.offset for extent in acquired.extents[:num_ready]],
        )

    @streaming
    async def Await(self, request: pb.AwaitRequest, context: Context) -> AsyncGenerator[pb.AwaitEvent, None]:  # noqa: N802
        deadline_s = answer_by_s(context)
        session = self._session(context, needs_memory=True)
        acquired = session.recall(request.lease_id)
        if acquired is None:
            raise ConflictError(
                "nothing of this lease is on its way; it was awaited already, or it is gone", lease=request.lease_id
            )
        async for event in _pending_events(acquired, deadline_s):
            if event.HasField("ended") and event.ended.miss == pb.MISS_REASON_TIMEOUT:
                self._store.note_timeout(session.session, acquired.lease_id, event.ended.num_blocks)
            yield event

    @unary
    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseReply:  # noqa: N802
        session = self._session(context)
        for lease_id in request.lease_ids:
            session.recall(lease_id)
        self._store.release(session.session, list(request.lease_ids))
        return pb.ReleaseReply()

    @unary
    async def Prefetch(self, request: pb.PrefetchRequest, context: Context) -> pb.PrefetchReply:  # noqa: N802
        self._session(context)
        keys = messages.unpack_keys(request.keys)
        return pb.PrefetchReply(started=self._store.prefetch(messages.unpack_namespace_id(request.namespace_id), keys))

    @unary
    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteReply:  # noqa: N802
        self._session(context)
        keys = messages.unpack_keys(request.keys)
        deleted = self._store.delete(messages.unpack_namespace_id(request.namespace_id), keys)
        num_deleted = await within(deleted, context)
        return pb.DeleteReply(deleted=num_deleted)

    @unary
    async def Clear(self, request: pb.ClearRequest, context: Context) -> pb.ClearReply:  # noqa: N802
        self._session(context)
        cleared = self._store.clear(messages.unpack_namespace_id(request.namespace_id))
        num_deleted = await within(cleared, context)
        return pb.ClearReply(deleted=num_deleted)

    @unary
    async def Advise(self, request: pb.AdviseRequest, context: Context) -> pb.AdviseReply:  # noqa: N802
        self._session(context)
        keys, hints = messages.unpack_keys(request.keys), messages.hints_of(request.hints)
        return pb.AdviseReply(advised=self._store.advise(messages.unpack_namespace_id(request.namespace_id), keys, hints))

    @unary
    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsReply:  # noqa: N802
        return messages.stats_message(self._store.stats())

    @unary
    async def Flush(self, request: pb.FlushRequest, context: Context) -> pb.FlushReply:  # noqa: N802
        written = await within(self._store.flush(), context)
        return pb.FlushReply(written=written)

    @unary
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:  # noqa: N802
        written = await within(self._store.drain(), context)
        return pb.DrainReply(written=written)

    @unary
    async def Put(self, request: AsyncIterator[pb.PutRequest], context: Context) -> pb.PutReply:  # noqa: N802
        self.check_serving()
        outcomes, durable = await self._streams.put(self._session(context), request)
        if durable is not None:
            await within(durable, context)
        return pb.PutReply(outcomes=messages.outcome_numbers(outcomes))  # type: ignore[arg-type]

    @streaming
    async def Get(self, request: pb.GetRequest, context: Context) -> AsyncGenerator[pb.GetEvent, None]:  # noqa: N802
        deadline_s = answer_by_s(context)
        async with contextlib.aclosing(self._streams.get(self._session(context), request, deadline_s)) as events:
            async for event in events:
                yield event

    @streaming
    async def Verify(self, request: pb.VerifyRequest, context: Context) -> AsyncGenerator[pb.VerifyEvent, None]:  # noqa: N802
        async with contextlib.aclosing(self.scrubs.run()) as events:
            async for event in events:
                yield event

    @unary
    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainReply:  # noqa: N802
        subject, token_ids = explanations.explain_subject_of(request)
        # Looking through a full trail takes long enough to hold up other calls.
        explanation = await asyncio.to_thread(self._store.explain, subject, token_ids)
        return explanations.explanation_message(explanation)

    @streaming
    async def Record(self, request: pb.RecordRequest, context: Context) -> AsyncGenerator[pb.RecordEvent, None]:  # noqa: N802
        self.check_serving()
        async with contextlib.aclosing(self._recordings.run(context)) as events:
            async for event in events:
                yield event


async def _pending_events(acquired: Acquisition, deadline_s: float) -> AsyncGenerator[pb.AwaitEvent, None]:
    """`ready` for what arrives, in order, with the readable blocks that follow it; `ended` where a run falls short."""
    async with contextlib.aclosing(arrivals(acquired.pending, len(acquired.extents), deadline_s)) as runs:
        async for run in runs:
            if run.stop_idx > run.start_idx:
                offsets = [extent.offset for extent in acquired.extents[run.start_idx : run.stop_idx]]
                yield pb.AwaitEvent(ready=pb.BlocksReady(start_idx=run.start_idx, offsets=offsets))
            if run.is_short:
                miss = messages.miss_number(run.miss)
                yield pb.AwaitEvent(ended=pb.LeaseEnded(num_blocks=run.stop_idx, miss=miss))  # type: ignore[arg-type]
