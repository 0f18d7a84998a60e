"""What a client is told about where the daemon is: a run folder on this machine, or a TCP address."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import grpc

from tierkv.errors import InvalidRequestError
from tierkv.wire.addresses import GRPC_SOCKET_NAME
from tierkv.wire.limits import AUTHORIZATION_METADATA

TOKEN_VARIABLE = "TIERKV_TOKEN"  # noqa: S105 - the name of the variable, not a token

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """A run folder; None: the user's default one."""

    run_folder: Path | None


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """host:port, without shared memory. token — shown with every call; ca — PEM of who signed the server's certificate, None: no TLS."""

    target: str
    token: str | None
    ca: bytes | None

    def metadata(self) -> Metadata:
        return () if self.token is None else ((AUTHORIZATION_METADATA, f"Bearer {self.token}"),)

    def credentials(self) -> grpc.ChannelCredentials | None:
        return None if self.ca is None else grpc.ssl_channel_credentials(self.ca)


Address = LocalAddress | RemoteAddress


def parse_address(
    address: str | os.PathLike[str] | None, *, token: str | None = None, ca_file: str | os.PathLike[str] | None = None
) -> Address:
    """None → the default run folder; a path → that run folder (or the gRPC socket in one); "host:port" → TCP.

    token — None: the variable TIERKV_TOKEN. Raises InvalidRequestError for what is neither, and for a file that cannot be read.
    """
    if address is None:
        return LocalAddress(None)
    text = os.fspath(address)
    host, colon, port = text.rpartition(":")
    if colon and port.isdigit() and host and "/" not in text:
        return RemoteAddress(text, token or os.environ.get(TOKEN_VARIABLE) or None, _certificates(ca_file))
    if not text or (colon and "/" not in text and not Path(text).exists()):
        raise InvalidRequestError("an address is a run folder or host:port", address=text)
    path = Path(text)
    return LocalAddress(path.parent if path.name == GRPC_SOCKET_NAME else path)


def _certificates(ca_file: str | os.PathLike[str] | None) -> bytes | None:
    if ca_file is None:
        return None
    try:
        return Path(ca_file).read_bytes()
    except OSError as error:
        raise InvalidRequestError("the certificate file cannot be read", file=ca_file, error=error.strerror or error) from error
