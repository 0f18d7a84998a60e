"""Pool connections: each stands for a process that maps the page pool of a device, for exactly as long as it can.

docs/protocol.md, "Pool connection". The end of the connection, which the kernel tells however the process ended, is what returns the pages
of its session; the end of the session's stream is not, because the process may still be writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

from tierkv.errors import CapacityError, InvalidRequestError
from tierkv.store import SessionId, TieredStore
from tierkv.wire.pools import MapPool, PoolOffer, encode_pool
from tierkvd.sessions import SessionHandle, Sessions
from tierkvd.telemetry import log_event

_DISCARD_BYTES = 4_096
_log = logging.getLogger(__name__)


class Pools:
    """The connections of one daemon, at most one a session. Used on the event loop only."""

    def __init__(self, store: TieredStore, sessions: Sessions, *, limit: int) -> None:
        self._store = store
        self._sessions = sessions
        self._limit = limit
        self._connections: dict[SessionId, socket.socket] = {}
        self._last_id = 0
        self._watches: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._connections)

    def open(self, connection: socket.socket, request: MapPool) -> None:
        """Answers a request with the pool and watches the connection from now on, which is this table's to close then.

        Raises ClosedError for a session that is not open, CapacityError for too many connections, and what the store refuses with;
        nothing is held then.
        """
        handle = self._sessions.get(request.session_secret)
        self._check(handle)
        offer, descriptors = self._offer(handle.session, request)
        try:
            # Smaller than any socket buffer, so that this neither waits nor is cut.
            socket.send_fds(connection, [encode_pool(offer)], descriptors)
        except OSError:
            self._store.end_pages(handle.session)
            raise
        handle.pool_id = offer.pool_id
        self._connections[handle.session] = connection
        watch = asyncio.get_running_loop().create_task(self._watch(connection, handle))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        log_event(_log, "pool mapped", device=request.device, page_bytes=offer.page_bytes, connections=len(self))

    def _check(self, handle: SessionHandle) -> None:
        if not handle.shares_memory:
            raise InvalidRequestError("this session shares no memory with the daemon; attach through its run folder")
        standing = self._connections.get(handle.session)
        if standing is not None and _is_over(standing):
            # Its client mapped the pool anew before the watch was told.
            self._end(standing, handle)
        elif standing is not None:
            raise InvalidRequestError("this session maps a pool already; end that connection first")
        if len(self._connections) >= self._limit:
            raise CapacityError("too many clients map pools; try again when one has left", limit=self._limit)

    def _offer(self, session: SessionId, request: MapPool) -> tuple[PoolOffer, list[int]]:
        view = self._store.open_pool(session, request.namespace_id, request.device)
        descriptors = [] if view.fd is None else [view.fd]
        self._last_id += 1
        offer = PoolOffer(self._last_id, view.memory_bytes, view.page_bytes, view.num_pages, len(descriptors), view.ipc_handle)
        return offer, descriptors

    async def _watch(self, connection: socket.socket, handle: SessionHandle) -> None:
        """Waits for the end of a connection, and closes our side of it: nobody else may, while the loop still looks at it."""
        loop = asyncio.get_running_loop()
        with connection:
            # A reset is an end too.
            with contextlib.suppress(OSError):
                while await loop.sock_recv(connection, _DISCARD_BYTES):
                    pass
            self._end(connection, handle)

    def _end(self, connection: socket.socket, handle: SessionHandle) -> None:
        """The process maps the pool no more: everything that its session held returns. Once a connection."""
        if self._connections.get(handle.session) is not connection:
            return
        del self._connections[handle.session]
        handle.lose_pool()
        log_event(_log, "pool connection ended", connections=len(self))
        try:
            self._store.end_pages(handle.session)
        except Exception:
            _log.exception("the pages of a session did not return")

    async def stop(self) -> None:
        """Ends every connection, as the clients will see; the pages stay with the store, which ends too. May be called twice."""
        watches = list(self._watches)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def _is_over(connection: socket.socket) -> bool:
    try:
        return not connection.recv(_DISCARD_BYTES, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
