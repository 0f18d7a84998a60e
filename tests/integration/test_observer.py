"""`tierkv status` and `verify` look at a daemon without being one of its clients."""

import contextlib

import pytest

from tierkv.client import connect
from tierkv.client.observer import Observer
from tierkv.errors import CapacityError, UnavailableError
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv.wire._generated import tierkv_pb2 as pb

LAYOUT = Layout(shape=(4096,), dtype="uint8", block_tokens=4)
IDENTITY = Identity(weights="observed")
NAMESPACE = IDENTITY.fingerprint(LAYOUT)
KEYS = chain_keys(NAMESPACE, range(4 * 300), block_tokens=4)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("observed")
    options = DaemonOptions(root / "data", root / "run", "4MiB", "32MiB", arena_folder=root / "arena")
    with start_daemon(options, log=root / "log"):
        yield options.run_dir


def test_who_looks_is_no_session(run_dir):
    with Observer(run_dir) as daemon:
        before = daemon.stats().sessions
        with connect(run_dir):
            assert daemon.stats().sessions == before + 1


def test_a_scrub_reports_progress_and_its_end(run_dir):
    with connect(run_dir) as client:
        client.register(IDENTITY, LAYOUT)
        client.put(NAMESPACE, KEYS, [memoryview(key * 128) for key in KEYS])
        client.flush()
    seen = []
    with Observer(run_dir) as daemon:
        done = daemon.verify(lambda *report: seen.append(report))
    assert done.frames == 2 * len(KEYS)
    assert done.bytes == 2 * len(KEYS) * LAYOUT.block_bytes
    assert not done.damaged
    assert seen == sorted(seen)
    assert all(total == done.frames for _, total, _ in seen)


def test_a_full_table_of_sessions_hides_nothing(run_dir):
    with Observer(run_dir) as daemon, contextlib.ExitStack() as stack:
        streams = [daemon._stub.OpenSession(pb.OpenSessionRequest()) for _ in range(1_024)]
        for stream in streams:
            stack.callback(stream.cancel)
        for stream in streams:
            next(stream)
        with pytest.raises(CapacityError):
            connect(run_dir)
        assert daemon.stats().sessions == 1_024


def test_where_nobody_answers_the_place_is_named(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    with Observer(folder) as daemon, pytest.raises(UnavailableError, match=r"tierkvd\.sock', error='No such file or directory'$"):
        daemon.stats()
    with pytest.raises(UnavailableError, match="tierkv serve"):
        Observer(tmp_path / "nobody")
