"""The messages of the attach handshake: fixed binary, bounded before they are believed. docs/protocol.md, "Attach".

Pure encoding plus the client's side of the exchange, which blocks; the daemon's side is `tierkvd.attach`. What a pool connection says
is in `tierkv.wire.pools`.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from tierkv.errors import DataError, InvalidRequestError, TierKVError, UnavailableError
from tierkv.wire.kinds import CLASS_OF_KIND, ErrorKind, kind_of
from tierkv.wire.limits import LABEL_BYTES, PROTOCOL_VERSION, SECRET_BYTES

MAGIC = b"TKVA"
FORMAT_VERSION = 1
BODY_BYTES_LIMIT = 4_096
DESCRIPTORS_LIMIT = 4
_TEXT_BYTES_LIMIT = 2_048
_HEADER = struct.Struct("<4sHHI")
_HELLO = struct.Struct("<HH")
_WELCOME = struct.Struct(f"<QQ{SECRET_BYTES}sHHH")
_REFUSAL = struct.Struct("<HH")
HEADER_BYTES = _HEADER.size
T = TypeVar("T")


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    MAP_POOL = 4
    POOL = 5


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client says first."""

    label: str
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the daemon answers; `num_descriptors` descriptors travel beside it, the arena first."""

    arena_bytes: int
    prefaulted_bytes: int
    attach_secret: bytes
    daemon_version: str
    grpc_socket_name: str
    num_descriptors: int = 1


@dataclass(frozen=True, slots=True)
class Attached:
    """The outcome of a handshake. The caller owns `arena_fd` and closes it once the arena is mapped."""

    welcome: Welcome
    arena_fd: int


def encode_hello(hello: Hello) -> bytes:
    """Raises InvalidRequestError for a label above 256 bytes."""
    label = hello.label.encode()
    if len(label) > LABEL_BYTES:
        raise InvalidRequestError("a label has at most 256 bytes", length=len(label))
    return message(Kind.HELLO, _HELLO.pack(hello.protocol_version, len(label)) + label)


def encode_welcome(welcome: Welcome) -> bytes:
    version, name = welcome.daemon_version.encode(), welcome.grpc_socket_name.encode()
    body = _WELCOME.pack(
        welcome.arena_bytes,
        welcome.prefaulted_bytes,
        welcome.attach_secret,
        welcome.num_descriptors,
        len(version),
        len(name),
    )
    return message(Kind.WELCOME, body + version + name)


def encode_refusal(error: TierKVError) -> bytes:
    text = str(error).encode()[:_TEXT_BYTES_LIMIT]
    return message(Kind.REFUSAL, _REFUSAL.pack(kind_of(error), len(text)) + text)


def decode_header(header: bytes) -> tuple[Kind, int]:
    """Kind and length of the body. Raises DataError for a foreign magic, version, kind or an excessive length."""
    if len(header) != HEADER_BYTES:
        raise DataError("the attach message is cut off", length=len(header))
    magic, version, kind, length = _HEADER.unpack(header)
    if magic != MAGIC:
        raise DataError("this is not an attach message", magic=magic)
    if version != FORMAT_VERSION:
        raise DataError("the attach message has another format version", version=version, known=FORMAT_VERSION)
    if length > BODY_BYTES_LIMIT:
        raise DataError("the attach message is too long", length=length, limit=BODY_BYTES_LIMIT)
    if kind not in Kind.__members__.values():
        raise DataError("the attach message has an unknown kind", kind=kind)
    return Kind(kind), length


def decode_hello(body: bytes) -> Hello:
    """Raises DataError for a malformed body. Whether the protocol version is acceptable is the daemon's decision."""
    (version, length), texts = fixed(_HELLO, body)
    if length > LABEL_BYTES:
        raise DataError("the label is too long", length=length, limit=LABEL_BYTES)
    (label,) = texts_of(texts, length)
    return Hello(label=label, protocol_version=version)


def decode_welcome(body: bytes) -> Welcome:
    """Raises DataError for a malformed body or a socket name that leaves its folder."""
    (arena, prefaulted, secret, descriptors, version_length, name_length), texts = fixed(_WELCOME, body)
    version, name = texts_of(texts, version_length, name_length)
    if not name or "/" in name or "\0" in name or name in {".", ".."}:
        raise DataError("the daemon named a socket outside its folder", name=name)
    if not arena or prefaulted > arena or not 1 <= descriptors <= DESCRIPTORS_LIMIT:
        raise DataError("the daemon's welcome is impossible", arena_bytes=arena, prefaulted=prefaulted, descriptors=descriptors)
    return Welcome(arena, prefaulted, secret, version, name, descriptors)


