"""Put and Get: blocks as streams of chunks, for clients that share no memory with the daemon.

Bytes go straight between the messages and the arena. Back-pressure is the transport's: the next chunk is read when the one before is
in place. A Put writes only while its reservation surely lives, a Get reads only while its lease does, and both only while the session
is open: whatever it held may be another's the moment it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Future

from tierkv.clock import Clock
from tierkv.errors import ConflictError, InvalidRequestError
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import Extent, ReserveOutcome
from tierkv.store import Acquisition, TieredStore
from tierkv.wire import messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import CHUNK_BYTES
from tierkvd.sessions import SessionHandle

_SAFE_SHARE = 0.9
"""Share of a hold's life within which bytes are still touched."""


class Streams:
    """The two streaming verbs over a store."""

    def __init__(self, store: TieredStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def put(
        self, session: SessionHandle, requests: AsyncIterator[pb.PutRequest]
    ) -> tuple[tuple[ReserveOutcome, ...], Future[None] | None]:
        """Stores streamed blocks: all of them, or nothing of the call is visible. Chunks of blocks that were not granted are dropped.

        Returns an outcome a key and, for a `strict` commit, the future of its being on disk.
        """
        header = await _header_of(requests)
        namespace = self._store.namespace(messages.unpack_namespace_id(header.namespace_id))
        keys, parent = messages.unpack_keys(header.keys), messages.unpack_parent(header.parent)
        durability, hints = messages.durability_of(header.durability), messages.hints_of(header.hints)
        result = self._store.reserve(session.session, namespace.namespace_id, keys, parent, hints)
        safe_until_s = self._clock.monotonic_s() + _SAFE_SHARE * self._store.reservation_ttl_s
        granted = [key for key, extent in zip(keys, result.extents, strict=True) if extent is not None]
        num_bytes = len(granted) * namespace.layout.block_bytes
        durable: Future[None] | None = None
        try:
            with session.streaming():
                await self._fill(session, requests, keys, result.extents, namespace.layout.block_bytes, safe_until_s)
            if granted:
                durable = self._store.commit(session.session, result.reservation_id, granted, durability).durable
                granted = []
                self._store.count("streamed_in_bytes", num_bytes)
        finally:
            if granted and session.is_open:
                self._store.abort(session.session, result.reservation_id, granted)
        return result.outcomes, durable

    async def _fill(
        self,
        session: SessionHandle,
        requests: AsyncIterator[pb.PutRequest],
        keys: list[BlockKey],
        extents: tuple[Extent | None, ...],
        block_bytes: int,
        safe_until_s: float,
    ) -> None:
        filled = [0] * len(keys)
        async for request in requests:
            # Between two chunks the session may have ended, and its extents with it; nothing awaits between here and the copy.
            session.check_open()
            if self._clock.monotonic_s() > safe_until_s:
                raise ConflictError("the stream was too slow: its reservation has expired; put again", keys=len(keys))
            chunk = request.chunk
            idx, data = chunk.block_idx, chunk.data
            if not request.HasField("chunk") or idx >= len(keys) or not 0 < len(data) <= CHUNK_BYTES:
                raise InvalidRequestError("a chunk names one of the keys and has 1 byte to 1 MiB", block=idx, length=len(data))
            if filled[idx] + len(data) > block_bytes:
                raise InvalidRequestError("a block got more bytes than it has", block=idx, block_bytes=block_bytes)
            extent = extents[idx]
            if extent is not None:
                self._store.view(extent)[filled[idx] : filled[idx] + len(data)] = data
            filled[idx] += len(data)
        session.check_open()
        for idx, (extent, num_bytes) in enumerate(zip(extents, filled, strict=True)):
            if extent is not None and num_bytes != block_bytes:
                raise InvalidRequestError("a block is incomplete", block=idx, received=num_bytes, block_bytes=block_bytes)

    async def get(self, session: SessionHandle, request: pb.GetRequest, deadline_s: float) -> AsyncGenerator[pb.GetEvent, None]:
        """A header, then the blocks of the held prefix in order, as they become readable; ends early where one is lost."""
        namespace = self._store.namespace(messages.unpack_namespace_id(request.namespace_id))
        keys, hints = messages.unpack_keys(request.keys), messages.hints_of(request.hints)
        acquired = self._store.acquire(session.session, namespace.namespace_id, keys, hints)
        safe_until_s = self._clock.monotonic_s() + _SAFE_SHARE * acquired.expires_in_s
        block_bytes = namespace.layout.block_bytes
        session.num_streams += 1
        num_bytes = 0
        try:
            tiers, miss = messages.tier_numbers(acquired.tiers), messages.miss_number(acquired.miss)
            header = pb.GetHeader(tiers=tiers, miss=miss, block_bytes=block_bytes)  # type: ignore[arg-type]
            yield pb.GetEvent(header=header)
            async for idx in _readable(acquired, deadline_s):
                block = self._store.view(acquired.extents[idx])[:block_bytes]
                for start in range(0, block_bytes, CHUNK_BYTES):
                    session.check_open()
                    if self._clock.monotonic_s() > safe_until_s:
                        raise ConflictError("the stream was too slow: its lease has expired; get again", block=idx)
                    data = bytes(block[start : start + CHUNK_BYTES])
                    yield pb.GetEvent(chunk=pb.GetChunk(block_idx=idx, data=data))
                    num_bytes += len(data)
        finally:
            session.num_streams -= 1
            self._store.count("streamed_out_bytes", num_bytes)
            self._store.release(session.session, [acquired.lease_id])


async def _header_of(requests: AsyncIterator[pb.PutRequest]) -> pb.PutHeader:
    async for request in requests:
        if request.HasField("header"):
            return request.header
        break
    raise InvalidRequestError("a Put begins with its header")


async def _readable(acquired: Acquisition, deadline_s: float) -> AsyncIterator[int]:
    """Indices of blocks, in order, each when it is readable; stops where one does not come."""
    loop = asyncio.get_running_loop()
    done = 0
    for run in acquired.pending:
        for idx in range(done, run.start_idx):
            yield idx
        try:
            waiting = asyncio.shield(asyncio.wrap_future(run.done))
            result = await asyncio.wait_for(waiting, max(0.0, deadline_s - loop.time()))
        except TimeoutError:
            return
        for idx in range(run.start_idx, run.start_idx + result.num_blocks):
            yield idx
        if result.num_blocks < run.num_blocks:
            return
        done = run.start_idx + run.num_blocks
    for idx in range(done, len(acquired.extents)):
        yield idx
