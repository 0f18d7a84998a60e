"""Engines that share the page pool of a real daemon: in place, over kills of either side, and never in each other's pages."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.page_process import BLOCK_BYTES, KEYS, LAYOUT, NAMESPACE, Engine, content_of
from tierkv.client import connect
from tierkv.errors import ClosedError, ConflictError, InvalidRequestError, UnavailableError
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import TierName
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv.testing.deadline import wait_until

NUM_PAGES = 64
ROOT = Path(__file__).parents[2]


class Process:
    """A client process; `process.save(3)` is `Engine.save(3)` there."""

    def __init__(self, run_folder):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.page_process", run_folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self.open()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def __getattr__(self, verb):
        def call(*arguments):
            print(json.dumps([verb, *arguments]), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())

        return call

    def signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self._process.kill()
        self._process.wait(30)
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def options(tmp_path):
    return DaemonOptions(
        data=tmp_path / "data",
        run_dir=tmp_path / "run",
        host_memory="4MiB",
        disk="32MiB",
        arena_folder=tmp_path / "arena",
        extra=("--device", f"cpu:{NUM_PAGES * BLOCK_BYTES}"),
    )


@pytest.fixture
def daemon(options, tmp_path):
    with start_daemon(options, log=tmp_path / "log") as running:
        yield running


@pytest.fixture
def process(daemon, options):
    with Process(options.run_dir) as running:
        yield running


@contextlib.contextmanager
def engine_of(options):
    with connect(options.run_dir) as store:
        engine = Engine(store)
        assert engine.open() == NUM_PAGES
        yield engine


@pytest.fixture
def engine(daemon, options):
    """In this process."""
    with engine_of(options) as opened:
        yield opened


def take(engine, count):
    """Reserves `count` pages as they come free, and not one more."""
    taken = []

    def is_enough():
        taken.extend(engine.reserve(count - len(taken)))
        return len(taken) == count

    wait_until(is_enough, timeout_s=20, what="pages to come free")
    assert engine.reserve(1) == []
    return taken


def test_two_processes_read_one_prefix_in_place(engine, process):
    pages = engine.save(8)
    assert process.acquire(8) == [pages, ["device"] * 8, 8]
    engine.release(pages)
    assert set(take(engine, NUM_PAGES - 8)).isdisjoint(pages)
    assert process.acquire(8) == [pages, ["device"] * 8, 8]
    stats = engine.store.stats()
    assert stats.counters.get("pages_copied", 0) == 0
    assert stats.hits[TierName.DEVICE] == 16


def test_a_killed_process_gives_back_what_it_held_and_nobody_else_s(engine, process):
    shared = engine.save(4)
    reserved = process.reserve(10)
    assert process.acquire(4)[0] == shared
    others = take(engine, NUM_PAGES - 14)
    process.scribble(reserved)  # between reserve and commit
    process.kill()
    returned = take(engine, 10)
    assert sorted(returned) == sorted(reserved)
    assert engine.acquire(4) == [shared, ["device"] * 4, 4]
    engine.release([*others, *returned])


def test_a_process_that_lost_its_session_writes_only_into_pages_that_rest(engine, process):
    reserved = process.reserve(10)
    process.lose_session()
    wait_until(lambda: engine.store.stats().sessions == 1, timeout_s=20, what="the session to end")
    pages = take(engine, NUM_PAGES - 10)
    for key, page in zip(KEYS, pages, strict=False):
        engine.view(page)[:] = content_of(key)
    process.scribble(reserved)
    assert not process.is_alive()
    assert [bytes(engine.view(page)) for page in pages[: len(KEYS)]] == [content_of(key) for key in KEYS]
    process.kill()
    assert sorted(take(engine, 10)) == sorted(reserved)


def test_a_process_that_is_stopped_keeps_its_pages_until_it_is_killed(engine, process):
    reserved = process.reserve(10)
    process.signal(signal.SIGSTOP)
    take(engine, NUM_PAGES - 10)
    process.kill()
    assert sorted(take(engine, 10)) == sorted(reserved)


def test_a_prefix_stays_in_place_over_a_restart_of_the_engine(daemon, options):
    with engine_of(options) as first:
        pages = first.save(8)
    with engine_of(options) as second:
        assert second.acquire(8) == [pages, ["device"] * 8, 8]
        assert second.store.stats().counters.get("pages_copied", 0) == 0


def test_an_engine_outlives_its_daemon_and_opens_the_pool_of_the_next_one(daemon, engine):
    pages = engine.save(8)
    engine.store.flush()
    reserved = engine.reserve(1)
    engine.scribble(reserved)
    daemon.kill()
    wait_until(lambda: not engine.is_alive(), timeout_s=20, what="the client to see that the daemon is gone")
    for verb in (lambda: engine.reserve(1), lambda: engine.acquire(8)):
        with pytest.raises((UnavailableError, ClosedError)):
            verb()
    engine.release(pages)
    assert [bytes(engine.view(page)) for page in pages] == [content_of(key) for key in KEYS[:8]]
    assert bytes(engine.view(reserved[0])) == b"\xff" * BLOCK_BYTES
    daemon.start()
    daemon.wait_ready()

    def is_open():
        with contextlib.suppress(UnavailableError):
            return engine.open() == NUM_PAGES
        return False

    wait_until(is_open, timeout_s=30, what="the pool of the next daemon")
    assert engine.is_alive()
    _, tiers, good = engine.acquire(8)
    assert (tiers, good) == (["host"] * 8, 8)
    assert engine.store.stats().counters["pages_copied"] == 8
    assert engine.acquire(8)[1:] == [["device"] * 8, 8]


def test_a_daemon_that_stops_in_order_leaves_the_memory_too(daemon, engine):
    pages = engine.save(4)
    daemon.stop()
    assert not engine.is_alive()
    assert [bytes(engine.view(page)) for page in pages] == [content_of(key) for key in KEYS[:4]]


def test_what_an_engine_committed_is_durable(daemon, options, tmp_path):
    with engine_of(options) as engine:
        engine.save(8)
        assert engine.store.flush() >= 8
    daemon.stop()
    without = dataclasses.replace(options, extra=(), arena_folder=tmp_path / "another arena")
    with start_daemon(without, log=tmp_path / "log"), connect(options.run_dir) as store:
        store.register(Identity(weights="pages"), LAYOUT)
        targets = [memoryview(bytearray(BLOCK_BYTES)) for _ in range(8)]
        assert store.get(NAMESPACE, KEYS[:8], targets) == 8
        assert [bytes(target) for target in targets] == [content_of(key) for key in KEYS[:8]]
        with pytest.raises(InvalidRequestError, match="no pool on this device"):
            store.open_pool(NAMESPACE, "cpu")


def test_what_only_the_disk_has_is_brought_into_pages(daemon, options, tmp_path):
    with engine_of(options) as engine:
        engine.save(24)
        engine.store.flush()
    daemon.stop()
    cold = dataclasses.replace(options, arena_folder=tmp_path / "another arena")
    with start_daemon(cold, log=tmp_path / "log"), engine_of(options) as engine:
        lease = engine.store.acquire_pages(NAMESPACE, KEYS)
        assert (len(lease.pages), set(lease.tiers)) == (24, {TierName.DISK})
        assert lease.wait() == lease.num_ready == 24
        assert [bytes(engine.view(page)) for page in lease.pages] == [content_of(key) for key in KEYS]
        assert engine.acquire(24) == [list(lease.pages), ["device"] * 24, 24]


def test_a_client_that_closes_gives_its_pages_back_though_a_forked_child_lives(daemon, options, engine):
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(engine_of(options))
        other.reserve(10)
        waiting, release = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os.close(release)
            os.read(waiting, 1)
            os._exit(0)
        os.close(waiting)
        other.store.close()
        take(engine, NUM_PAGES)
        os.close(release)
        assert os.waitpid(child, 0)[1] == 0


def test_two_sizes_of_pages_wait_for_each_other(engine, process):
    wide = Layout(shape=(2 * BLOCK_BYTES,), dtype="uint8", block_tokens=4)
    namespace_id = engine.store.register(Identity(weights="wide"), wide).namespace_id
    with pytest.raises(ConflictError, match=str(BLOCK_BYTES)):
        engine.store.open_pool(namespace_id, "cpu")
    assert engine.is_alive()
    process.kill()

    def is_open():
        with contextlib.suppress(ConflictError, UnavailableError):
            return engine.store.open_pool(namespace_id, "cpu").num_pages == NUM_PAGES // 2
        return False

    wait_until(is_open, timeout_s=20, what="pages of another size")


def test_the_device_is_in_the_status(daemon, options, engine):
    engine.save(4)
    found = subprocess.run(
        [sys.executable, "-m", "tierkv.cli.main", "status", "--run-dir", options.run_dir],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    ).stdout
    assert "device" in found
    assert "device policy" in found
    tier = next(tier for tier in engine.store.stats().tiers if tier.name is TierName.DEVICE)
    assert (tier.capacity_bytes, tier.used_bytes, tier.blocks) == (NUM_PAGES * BLOCK_BYTES, 4 * BLOCK_BYTES, 4)
