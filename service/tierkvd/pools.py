"""Pool connections: each stands for a process that maps the page pool of a device, for exactly as long as it can.

docs/protocol.md, "Pool connection". The end of the last connection of a session, which the kernel tells however the process ended, is what
returns its pages; the end of the session's stream is not, because the process may still be writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass, field

from tierkv.answers import PoolView
from tierkv.errors import CapacityError, InvalidRequestError
from tierkv.store import TieredStore
from tierkv.wire.pools import MapPool, PoolOffer, encode_pool
from tierkvd.sessions import SessionHandle, Sessions
from tierkvd.telemetry import log_event

CONNECTIONS_PER_SESSION = 2
"""The one that stands, and the one that replaces it."""
_DISCARD_BYTES = 4_096
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Standing:
    """The connections of one session, and the page size that they were told."""

    page_bytes: int
    connections: set[socket.socket] = field(default_factory=set)


class Pools:
    """The connections of one daemon. Used on the event loop only."""

    def __init__(self, store: TieredStore, sessions: Sessions, *, limit: int) -> None:
        self._store = store
        self._sessions = sessions
        self._limit = limit
        self._standing: dict[bytes, _Standing] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._last_id = 0

    def __len__(self) -> int:
        return sum(len(standing.connections) for standing in self._standing.values())

    def open(self, connection: socket.socket, request: MapPool) -> None:
        """Answers a request with the pool and watches the connection from now on, which is this table's to close then.

        Raises ClosedError for a session that is not open, CapacityError for too many connections, and what the store refuses with; what
        the session held before is as it was then.
        """
        handle = self._sessions.get(request.session_secret)
        self._check(handle)
        view = self._store.open_pool(handle.session, request.namespace_id, request.device)
        standing = self._standing.setdefault(handle.session, _Standing(view.page_bytes))
        if handle.pool_id is None or standing.page_bytes != view.page_bytes:
            self._begin(handle, standing, view)
        standing.connections.add(connection)
        try:
            _answer(connection, view, handle.pool_id or 0)
        except BaseException:  # nobody watches it yet, so that nobody else would ever end it
            self._end(connection, handle)
            raise
        watch = asyncio.get_running_loop().create_task(self._watch(connection, handle))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        log_event(_log, "pool mapped", device=request.device, page_bytes=view.page_bytes, connections=len(self))

    def _check(self, handle: SessionHandle) -> None:
        if not handle.shares_memory:
            raise InvalidRequestError("this session shares no memory with the daemon; attach through its run folder")
        standing = self._standing.get(handle.session)
        if standing is not None:
            # Its client may have mapped the pool anew before the watch was told.
            for connection in [connection for connection in standing.connections if _is_over(connection)]:
                self._end(connection, handle)
            if len(standing.connections) >= CONNECTIONS_PER_SESSION:
                raise InvalidRequestError("this session maps its pool twice already; end a connection first")
        if len(self) >= self._limit:
            raise CapacityError("too many clients map pools; try again when one has left", limit=self._limit)

    def _begin(self, handle: SessionHandle, standing: _Standing, view: PoolView) -> None:
        """Page numbers mean another pool from now on."""
        handle.lose_pool()
        self._last_id += 1
        handle.pool_id, standing.page_bytes = self._last_id, view.page_bytes

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
        """With its last connection, what a session held returns: its process maps the pool no more. Once a connection."""
        standing = self._standing.get(handle.session)
        if standing is None or connection not in standing.connections:
            return
        standing.connections.remove(connection)
        if standing.connections:
            return
        del self._standing[handle.session]
        handle.lose_pool()
        log_event(_log, "pool unmapped", connections=len(self))
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
        for standing in self._standing.values():
            for connection in standing.connections:
                connection.close()
        self._standing.clear()


def _answer(connection: socket.socket, view: PoolView, pool_id: int) -> None:
    descriptors = [] if view.fd is None else [view.fd]
    offer = PoolOffer(pool_id, view.memory_bytes, view.page_bytes, view.num_pages, len(descriptors), view.ipc_handle)
    # Smaller than any socket buffer, so that this neither waits nor is cut.
    socket.send_fds(connection, [encode_pool(offer)], descriptors)


def _is_over(connection: socket.socket) -> bool:
    try:
        return not connection.recv(_DISCARD_BYTES, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
