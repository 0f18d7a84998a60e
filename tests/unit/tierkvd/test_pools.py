"""Pool connections: who may map a pool, and that the end of the connection, and nothing else, returns the pages of its session."""

import asyncio
import contextlib
import os
import socket
import struct

import pytest

import tierkvd.attach
import tierkvd.pools
from tests.unit.tierkvd.daemon_rig import NAMESPACE, POOLS_LIMIT, TIMEOUT_S
from tests.unit.tierkvd.fake_pages import MEMORY_BYTES, PAGE_BYTES
from tests.unit.tierkvd.test_servicer import eventually, failure_of
from tierkv.errors import CapacityError, ClosedError, ConflictError, InvalidRequestError
from tierkv.mapping import ArenaMap
from tierkv.wire import pools
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import SESSION_METADATA


async def received(connection):
    return await asyncio.to_thread(connection.recv, 1)


async def test_a_session_maps_the_memory_of_the_pool(rig, pages):
    async with rig.session() as (_, metadata):
        connection, offer = await rig.map_pool(metadata)
        with connection:
            assert offer == pools.PoolOffer(1, MEMORY_BYTES, PAGE_BYTES, MEMORY_BYTES // PAGE_BYTES, 1)
            assert pages.opened == [(metadata[0][1], NAMESPACE, "cpu")]
            assert len(rig.pools) == 1


async def test_the_descriptor_that_travels_is_the_pool_s(rig, pages):
    async with rig.session() as (_, metadata):

        def mapped():
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(rig.folder.attach_socket))
                request = pools.MapPool(metadata[0][1], NAMESPACE, "cpu")
                found = pools.ask_for_pool(connection, request, lambda: TIMEOUT_S)
                assert found.memory_fd is not None
                return ArenaMap(found.memory_fd, found.offer.memory_bytes), found.memory_fd

        theirs, fd = await asyncio.to_thread(mapped)
        ours = ArenaMap(pages.memory, MEMORY_BYTES)
        os.close(fd)
        with contextlib.closing(theirs), contextlib.closing(ours):
            theirs.view(PAGE_BYTES, 4)[:] = b"here"
            assert bytes(ours.view(PAGE_BYTES, 4)) == b"here"


async def test_a_device_without_a_descriptor_has_a_handle(rig, pages):
    async with rig.session() as (_, metadata):
        connection, offer = await rig.map_pool(metadata, "cuda:0")
        with connection:
            assert (offer.num_descriptors, offer.ipc_handle) == (0, b"handle")


async def test_the_end_of_the_connection_returns_the_pages_and_the_session_may_map_again(rig, pages):
    async with rig.session() as (_, metadata):
        connection, _ = await rig.map_pool(metadata)
        connection.sendall(b"nothing is said here, and nobody listens")
        assert pages.ended == []
        connection.close()
        await eventually(lambda: pages.ended == [metadata[0][1]])
        assert isinstance(await failure_of(reserve(rig, metadata)), InvalidRequestError)
        again, _ = await rig.map_pool(metadata)
        with again:
            assert (await reserve(rig, metadata, pool_id=2)).pages == [0, 1]
            late = await failure_of(reserve(rig, metadata, pool_id=1))
            assert isinstance(late, ConflictError)
            assert "another pool" in str(late)
    assert len(pages.opened) == 2


def reserve(rig, metadata, *, pool_id=1):
    return rig.stub.ReservePages(pb.ReservePagesRequest(pool_id=pool_id, count=2), metadata=metadata, timeout=TIMEOUT_S)


async def test_pages_rest_while_only_the_session_has_ended(rig, pages):
    async with rig.session() as (stream, metadata):
        connection, _ = await rig.map_pool(metadata)
        stream.cancel()
        await eventually(lambda: rig.store.stats().sessions == 0)
        assert isinstance(await failure_of(reserve(rig, metadata)), ClosedError)
        assert pages.ended == []
        assert len(rig.pools) == 1
        connection.close()
        await eventually(lambda: pages.ended == [metadata[0][1]])


async def test_a_client_that_maps_anew_at_once_is_let_in(rig, pages, monkeypatch):
    async def busy(connection, _):
        """As if the loop had not come round to the end of the connection yet."""
        with connection:
            await asyncio.Event().wait()

    monkeypatch.setattr(rig.pools, "_watch", busy)
    async with rig.session() as (_, metadata):
        connection, _ = await rig.map_pool(metadata)
        connection.close()
        again, _ = await rig.map_pool(metadata)
        assert pages.ended == [metadata[0][1]]
        again.close()


