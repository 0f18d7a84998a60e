"""The daemon's life: lock, store, servers, then a wait for a signal, then the same in reverse. Nothing committed is lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from tierkv import __version__
from tierkv.assemble import open_tiered_store
from tierkv.clock import Clock, SystemClock
from tierkv.config import DaemonSettings
from tierkv.errors import ConflictError
from tierkv.settings import StoreSettings
from tierkv.store import TieredStore
from tierkv.wire.addresses import RunFolder, create_run_folder
from tierkvd.attach import AttachServer
from tierkvd.http import HttpServer
from tierkvd.pools import Pools
from tierkvd.rpc import RpcServer, read_token
from tierkvd.servicer import Servicer
from tierkvd.telemetry import log_event, start_logging

HOUSEKEEPING_S = 1.0
GRACE_S = 2.0
"""What calls get to end when the servers stop."""
SWITCH_INTERVAL_S = 0.0005
"""How long a worker thread may keep the event loop from the interpreter; Python's default of 5 ms is ten calls."""
_log = logging.getLogger(__name__)

OpenStore = Callable[[StoreSettings, Clock], TieredStore]


def serve(settings: DaemonSettings, *, open_store: OpenStore = open_tiered_store) -> None:
    """Runs a daemon until SIGTERM or SIGINT. Raises ConflictError when another one has the run folder or the data folder."""
    start_logging(settings.log_level)
    run_folder = create_run_folder(settings.run_folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_run_lock(run_folder))
        store = open_store(settings.store, SystemClock())
        stack.callback(store.close, discard_arena=not settings.store.host.keep_on_stop)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.freeze()  # a large index lives as long as the daemon: no collection need look at it
        stack.callback(_ignore_signals)  # before the store closes: a second SIGTERM must not cut its last writes
        asyncio.run(_Daemon(settings, run_folder, store).run())
    log_event(_log, "stopped")


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


class _Daemon:
    def __init__(self, settings: DaemonSettings, run_folder: RunFolder, store: TieredStore) -> None:
        self._settings = settings
        self._run_folder = run_folder
        self._store = store
        self._is_ready = False

    async def run(self) -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        servicer = Servicer(self._store, SystemClock(), self._settings.store.limits)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, servicer.scrubs.join, GRACE_S)
            addresses = await self._start_servers(servicer, stack)
            await stack.enter_async_context(self._housekeeping())
            self._is_ready = True
            stats = self._store.stats()
            log_event(
                _log,
                "ready",
                version=__version__,
                pid=os.getpid(),
                data=self._settings.store.data_folder,
                blocks={tier.name: tier.blocks for tier in stats.tiers},
                **addresses,
            )
            await stopping.wait()
            log_event(_log, "stopping")
            self._is_ready = False
            # Before the servers stop: a server that stops takes no more calls, and a commit is a call.
            await servicer.stop()

    async def _start_servers(self, servicer: Servicer, stack: contextlib.AsyncExitStack) -> dict[str, Any]:
        """Starts what is configured; the stack stops it in reverse."""
        settings, folder = self._settings, self._run_folder
        addresses: dict[str, Any] = {"socket": folder.grpc_socket}
        if settings.http is not None:
            http = HttpServer(settings.http, self._store, lambda: self._is_ready)
            stack.push_async_callback(http.stop)
            addresses["http"] = await http.start()
        if settings.listen is not None:
            token = None if settings.token_file is None else read_token(settings.token_file)
            tcp = RpcServer(servicer, token=token)
            port = await tcp.listen_tcp(settings.listen, cert=settings.tls_cert, key=settings.tls_key)
            stack.push_async_callback(tcp.stop, GRACE_S)
            addresses["listen"] = f"{settings.listen.host}:{port}"
        local = RpcServer(servicer)
        await local.listen_unix(folder.grpc_socket)
        stack.push_async_callback(local.stop, GRACE_S)
        pools = Pools(self._store, servicer.sessions, limit=settings.store.limits.sessions)
        attach = AttachServer(folder.attach_socket, self._store, servicer.sessions, pools)
        attach.start()
        stack.push_async_callback(attach.stop)
        return addresses

    @contextlib.asynccontextmanager
    async def _housekeeping(self) -> AsyncIterator[None]:
        async def tidy() -> None:
            while True:
                await asyncio.sleep(HOUSEKEEPING_S)
                try:
                    self._store.expire()
                except Exception:
                    _log.exception("housekeeping failed; it goes on")

        task = asyncio.get_running_loop().create_task(tidy())
        try:
            yield
        finally:
            task.cancel()


@contextlib.contextmanager
def _run_lock(run_folder: RunFolder) -> Iterator[None]:
    """Holds the run folder's lock. Raises ConflictError when another daemon has it."""
    path: Path = run_folder.lock_file
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(
                "another daemon serves this run folder; stop it, or choose another with --run-dir", run_folder=run_folder.path
            ) from error
        yield
    finally:
        os.close(fd)
