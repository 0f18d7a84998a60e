"""A client whose session, daemon or process is not what it was: each verb gives the error that says what to do, or mends it itself."""

import contextlib
import dataclasses
import os
import signal
import time

import pytest

from tests.integration.test_daemon import IDENTITY, KEYS, LAYOUT, NAMESPACE, content_of, held, put, ready_event
from tierkv.client import connect
from tierkv.errors import ClosedError, ConflictError, UnavailableError
from tierkv.model.outcomes import MissReason, ReserveOutcome
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv.wire.limits import SESSION_METADATA


@pytest.fixture
def options(tmp_path):
    return DaemonOptions(
        data=tmp_path / "data",
        run_dir=tmp_path / "run",
        host_memory="4MiB",
        disk="32MiB",
        arena_folder=tmp_path / "arena",
        extra=("--listen", "127.0.0.1:0"),
    )


@pytest.fixture
def daemon(options, tmp_path):
    with start_daemon(options, log=tmp_path / "log") as running:
        yield running


@pytest.fixture
def client(daemon, options):
    with connect(options.run_dir) as attached:
        attached.register(IDENTITY, LAYOUT)
        yield attached


@pytest.fixture
def remote(daemon):
    with connect(ready_event(daemon)["listen"]) as attached:
        attached.register(IDENTITY, LAYOUT)
        yield attached


@contextlib.contextmanager
def stopped(daemon):
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def lose_session(client):
    """As if the daemon had forgotten the session while its stream, as far as the client can see, still stands."""
    link = client._attachment.current
    link.metadata = tuple((name, bytes(32) if name == SESSION_METADATA else value) for name, value in link.metadata)


def test_commit_of_a_forgotten_session_conflicts_and_abort_has_nothing_to_do(client):
    reservation, other = client.reserve(NAMESPACE, KEYS[:2]), client.reserve(NAMESPACE, KEYS[2:4])
    lose_session(client)
    with pytest.raises(ConflictError, match="reserve again"):
        client.commit(reservation)
    assert client.commit(reservation) == 0
    assert client.abort(other) == 2
    assert client.counters["reattached"] == 1
    assert put(client, KEYS[:4]) == (ReserveOutcome.GRANTED,) * 4


def test_abort_in_a_forgotten_session_raises_nothing(client):
    reservation = client.reserve(NAMESPACE, KEYS[:2])
    lose_session(client)
    assert client.abort(reservation) == 2
    assert client.abort(reservation) == 0


@pytest.mark.parametrize("verb", ["put", "commit", "get"])
def test_a_remote_client_mends_a_forgotten_session_by_itself(remote, verb):
    reservation = remote.reserve(NAMESPACE, KEYS[:2])
    for grant in reservation.grants:
        grant.buffer[:] = content_of(grant.key)
    lose_session(remote)
    if verb == "put":
        sources = [memoryview(content_of(key)) for key in KEYS[:2]]
        assert remote.put(NAMESPACE, KEYS[:2], sources) == (ReserveOutcome.GRANTED,) * 2
    elif verb == "commit":
        assert remote.commit(reservation) == 2
    else:
        assert remote.get(NAMESPACE, KEYS[:1], [memoryview(bytearray(LAYOUT.block_bytes))]) == 0
    assert remote.counters["reattached"] == 1
    assert held(remote, KEYS[:2]) == (0 if verb == "get" else 2)


def test_while_the_breaker_is_open_no_verb_waits(daemon, options):
    with connect(options.run_dir, timeout_s=10) as client:
        client.register(IDENTITY, LAYOUT)
        reservation, other = client.reserve(NAMESPACE, KEYS[:2]), client.reserve(NAMESPACE, KEYS[2:4])
        with stopped(daemon):
            while not client._attachment._breaker.is_open:
                with pytest.raises(UnavailableError):
                    client.stats(timeout_s=0.05)
            client._attachment._breaker._open_until_s = time.monotonic() + 60
            for verb in (client.commit, client.abort):
                with pytest.raises(UnavailableError, match="not asked again"):
                    verb(reservation if verb == client.commit else other)
            with pytest.raises(UnavailableError, match="not asked again"):
                client.put(NAMESPACE, KEYS[:1], [memoryview(content_of(KEYS[0]))])
            client._attachment._breaker.succeeded()
        assert client.commit(reservation) == 2


def test_a_half_open_breaker_lets_a_put_through(client):
    put(client, KEYS[:1])
    breaker = client._attachment._breaker
    for _ in range(3):
        breaker.failed()
    breaker._open_until_s = 0.0  # the pause is over
    assert put(client, KEYS[:2]) == (ReserveOutcome.PRESENT, ReserveOutcome.GRANTED)
    assert not breaker.is_open


def test_a_lease_whose_link_was_closed_ends_and_raises_nothing(daemon, options):
    with connect(options.run_dir) as client:
        put(client, KEYS)
        client.flush()
    daemon.stop()
    elsewhere = dataclasses.replace(options, arena_folder=options.data.parent / "fresh")  # so that blocks come from disk
    with start_daemon(elsewhere, log=options.data.parent / "log2"), connect(options.run_dir) as client:
        client.register(IDENTITY, LAYOUT)
        lease = client.acquire(NAMESPACE, KEYS)
        assert lease.num_blocks == len(KEYS)
        client._attachment.current.close()  # what another thread does that attaches anew
        arrived = sum(len(run.blocks) for run in lease.runs())
        assert lease.num_blocks == arrived < len(KEYS)
        assert lease.miss is MissReason.UNAVAILABLE
        assert client.counters["misses_unavailable"] == len(KEYS) - arrived
        assert not lease.is_valid
        client.release(lease)
        assert held(client, KEYS) == len(KEYS)


def test_in_a_forked_child_verbs_are_closed_and_release_and_close_touch_nothing(client):
    put(client, KEYS[:4])
    lease = client.acquire(NAMESPACE, KEYS[:4])
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(_in_child(client, lease))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert client.stats().leases == 1
    assert lease.is_valid
    assert held(client, KEYS[:4]) == 4


def _in_child(client, lease):
    """0, or the number of the first thing that is wrong."""
    for number, verb in enumerate((client.stats, lambda: client.lookup(NAMESPACE, KEYS)), start=1):
        try:
            verb()
        except ClosedError:
            continue
        return number
    client.release(lease)
    if client._releasing:
        return 10
    client.close()
    client.close()
    return 0