async def test_a_session_replaces_its_connection_and_keeps_what_it_holds(rig, pages):
    async with rig.session() as (_, metadata):
        first, offer = await rig.map_pool(metadata)
        second, same = await rig.map_pool(metadata)
        assert same == offer
        with pytest.raises(InvalidRequestError, match="twice already"):
            await rig.map_pool(metadata)
        first.close()
        await eventually(lambda: len(rig.pools) == 1)
        assert pages.ended == []
        await reserve(rig, metadata, pool_id=offer.pool_id)
        second.close()
        await eventually(lambda: pages.ended == [metadata[0][1]])


async def test_pages_of_another_size_are_another_pool(rig, pages):
    async with rig.session() as (_, metadata):
        first, offer = await rig.map_pool(metadata)
        pages.page_bytes *= 2
        second, wider = await rig.map_pool(metadata)
        with first, second:
            assert (wider.page_bytes, wider.pool_id) == (2 * offer.page_bytes, offer.pool_id + 1)
            assert isinstance(await failure_of(reserve(rig, metadata, pool_id=offer.pool_id)), ConflictError)
            await reserve(rig, metadata, pool_id=wider.pool_id)


async def test_a_refusal_leaves_the_connection_that_stands(rig, pages):
    async with rig.session() as (_, metadata):
        connection, offer = await rig.map_pool(metadata)
        with connection:
            pages.refusal = ConflictError("pages of another size are held")
            with pytest.raises(ConflictError):
                await rig.map_pool(metadata)
            await reserve(rig, metadata, pool_id=offer.pool_id)
        await eventually(lambda: pages.ended == [metadata[0][1]])


async def test_a_session_without_shared_memory_and_a_stranger_are_refused(rig, pages):
    async with rig.session(shares_memory=False) as (_, metadata):
        with pytest.raises(InvalidRequestError, match="shares no memory"):
            await rig.map_pool(metadata)
    with pytest.raises(ClosedError):
        await rig.map_pool(((SESSION_METADATA, bytes(32)),))
    assert pages.opened == []


async def test_a_process_of_another_user_is_refused(rig, pages, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 12_345)
    monkeypatch.setattr(tierkvd.attach, "SERVED_BESIDES", ())
    async with rig.session() as (_, metadata):
        with pytest.raises(InvalidRequestError, match="another user"):
            await rig.map_pool(metadata)
    assert pages.opened == []


async def test_what_the_store_refuses_with_reaches_the_client(rig, pages):
    pages.refusal = ConflictError("pages of another size are held", page_bytes=1, wanted_bytes=2)
    async with rig.session() as (_, metadata):
        with pytest.raises(ConflictError, match="another size"):
            await rig.map_pool(metadata)
        assert len(rig.pools) == 0
        pages.refusal = None
        connection, _ = await rig.map_pool(metadata)
        connection.close()


async def test_the_number_of_connections_is_bounded(rig, pages):
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(POOLS_LIMIT):
            _, metadata = await stack.enter_async_context(rig.session())
            connection, _ = await rig.map_pool(metadata)
            stack.enter_context(connection)
        _, metadata = await stack.enter_async_context(rig.session())
        with pytest.raises(CapacityError):
            await rig.map_pool(metadata)
        connection.close()
        await eventually(lambda: len(rig.pools) < POOLS_LIMIT)
        late, _ = await rig.map_pool(metadata)
        late.close()


async def test_a_standing_connection_takes_no_place_of_those_who_say_hello(rig, pages):
    async with rig.session() as (_, metadata):
        connection, _ = await rig.map_pool(metadata)
        with connection:
            await eventually(lambda: not rig.attach._exchanges)
            assert len(rig.pools) == 1


async def test_a_client_that_is_gone_before_the_answer_holds_nothing(rig, pages):
    async with rig.session() as (_, metadata):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(rig.folder.attach_socket))
            connection.sendall(pools.encode_map_pool(pools.MapPool(metadata[0][1], NAMESPACE, "cpu")))
        await eventually(lambda: pages.ended == [metadata[0][1]])
        assert len(rig.pools) == 0


async def test_an_answer_that_cannot_be_made_holds_nothing(rig, pages, monkeypatch):
    def unable(offer):
        raise struct.error(offer)

    async with rig.session() as (_, metadata):
        monkeypatch.setattr(tierkvd.pools, "encode_pool", unable)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(rig.folder.attach_socket))
            connection.sendall(pools.encode_map_pool(pools.MapPool(metadata[0][1], NAMESPACE, "cpu")))
            assert await received(connection) == b""
        assert pages.ended == [metadata[0][1]]
        assert len(rig.pools) == 0


async def test_a_stop_ends_the_connections_and_returns_nothing(rig, pages):
    async with rig.session() as (_, metadata):
        connection, _ = await rig.map_pool(metadata)
        with connection:
            await rig.attach.stop()
            assert await received(connection) == b""
            await rig.attach.stop()
    assert pages.ended == []