def decode_refusal(body: bytes) -> TierKVError:
    """The error that the daemon answered with; a number this side does not know is an UnavailableError with the text."""
    (number, length), texts = fixed(_REFUSAL, body)
    (text,) = texts_of(texts, length)
    cls = CLASS_OF_KIND[ErrorKind(number)] if number in ErrorKind.__members__.values() else UnavailableError
    return cls(text)


def handshake(connection: socket.socket, hello: Hello, left_s: Callable[[], float]) -> Attached:
    """The client's side, on a connected socket. Does not close the socket, but sets its timeout.

    left_s — seconds until the deadline, positive; raises where it has passed. It is asked before every step, so that an answer that
    comes drop by drop does not get the whole time again with each drop.

    Raises what the daemon refused with, UnavailableError where it hung up or was too slow, DataError where it talked nonsense.
    Descriptors that came with a bad answer are closed.
    """

    def arena_of(body: bytes, descriptors: list[int]) -> Attached:
        welcome = decode_welcome(body)
        check_descriptors(descriptors, expected=welcome.num_descriptors)
        return Attached(welcome, descriptors.pop(0))

    return exchange(connection, encode_hello(hello), Kind.WELCOME, arena_of, left_s)


def exchange(
    connection: socket.socket, request: bytes, answer: Kind, take: Callable[[bytes, list[int]], T], left_s: Callable[[], float]
) -> T:
    """Says `request` and hands the body of an `answer` to `take`, with the descriptors that came along; as `handshake` says.

    take — removes from the list the descriptors that it keeps; the others are closed, all of them where it raises before.
    """
    descriptors: list[int] = []

    def receive(length: int) -> bytes:
        connection.settimeout(left_s())
        return connection.recv(length)

    try:
        connection.settimeout(left_s())
        connection.sendall(request)
        connection.settimeout(left_s())
        header, descriptors = _receive_with_descriptors(connection, receive)
        kind, length = decode_header(header)
        body = _receive_exactly(length, receive)
        if kind is Kind.REFUSAL:
            raise decode_refusal(body)
        if kind is not answer:
            raise DataError("the daemon answered with the wrong kind of message", kind=kind.name)
        return take(body, descriptors)
    except OSError as error:
        raise UnavailableError("the attach handshake failed", error=error.strerror or type(error).__name__) from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def check_descriptors(descriptors: list[int], *, expected: int) -> None:
    """Raises DataError where not as many came as were announced."""
    if len(descriptors) != expected:
        raise DataError("descriptors are missing", expected=expected, received=len(descriptors))


def _receive_with_descriptors(connection: socket.socket, receive: Callable[[int], bytes]) -> tuple[bytes, list[int]]:
    data, descriptors, flags, _ = socket.recv_fds(connection, HEADER_BYTES, DESCRIPTORS_LIMIT)
    try:
        if not data:
            raise UnavailableError("the daemon hung up during the attach handshake")
        if flags & socket.MSG_CTRUNC:
            raise DataError("descriptors were lost on the way; is the limit of open files reached?", received=len(descriptors))
        rest = _receive_exactly(HEADER_BYTES - len(data), receive)
    except (TierKVError, OSError):
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return data + rest, list(descriptors)


def _receive_exactly(length: int, receive: Callable[[int], bytes]) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = receive(length - len(parts))
        if not part:
            raise UnavailableError("the daemon hung up during the attach handshake", received=len(parts), expected=length)
        parts += part
    return bytes(parts)


def message(kind: Kind, body: bytes) -> bytes:
    """Header and body. Raises InvalidRequestError for a body above 4,096 bytes."""
    if len(body) > BODY_BYTES_LIMIT:
        raise InvalidRequestError("an attach message is too long", length=len(body), limit=BODY_BYTES_LIMIT)
    return _HEADER.pack(MAGIC, FORMAT_VERSION, kind, len(body)) + body


def fixed(layout: struct.Struct, body: bytes) -> tuple[tuple[Any, ...], bytes]:
    """The fixed fields of a body, and what follows them. Raises DataError for a body that is too short."""
    if len(body) < layout.size:
        raise DataError("the attach message is cut off", length=len(body), expected=layout.size)
    return layout.unpack_from(body), body[layout.size :]


def texts_of(data: bytes, *lengths: int) -> list[str]:
    """UTF-8 texts of these lengths, back to back. Raises DataError where they do not add up or are none."""
    if sum(lengths) != len(data):
        raise DataError("the lengths in an attach message do not add up", expected=sum(lengths), found=len(data))
    texts: list[str] = []
    start = 0
    for length in lengths:
        try:
            texts.append(data[start : start + length].decode())
        except UnicodeDecodeError as error:
            raise DataError("a text in an attach message is not UTF-8", text=data[start : start + length]) from error
        start += length
    return texts
