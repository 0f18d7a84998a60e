"""The attach socket against strangers, crowds and a machine without descriptors. Its messages: `unit/wire/test_attach.py`."""

import asyncio
import contextlib
import errno
import os
import socket

import pytest

import tierkvd.attach
from tierkv.errors import InvalidRequestError
from tierkv.mapping import ArenaMap
from tierkv.wire import attach
from tierkv.wire._generated import tierkv_pb2 as pb


def shake_hands(rig):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(rig.folder.attach_socket))
        return attach.handshake(connection, attach.Hello("unit"), lambda: 10.0)


async def attached(rig):
    """One whole handshake; the descriptor is closed again."""
    found = await asyncio.to_thread(shake_hands, rig)
    os.close(found.arena_fd)
    return found.welcome


async def test_the_welcome_opens_a_session_and_maps_the_arena_of_the_store(rig):
    found = await asyncio.to_thread(shake_hands, rig)
    arena = ArenaMap(found.arena_fd, found.welcome.arena_bytes)
    os.close(found.arena_fd)
    with contextlib.closing(arena):
        rig.store.view(rig.extent(8192))[:4] = b"here"
        assert bytes(arena.view(8192, 4)) == b"here"
    stream = rig.stub.OpenSession(pb.OpenSessionRequest(attach_secret=found.welcome.attach_secret))
    assert (await stream.read()).HasField("opened")
    stream.cancel()


async def test_a_process_of_another_user_is_refused(rig, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 12_345)
    monkeypatch.setattr(tierkvd.attach, "SERVED_BESIDES", ())
    with pytest.raises(InvalidRequestError, match="another user"):
        await attached(rig)


async def test_a_machine_out_of_descriptors_does_not_end_the_service(rig, monkeypatch):
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, [OSError(errno.EMFILE, "too many open files")] * 2

    async def accept_badly(listener):
        if failures:
            raise failures.pop()
        return await accept(listener)

    monkeypatch.setattr(tierkvd.attach, "_ACCEPT_PAUSE_S", 0)
    monkeypatch.setattr(loop, "sock_accept", accept_badly)
    await attached(rig)  # the accept that waits already takes this one
    await attached(rig)
    assert not failures


async def test_a_silent_crowd_costs_others_one_hello_s_time_at_most(rig, monkeypatch):
    monkeypatch.setattr(tierkvd.attach, "HELLO_TIMEOUT_S", 0.2)
    with contextlib.ExitStack() as stack:
        for _ in range(tierkvd.attach._EXCHANGES_LIMIT):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(str(rig.folder.attach_socket))
        assert (await attached(rig)).arena_bytes == rig.store.arena_bytes()
    assert len(rig.attach._exchanges) <= tierkvd.attach._EXCHANGES_LIMIT


async def test_stop_leaves_no_socket_and_may_be_called_twice(rig):
    await rig.attach.stop()
    await rig.attach.stop()
    assert not rig.folder.attach_socket.exists()
