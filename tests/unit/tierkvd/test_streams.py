"""Put and Get as streams over a real store, driven message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.errors import ClosedError
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import ReserveOutcome
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings
from tierkv.store import TieredStore
from tierkv.wire import messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkvd.sessions import Sessions
from tierkvd.streams import Streams

BLOCK_BYTES = 8192
LAYOUT = Layout((BLOCK_BYTES,), "uint8", 1)
NAMESPACE = Identity(weights="w").fingerprint(LAYOUT)
KEYS = chain_keys(NAMESPACE, range(2), block_tokens=1)
HEADER = pb.PutRequest(header=pb.PutHeader(namespace_id=NAMESPACE, keys=messages.pack_keys(KEYS)))
CHUNKS = [pb.PutRequest(chunk=pb.PutChunk(block_idx=idx, data=bytes([idx + 1]) * BLOCK_BYTES)) for idx in range(2)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TieredStore]:
    settings = StoreSettings(
        data_folder=tmp_path / "data", host=HostSettings(MIB, folder=tmp_path / "arena", prefault=False), disk=DiskSettings(0)
    )
    opened = open_tiered_store(settings, SystemClock())
    opened.register(Identity(weights="w"), LAYOUT)
    yield opened
    opened.close(discard_arena=True)


def test_what_was_put_is_got(store: TieredStore) -> None:
    async def run() -> None:
        sessions, streams = Sessions(store, SystemClock()), Streams(store, SystemClock())
        session = sessions.open("remote", b"")

        async def requests() -> AsyncIterator[pb.PutRequest]:
            for request in (HEADER, *CHUNKS):
                yield request

        assert await streams.put(session, requests()) == (ReserveOutcome.GRANTED,) * 2
        request = pb.GetRequest(namespace_id=NAMESPACE, keys=messages.pack_keys(KEYS))
        deadline_s = asyncio.get_running_loop().time() + 10.0
        events = [event async for event in streams.get(session, request, deadline_s)]
        assert [event.chunk.data[:1] for event in events[1:]] == [b"\1", b"\2"]

    asyncio.run(run())


def test_a_put_does_not_write_where_its_session_has_no_extents_any_more(store: TieredStore) -> None:
    async def run() -> None:
        sessions, streams = Sessions(store, SystemClock()), Streams(store, SystemClock())
        session, other = sessions.open("remote", b""), sessions.open("other", b"")
        extents = []

        async def requests() -> AsyncIterator[pb.PutRequest]:
            yield HEADER
            yield CHUNKS[0]
            sessions.close(session)
            extents.extend(store.reserve(other.session, NAMESPACE, KEYS).extents)
            for extent in extents:
                store.view(extent)[:] = bytes(extent.length)
            yield CHUNKS[1]

        with pytest.raises(ClosedError):
            await streams.put(session, requests())
        assert [bytes(store.view(extent)) for extent in extents] == [bytes(BLOCK_BYTES)] * 2

    asyncio.run(run())


def test_a_get_does_not_read_what_its_session_has_let_go(store: TieredStore) -> None:
    async def run() -> None:
        sessions, streams = Sessions(store, SystemClock()), Streams(store, SystemClock())
        session = sessions.open("remote", b"")
        store.commit(session.session, store.reserve(session.session, NAMESPACE, KEYS).reservation_id)
        request = pb.GetRequest(namespace_id=NAMESPACE, keys=messages.pack_keys(KEYS))
        events = streams.get(session, request, asyncio.get_running_loop().time() + 10.0)
        assert (await anext(events)).HasField("header")
        assert (await anext(events)).HasField("chunk")
        sessions.close(session)
        with pytest.raises(ClosedError):
            await anext(events)

    asyncio.run(run())
