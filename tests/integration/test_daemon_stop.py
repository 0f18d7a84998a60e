"""A daemon that is asked to stop: what clients had under way is kept, and a scrub does not hold it up."""

import signal
import threading

import pytest

from tierkv.client import connect
from tierkv.errors import TierKVError, UnavailableError
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv.testing.deadline import wait_until

BLOCK_BYTES = 16 * 1024
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
IDENTITY = Identity(weights="stop")
NAMESPACE = IDENTITY.fingerprint(LAYOUT)
KEYS = chain_keys(NAMESPACE, range(4 * 8), block_tokens=4)


def content_of(key):
    return key * (BLOCK_BYTES // len(key))


@pytest.fixture
def options(tmp_path):
    return DaemonOptions(tmp_path / "data", tmp_path / "run", "4MiB", "32MiB", arena_folder=tmp_path / "arena")


@pytest.fixture
def daemon(options, tmp_path):
    with start_daemon(options, log=tmp_path / "log") as running:
        yield running


def test_what_was_reserved_before_the_stop_is_committed_during_it(daemon, options):
    with connect(options.run_dir) as client:
        client.register(IDENTITY, LAYOUT)
        reservation = client.reserve(NAMESPACE, KEYS)
        for grant in reservation.grants:
            grant.buffer[:] = content_of(grant.key)
        ended = threading.Thread(target=daemon.stop)
        ended.start()
        stopping = lambda: any(event["event"] == "stopping" for event in daemon.log_events())  # noqa: E731
        wait_until(stopping, timeout_s=10, what="the stop to begin")
        with pytest.raises(UnavailableError):
            connect(options.run_dir, timeout_s=1)
        assert client.commit(reservation) == len(KEYS)
        ended.join()
    daemon.start()
    daemon.wait_ready()
    with connect(options.run_dir) as client:
        client.register(IDENTITY, LAYOUT)
        targets = [memoryview(bytearray(BLOCK_BYTES)) for _ in KEYS]
        assert client.get(NAMESPACE, KEYS, targets) == len(KEYS)
        assert [bytes(target) for target in targets] == [content_of(key) for key in KEYS]


def test_a_second_signal_changes_nothing(daemon):
    daemon._process.send_signal(signal.SIGINT)
    assert daemon.stop() == 0


def test_an_idle_client_does_not_hold_up_the_stop(daemon, options):
    with connect(options.run_dir) as client:
        client.register(IDENTITY, LAYOUT)
        assert daemon.stop(timeout_s=5) == 0
        with pytest.raises(TierKVError):
            client.lookup(NAMESPACE, KEYS)
