"""The messages of a pool connection: fixed binary, bounded before they are believed. docs/protocol.md, "Pool connection".

Header, refusal and the exchange itself are those of `tierkv.wire.attach`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.keys import KEY_BYTES, NamespaceId
from tierkv.wire import attach
from tierkv.wire.limits import DEVICE_BYTES, IPC_HANDLE_BYTES, SECRET_BYTES

_MAP_POOL = struct.Struct(f"<{SECRET_BYTES}s{KEY_BYTES}sH")
_POOL = struct.Struct("<QQQIHH")


@dataclass(frozen=True, slots=True)
class MapPool:
    """What a client with an open session says to map the pool of a device."""

    session_secret: bytes
    namespace_id: NamespaceId
    device: str


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """What the daemon answers. pool_id — what calls name the pool by; num_descriptors — 1 where that of the pool's memory travels beside
    it, else 0.
    """

    pool_id: int
    memory_bytes: int
    page_bytes: int
    num_pages: int
    num_descriptors: int
    ipc_handle: bytes = b""


@dataclass(frozen=True, slots=True)
class MappablePool:
    """The outcome of an exchange. The caller owns `memory_fd`, None on devices without one, and closes it once the pool is mapped."""

    offer: PoolOffer
    memory_fd: int | None


def encode_map_pool(request: MapPool) -> bytes:
    """Raises InvalidRequestError for a device's name above 64 bytes."""
    device = request.device.encode()
    if not 0 < len(device) <= DEVICE_BYTES:
        raise InvalidRequestError("the name of a device has 1 to 64 bytes", device=request.device)
    if len(request.namespace_id) != KEY_BYTES:
        raise InvalidRequestError("a namespace id has 32 bytes", length=len(request.namespace_id))
    body = _MAP_POOL.pack(request.session_secret, request.namespace_id, len(device)) + device
    return attach.message(attach.Kind.MAP_POOL, body)


def decode_map_pool(body: bytes) -> MapPool:
    """Raises DataError for a malformed body."""
    (secret, namespace_id, length), texts = attach.fixed(_MAP_POOL, body)
    if not 0 < length <= DEVICE_BYTES:
        raise DataError("the name of a device has 1 to 64 bytes", length=length)
    (device,) = attach.texts_of(texts, length)
    return MapPool(secret, NamespaceId(namespace_id), device)


def encode_pool(offer: PoolOffer) -> bytes:
    sizes = (offer.memory_bytes, offer.page_bytes, offer.num_pages)
    fixed = _POOL.pack(offer.pool_id, *sizes, offer.num_descriptors, len(offer.ipc_handle))
    return attach.message(attach.Kind.POOL, fixed + offer.ipc_handle)


def decode_pool(body: bytes) -> PoolOffer:
    """Raises DataError for a malformed body, pages that do not fit in their memory, or neither a descriptor nor a handle."""
    (pool_id, memory_bytes, page_bytes, num_pages, num_descriptors, length), handle = attach.fixed(_POOL, body)
    if length != len(handle) or length > IPC_HANDLE_BYTES:
        raise DataError("the handle of a pool has another length than announced", expected=length, found=len(handle))
    if not page_bytes or not num_pages or page_bytes * num_pages > memory_bytes:
        raise DataError("the daemon's pool is impossible", memory_bytes=memory_bytes, page_bytes=page_bytes, num_pages=num_pages)
    if num_descriptors != (0 if handle else 1):
        raise DataError("a pool has either a descriptor or a handle", descriptors=num_descriptors, handle=len(handle))
    return PoolOffer(pool_id, memory_bytes, page_bytes, num_pages, num_descriptors, handle)


def ask_for_pool(connection: socket.socket, request: MapPool, left_s: Callable[[], float]) -> MappablePool:
    """The client's side, on a connected socket, which it leaves open; raises as `attach.handshake` does."""

    def pool_of(body: bytes, descriptors: list[int]) -> MappablePool:
        offer = decode_pool(body)
        attach.check_descriptors(descriptors, expected=offer.num_descriptors)
        return MappablePool(offer, descriptors.pop() if descriptors else None)

    return attach.exchange(connection, encode_map_pool(request), attach.Kind.POOL, pool_of, left_s)
