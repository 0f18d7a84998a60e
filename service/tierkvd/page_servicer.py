"""The page verbs of the gRPC servicer, for sessions that map a pool. Thin on purpose; semantics are in the proto's comments."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from tierkv.clock import Clock
from tierkv.errors import ConflictError, InvalidRequestError, UnavailableError
from tierkv.store import TieredStore
from tierkv.wire import messages, page_messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire._generated import tierkv_pb2_grpc
from tierkvd.arrivals import arrivals
from tierkvd.calls import Context, answer_by_s, session_secret, streaming, unary, within
from tierkvd.sessions import SessionHandle, Sessions


class PageServicer(tierkv_pb2_grpc.TierKVServicer):
    """What `Servicer` says of pages, and what all its calls stand on: the store, its sessions, and whether a stop has begun."""

    def __init__(self, store: TieredStore, clock: Clock) -> None:
        self.sessions = Sessions(store, clock)
        self._store = store
        self._is_stopping = False

    def check_serving(self) -> None:
        """Raises UnavailableError for what is new once a stop has begun; sessions there are may still commit."""
        if self._is_stopping:
            raise UnavailableError("the daemon is stopping")

    def _pool_session(self, context: Context, pool_id: int) -> SessionHandle:
        session = self.sessions.get(session_secret(context))
        if session.pool_id is None:
            raise InvalidRequestError("this session maps no page pool; open the pool of a device first")
        if session.pool_id != pool_id:
            raise ConflictError("the session has mapped another pool since; its pages are not those of this call")
        return session

    @unary
    async def ReservePages(self, request: pb.ReservePagesRequest, context: Context) -> pb.ReservePagesReply:  # noqa: N802
        self.check_serving()
        session = self._pool_session(context, request.pool_id)
        return pb.ReservePagesReply(pages=self._store.reserve_pages(session.session, request.count))

    @unary
    async def CommitPages(self, request: pb.CommitPagesRequest, context: Context) -> pb.CommitPagesReply:  # noqa: N802
        session = self._pool_session(context, request.pool_id)
        namespace_id = messages.unpack_namespace_id(request.namespace_id)
        runs, hints = page_messages.runs_of(request), messages.hints_of(request.hints)
        result = self._store.commit_pages(session.session, namespace_id, runs, hints)
        if result.durable is not None:
            await within(result.durable, context)
        outcomes = [number for run in result.outcomes for number in messages.page_outcome_numbers(run)]
        return pb.CommitPagesReply(outcomes=outcomes)  # type: ignore[arg-type]  # numbers of the enum

    @unary
    async def AcquirePages(self, request: pb.AcquirePagesRequest, context: Context) -> pb.AcquirePagesReply:  # noqa: N802
        session = self._pool_session(context, request.pool_id)
        keys, hints = messages.unpack_keys(request.keys), messages.hints_of(request.hints)
        acquired = self._store.acquire_pages(session.session, messages.unpack_namespace_id(request.namespace_id), keys, hints)
        return pb.AcquirePagesReply(
            pages=acquired.pages,
            tiers=messages.tier_numbers(acquired.tiers),  # type: ignore[arg-type]  # numbers of the enum
            miss=messages.miss_number(acquired.miss),  # type: ignore[arg-type]
            num_ready=acquired.pending[0].start_idx if acquired.pending else len(acquired.pages),
            await_id=session.remember_pages(acquired) if acquired.pending else 0,
        )

    @streaming
    async def AwaitPages(self, request: pb.AwaitPagesRequest, context: Context) -> AsyncGenerator[pb.AwaitPagesEvent, None]:  # noqa: N802
        deadline_s = answer_by_s(context)
        acquired = self._pool_session(context, request.pool_id).recall_pages(request.await_id)
        if acquired is None:
            raise ConflictError("nothing is on its way under this number; it was awaited already, or it is gone")
        ended = pb.PagesEnded(num_blocks=len(acquired.pages))
        async with contextlib.aclosing(arrivals(acquired.pending, len(acquired.pages), deadline_s)) as runs:
            async for run in runs:
                if run.stop_idx > run.start_idx:
                    yield pb.AwaitPagesEvent(ready=pb.PagesReady(num_ready=run.stop_idx))
                if run.is_short:
                    miss = messages.miss_number(run.miss)
                    ended = pb.PagesEnded(num_blocks=run.stop_idx, miss=miss)  # type: ignore[arg-type]
        yield pb.AwaitPagesEvent(ended=ended)

    @unary
    async def ReleasePages(self, request: pb.ReleasePagesRequest, context: Context) -> pb.ReleasePagesReply:  # noqa: N802
        session = self._pool_session(context, request.pool_id)
        self._store.release_pages(session.session, page_messages.released_pages_of(request))
        return pb.ReleasePagesReply()
