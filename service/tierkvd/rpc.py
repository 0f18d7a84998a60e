"""The gRPC servers: one on the Unix socket, one on TCP where asked for, both with health and reflection."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tierkv.config import Address
from tierkv.errors import InvalidRequestError, UnavailableError
from tierkv.wire._generated import tierkv_pb2, tierkv_pb2_grpc
from tierkv.wire.limits import CONCURRENT_CALLS, server_options
from tierkvd.calls import TokenInterceptor
from tierkvd.servicer import Servicer

SERVICE_NAME = tierkv_pb2.DESCRIPTOR.services_by_name["TierKV"].full_name


class RpcServer:
    """One listening server."""

    def __init__(self, servicer: Servicer, *, token: str | None = None) -> None:
        interceptors = [] if token is None else [TokenInterceptor(token)]
        self._server = grpc.aio.server(
            options=server_options(), maximum_concurrent_rpcs=CONCURRENT_CALLS, interceptors=interceptors
        )
        self._health = health.aio.HealthServicer()
        tierkv_pb2_grpc.add_TierKVServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def listen_unix(self, path: Path) -> None:
        """Binds the socket. The folder is ours and locked, so an old socket is a dead one's."""
        path.unlink(missing_ok=True)
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise UnavailableError("the gRPC socket cannot be bound", path=path, error=error) from error
        # The folder is private, so nobody could come in before this; a umask would meet the files of the store's threads too.
        os.chmod(path, 0o600)
        await self._start()

    async def listen_tcp(self, address: Address, *, cert: Path | None, key: Path | None) -> int:
        """Returns the port. Raises UnavailableError when the address is taken."""
        try:
            if cert is not None and key is not None:
                credentials = grpc.ssl_server_credentials([(_read(key), _read(cert))])
                port = self._server.add_secure_port(str(address), credentials)
            else:
                port = self._server.add_insecure_port(str(address))
        except RuntimeError as error:
            raise UnavailableError("the address is taken or cannot be listened on", listen=address, error=error) from error
        await self._start()
        return port

    async def _start(self) -> None:
        await self._server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Health turns NOT_SERVING, calls get `grace_s` to end."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def read_token(path: Path) -> str:
    """The token in a file, without the line's end. Raises InvalidRequestError for a file others can read, or an empty one."""
    try:
        if path.stat().st_mode & 0o077:
            raise InvalidRequestError("the token file is open to others; chmod 600 it", token_file=path)
        token = path.read_text().strip()
    except OSError as error:
        raise InvalidRequestError("the token file cannot be read", token_file=path, error=error.strerror) from error
    if len(token) < 16:
        raise InvalidRequestError("a token has at least 16 characters", token_file=path, length=len(token))
    return token


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequestError("a TLS file cannot be read", path=path, error=error.strerror) from error
