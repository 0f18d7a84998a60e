"""One attachment of a synchronous client: the channel, the session's stream, and the arena's map. It lives until any of them ends.

A link is made whole or not at all, within a deadline, and never mended: whoever finds it dead makes a new one. Its map outlives it for
as long as views of it are held.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from tierkv.client.address import Address, LocalAddress, Metadata, RemoteAddress
from tierkv.errors import DataError, TierKVError, UnavailableError
from tierkv.mapping import ArenaMap
from tierkv.wire import attach
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire._generated import tierkv_pb2_grpc
from tierkv.wire.addresses import RunFolder, find_run_folder
from tierkv.wire.limits import SESSION_METADATA, client_options
from tierkv.wire.status import error_of_rpc

_POPULATE_STEP_BYTES = 4 << 20
_BACKLOG_PAUSE_S = 0.01
Watch = Callable[[], None]


class Link:
    """`stub` and `metadata` for calls; `arena` is None for a client without shared memory."""

    def __init__(self, address: Address, *, label: str, epoch: int, left_s: Callable[[], float]) -> None:
        """Attaches and opens a session; raises UnavailableError, or what the daemon refused with.

        left_s — seconds until the deadline of all steps together; raises UnavailableError where it has passed.
        """
        self.address = address
        self.epoch = epoch
        self.arena: ArenaMap | None = None
        self.lease_ttl_s = 0.0
        self.is_stopping = False
        self._is_alive = True
        self._populating = threading.Event()
        self._threads: list[threading.Thread] = []
        self._base: Metadata = ()
        secret = b""
        prefaulted_bytes = 0
        if isinstance(address, LocalAddress):
            welcome, self.arena, target = attach_to(address, label, left_s)
            secret, prefaulted_bytes = welcome.attach_secret, welcome.prefaulted_bytes
            self._channel = grpc.insecure_channel(target, options=client_options())
        else:
            self._base = address.metadata()
            self._channel = remote_channel(address)
        self.stub: Any = tierkv_pb2_grpc.TierKVStub(self._channel)
        try:
            self._stream, opened = self._open_session(label, secret, left_s())
        except BaseException:
            self.close()
            raise
        self.lease_ttl_s = opened.lease_ttl_s
        self.metadata: Metadata = (*self._base, (SESSION_METADATA, opened.session_secret))
        if self.arena is not None and prefaulted_bytes:
            self._start("tierkv-populate", lambda: self._populate(prefaulted_bytes))

    @property
    def is_alive(self) -> bool:
        """False once the session's stream has ended."""
        return self._is_alive

    def mark_dead(self) -> None:
        """The daemon does not know the session (any more)."""
        self._is_alive = False

    def _open_session(self, label: str, secret: bytes, timeout_s: float) -> tuple[Any, pb.SessionOpened]:
        stream = self.stub.OpenSession(pb.OpenSessionRequest(label=label, attach_secret=secret), metadata=self._base or None)
        first: queue.SimpleQueue[pb.SessionOpened | TierKVError] = queue.SimpleQueue()
        self._start("tierkv-session", lambda: self._watch(stream, first.put))
        try:
            opened = first.get(timeout=timeout_s)
        except queue.Empty:
            stream.cancel()
            raise UnavailableError("the daemon did not open a session in time", timeout_s=timeout_s) from None
        if isinstance(opened, TierKVError):
            raise opened
        return stream, opened

    def _watch(self, stream: Iterator[pb.SessionEvent], report: Callable[[pb.SessionOpened | TierKVError], None]) -> None:
        """Reads the session's events until the stream ends, which is the session's end."""
        failure: TierKVError = UnavailableError("the daemon ended the session")
        try:
            for event in stream:
                if event.HasField("opened"):
                    report(event.opened)
                else:
                    self.is_stopping = True
        except grpc.RpcError as error:
            failure = error_of_rpc(error)
        finally:
            self._is_alive = False
            report(failure)

    def _populate(self, prefaulted_bytes: int) -> None:
        """Fills the page tables of what the daemon has put memory behind; a fresh map is otherwise slow at first use."""
        arena = self.arena
        for offset in range(0, prefaulted_bytes, _POPULATE_STEP_BYTES):
            if self._populating.is_set() or arena is None:
                return
            arena.populate(offset, min(_POPULATE_STEP_BYTES, prefaulted_bytes - offset))

    def wait_populated(self, timeout_s: float) -> None:
        """Blocks until the background population is over; for whoever wants to measure."""
        for thread in self._threads:
            if thread.name == "tierkv-populate":
                thread.join(timeout_s)

    def _start(self, name: str, work: Watch) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Ends the session, whereupon the daemon takes back what it held. May be called twice."""
        self._is_alive = False
        self._populating.set()
        if hasattr(self, "_stream"):
            self._stream.cancel()
        self._channel.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads.clear()
        if self.arena is not None:
            self.arena.close()


def attach_to(address: LocalAddress, label: str, left_s: Callable[[], float]) -> tuple[attach.Welcome, ArenaMap, str]:
    """The attach handshake: what the daemon said, the arena mapped, and the gRPC target. Blocks until the deadline at most.

    Raises UnavailableError that names the socket when nobody answers there.
    """
    folder: RunFolder = find_run_folder(address.run_folder)
    with connected(address, left_s) as connection:
        attached = attach.handshake(connection, attach.Hello(label), left_s)
    try:
        arena = ArenaMap(attached.arena_fd, attached.welcome.arena_bytes)
    except (OSError, TierKVError) as error:
        raise DataError("the arena cannot be mapped", arena_bytes=attached.welcome.arena_bytes, error=error) from error
    finally:
        os.close(attached.arena_fd)
    return attached.welcome, arena, f"unix:{folder.path / attached.welcome.grpc_socket_name}"


def connected(address: LocalAddress, left_s: Callable[[], float]) -> socket.socket:
    """A connection to the daemon's attach socket, the caller's to close. Raises UnavailableError that names it where nobody answers."""
    path = find_run_folder(address.run_folder).attach_socket
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        timeout_s = left_s()
        connection.settimeout(timeout_s)
        _connect(connection, path, timeout_s)
    except OSError as error:
        connection.close()
        raise UnavailableError(
            "no daemon answers at this socket; start `tierkv serve`", socket=path, error=error.strerror or error
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(connection: socket.socket, path: Path, timeout_s: float) -> None:
    """Connects; a full backlog, which the kernel reports at once and not as a wait, is waited out. Raises OSError."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            connection.connect(str(path))
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(_BACKLOG_PAUSE_S)
        else:
            return


def remote_channel(address: RemoteAddress) -> grpc.Channel:
    """A TCP channel, with TLS where there is a certificate authority to check it."""
    credentials = address.credentials()
    if credentials is None:
        return grpc.insecure_channel(address.target, options=client_options())
    return grpc.secure_channel(address.target, credentials, options=client_options())
