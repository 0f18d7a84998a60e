"""A client meets something that listens like a daemon and is none: an attach never takes longer than its deadline.

Bounds are far from both sides: a healthy attach fails within its deadline, and the faults pinned here took many times as long.
"""

import contextlib
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tierkv.client import Client, connect
from tierkv.client.address import LocalAddress
from tierkv.errors import DataError, UnavailableError
from tierkv.testing.deadline import wait_until
from tierkv.wire import attach

ARENA_BYTES = 4096
WELCOME = attach.Welcome(ARENA_BYTES, 0, bytes(32), "0.1.0", "tierkvd.sock")


class Impostor:
    """Answers one attach connection with `answer(connection, is_over)` in a thread of its own."""

    def __init__(self, folder, answer):
        self.folder = folder
        self.is_over = threading.Event()
        self._answer = answer
        folder.mkdir(mode=0o700)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "attach.sock"))
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._serve)

    def _serve(self):
        with contextlib.suppress(OSError), self._listener.accept()[0] as connection:
            connection.recv(4096)  # the hello; an answer before it could meet a client that is still writing
            self._answer(connection, self.is_over)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


def give_arena(connection, message):
    arena = os.memfd_create("arena")
    try:
        os.ftruncate(arena, ARENA_BYTES)
        socket.send_fds(connection, [message], [arena])
    finally:
        os.close(arena)


def seconds_until_unavailable(folder, timeout_s):
    started_s = time.monotonic()
    with pytest.raises(UnavailableError):
        connect(folder, timeout_s=timeout_s)
    return time.monotonic() - started_s


def test_an_answer_that_comes_drop_by_drop_does_not_renew_the_deadline(tmp_path):
    def drip(connection, is_over):
        for byte in attach.encode_welcome(WELCOME):
            if is_over.wait(0.1):
                return
            connection.sendall(bytes([byte]))

    with Impostor(tmp_path / "run", drip) as impostor:
        assert seconds_until_unavailable(impostor.folder, 0.4) < 3


def test_attaching_and_opening_the_session_share_one_deadline(tmp_path):
    def late(connection, is_over):
        is_over.wait(1.5)
        give_arena(connection, attach.encode_welcome(WELCOME))
        is_over.wait()

    with Impostor(tmp_path / "run", late) as impostor, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(impostor.folder / WELCOME.grpc_socket_name))
        deaf.listen(1)
        assert seconds_until_unavailable(impostor.folder, 2) < 3


def test_silence_costs_the_deadline(tmp_path):
    with Impostor(tmp_path / "run", lambda _, is_over: is_over.wait()) as impostor:
        assert seconds_until_unavailable(impostor.folder, 0.2) < 3


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"", UnavailableError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", DataError),
        (attach.encode_welcome(WELCOME)[:-1], UnavailableError),
        (attach.encode_hello(attach.Hello("echo")), DataError),
        (attach.encode_welcome(WELCOME), DataError),
    ],
    ids=["hung up", "foreign magic", "cut off", "wrong kind", "no descriptor"],
)
def test_what_is_no_welcome_is_an_error_at_once(tmp_path, message, error):
    with Impostor(tmp_path / "run", lambda connection, _: connection.sendall(message)) as impostor, pytest.raises(error):
        connect(impostor.folder, timeout_s=20)


def test_an_arena_shorter_than_announced_is_refused_before_it_is_touched(tmp_path):
    boast = attach.Welcome(2 * ARENA_BYTES, 0, bytes(32), "0.1.0", "tierkvd.sock")
    with (
        Impostor(tmp_path / "run", lambda connection, _: give_arena(connection, attach.encode_welcome(boast))) as impostor,
        pytest.raises(DataError, match="cannot be mapped"),
    ):
        connect(impostor.folder, timeout_s=20)


def test_a_thread_that_waits_for_another_one_to_attach_keeps_its_own_deadline(tmp_path):
    with (
        Impostor(tmp_path / "run", lambda _, is_over: is_over.wait()) as impostor,
        ThreadPoolExecutor(1) as threads,
        contextlib.closing(Client(LocalAddress(impostor.folder))) as client,
    ):
        first = threads.submit(client.attach, timeout_s=3)
        wait_until(client._attachment._lock.locked, timeout_s=5, what="the first thread to attach")
        with pytest.raises(UnavailableError, match="another thread"):
            client.stats(timeout_s=0.1)
        assert not first.done()
        impostor.is_over.set()
        with pytest.raises(UnavailableError):
            first.result(timeout=10)
