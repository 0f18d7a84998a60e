"""The attach socket: asks the kernel who is there, and hands the arena's descriptor and a secret to our own user and to root.

docs/protocol.md, "Attach". One exchange a connection, 5 s to say hello. A connection that asks for a page pool is handed on to
`tierkvd.pools` and stays open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from pathlib import Path

from tierkv import __version__
from tierkv.errors import InvalidRequestError, TierKVError, UnavailableError
from tierkv.store import TieredStore
from tierkv.wire import attach
from tierkv.wire.addresses import GRPC_SOCKET_NAME
from tierkv.wire.limits import PROTOCOL_VERSION
from tierkv.wire.pools import MapPool, decode_map_pool
from tierkvd.pools import Pools
from tierkvd.sessions import Sessions
from tierkvd.telemetry import log_event

HELLO_TIMEOUT_S = 5.0
_BACKLOG = 1024
_EXCHANGES_LIMIT = 128
"""Connections that may say hello at the same time; others wait in the backlog."""
_ACCEPT_PAUSE_S = 0.2
"""Before the next try where a connection could not be accepted: descriptors come back when somebody leaves."""
SERVED_BESIDES = (0,)
"""Users that are served beside our own: root."""
_CREDENTIALS = struct.Struct("3i")
_log = logging.getLogger(__name__)


class AttachServer:
    """Serves the attach socket on the running event loop."""

    def __init__(self, path: Path, store: TieredStore, sessions: Sessions, pools: Pools) -> None:
        self._path = path
        self._store = store
        self._sessions = sessions
        self._pools = pools
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._exchanges: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_EXCHANGES_LIMIT)

    def start(self) -> None:
        """Binds (the folder is ours and locked, so an old socket is a dead one's) and begins to accept."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(str(self._path))
        os.chmod(self._path, 0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._socket = listener
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    async def stop(self) -> None:
        """May be called twice."""
        tasks = [task for task in (self._accepting, *self._exchanges) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)
        await self._pools.stop()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                self._places.release()
                log_event(_log, "attach connection not accepted", level=logging.WARNING, error=error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            exchange = loop.create_task(self._serve(connection))
            self._exchanges.add(exchange)
            exchange.add_done_callback(self._end_exchange)

    def _end_exchange(self, exchange: asyncio.Task[None]) -> None:
        self._exchanges.discard(exchange)
        self._places.release()

    async def _serve(self, connection: socket.socket) -> None:
        is_handed_on = False
        try:
            connection.setblocking(False)
            request = await asyncio.wait_for(self._exchange(connection), HELLO_TIMEOUT_S)
            if request is not None:
                self._pools.open(connection, request)
                is_handed_on = True
        except (TierKVError, OSError, TimeoutError) as error:
            log_event(_log, "attach refused", level=logging.WARNING, error=error)
            refusal = error if isinstance(error, TierKVError) else UnavailableError("the attach handshake was too slow")
            with contextlib.suppress(OSError):
                connection.send(attach.encode_refusal(refusal))
        except Exception:
            _log.exception("an attach exchange failed")
        finally:
            if not is_handed_on:
                connection.close()

    async def _exchange(self, connection: socket.socket) -> MapPool | None:
        """Answers a hello; returns what else was asked for."""
        loop = asyncio.get_running_loop()
        kind, length = attach.decode_header(await _receive(loop, connection, attach.HEADER_BYTES))
        body = await _receive(loop, connection, length)
        # Not before the message is read: a socket closed with bytes unread takes the refusal with it.
        _check_peer(connection)
        if kind is attach.Kind.MAP_POOL:
            return decode_map_pool(body)
        if kind is not attach.Kind.HELLO:
            raise InvalidRequestError("the first attach message is a hello, or asks for a pool", kind=kind.name)
        self._welcome(connection, attach.decode_hello(body))
        return None

    def _welcome(self, connection: socket.socket, hello: attach.Hello) -> None:
        if hello.protocol_version > PROTOCOL_VERSION:
            raise InvalidRequestError(
                "the client speaks a newer protocol; upgrade the daemon", client=hello.protocol_version, daemon=PROTOCOL_VERSION
            )
        welcome = attach.Welcome(
            arena_bytes=self._store.arena_bytes(),
            prefaulted_bytes=self._store.prefaulted_bytes(),
            attach_secret=self._sessions.new_attach_secret(),
            daemon_version=__version__,
            grpc_socket_name=GRPC_SOCKET_NAME,
        )
        # A welcome is smaller than any socket buffer, so that this neither waits nor is cut.
        socket.send_fds(connection, [attach.encode_welcome(welcome)], [self._store.arena_fd()])


def _check_peer(connection: socket.socket) -> None:
    """Raises InvalidRequestError for a process of another user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.getuid() and uid not in SERVED_BESIDES:
        raise InvalidRequestError("this daemon serves another user", uid=uid, pid=pid)


async def _receive(loop: asyncio.AbstractEventLoop, connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = await loop.sock_recv(connection, length - len(parts))
        if not part:
            raise UnavailableError("the client hung up during the attach handshake")
        parts += part
    return bytes(parts)
