"""The page pool of a device as one client maps it: memory, the connection that stands for the map, and the link of its session.

docs/protocol.md, "Pool connection". The connection lives in the kernel for as long as this process does, so that the daemon learns of its
end without being told; nothing is ever said on it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence

from tierkv.client.address import LocalAddress
from tierkv.client.link import Link, connected
from tierkv.errors import ClosedError, DataError, InvalidRequestError, TierKVError, UnavailableError
from tierkv.mapping import ArenaMap
from tierkv.model.keys import NamespaceId
from tierkv.pages import Pool
from tierkv.wire.limits import SESSION_METADATA
from tierkv.wire.pools import MapPool, PoolOffer, ask_for_pool


class MappedPool:
    """One map, made whole or not at all, and never mended: whoever finds it dead maps the pool anew."""

    def __init__(self, pool: Pool, link: Link, connection: socket.socket, memory: ArenaMap | None, *, pool_id: int) -> None:
        """pool_id — what the daemon calls the connection."""
        self.pool = pool
        self.pool_id = pool_id
        self.link = link
        self._connection = connection
        self._memory = memory
        self._is_given_up = False

    @property
    def is_alive(self) -> bool:
        """Whether session and connection both stand, as far as anybody has told us, and every call was answered."""
        return not self._is_given_up and self.link.is_alive and self._stands()

    def _stands(self) -> bool:
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True  # nothing was said, as ever
        except OSError:
            return False

    @contextlib.contextmanager
    def given_up_on_failure(self) -> Iterator[None]:
        """Around a call: where it has no answer, or one without sense, what the session holds is not known any more.

        Its pages return with the connection then; the map stays.
        """
        try:
            yield
        except (UnavailableError, ClosedError, DataError):
            self._is_given_up = True
            raise

    def checked(self, pages: Sequence[int]) -> Sequence[int]:
        """Raises DataError for a page outside of the pool."""
        if pages and max(pages) >= self.pool.num_pages:
            raise DataError("the daemon named a page that the pool does not have", page=max(pages), pages=self.pool.num_pages)
        return pages

    def close(self) -> None:
        """Ends connection and map; the pages return. May be called twice."""
        self._is_given_up = True
        # A forked child may have the connection too; it must not keep the pages.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if self._memory is None or self.pool.buffer is None:
            return
        # Where an engine still has views of its own, they keep the memory mapped and are its own mistake to touch.
        with contextlib.suppress(BufferError):
            self.pool.buffer.release()
        self._memory.close()


def map_pool(
    link: Link, namespace_id: NamespaceId, device: str, block_bytes: int | None, left_s: Callable[[], float]
) -> MappedPool:
    """Asks the daemon of `link` for the pool of `device` and maps it. Blocks until the deadline at most.

    block_bytes — what pages must have room for, where it is known here.
    Raises as `PageStore.open_pool` does, and ClosedError, the link being dead then, where the daemon does not know the session.
    """
    if not isinstance(link.address, LocalAddress):
        raise InvalidRequestError("a page pool is mapped, which needs a daemon on this machine; connect to its run folder")
    request = MapPool(_secret_of(link), namespace_id, device)
    connection = connected(link.address, left_s)
    try:
        found = ask_for_pool(connection, request, left_s)
        connection.setblocking(False)
        memory = _map(found.offer, found.memory_fd)
    except BaseException as error:
        connection.close()
        if isinstance(error, ClosedError):
            link.mark_dead()
        raise
    offer = found.offer
    buffer = None if memory is None else memory.view(0, offer.page_bytes * offer.num_pages)
    pool = Pool(device, offer.page_bytes, offer.num_pages, buffer, offer.ipc_handle)
    mapped = MappedPool(pool, link, connection, memory, pool_id=offer.pool_id)
    if block_bytes is not None and offer.page_bytes < block_bytes:
        mapped.close()
        raise DataError("the daemon's pages are smaller than a block", page_bytes=offer.page_bytes, block_bytes=block_bytes)
    return mapped


def _secret_of(link: Link) -> bytes:
    return next(value for name, value in link.metadata if name == SESSION_METADATA and isinstance(value, bytes))


def _map(offer: PoolOffer, memory_fd: int | None) -> ArenaMap | None:
    if memory_fd is None:
        return None
    try:
        return ArenaMap(memory_fd, offer.memory_bytes)
    except (OSError, TierKVError) as error:
        raise DataError("the page pool cannot be mapped", memory_bytes=offer.memory_bytes, error=error) from error
    finally:
        os.close(memory_fd)
