"""SIGKILL at named points of a save, then a look at what the next process finds. What was acknowledged as strict is there, byte for
byte; what was not may be there or not; nothing is ever wrong.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.embedded import EmbeddedStore
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings
from tierkv.tiers.disk.io import FileIO

BLOCK_BYTES = 32 * 1024
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
IDENTITY = Identity(weights="crash")
KEYS = chain_keys(IDENTITY.fingerprint(LAYOUT), range(4 * 40), block_tokens=4)
BATCH = 4
POINTS = ("before_write", "after_write", "after_sync", "before_commit", "after_commit")


def content_of(key):
    return key * (BLOCK_BYTES // len(key))


class KillingFile:
    """A segment file that ends the process at a named point of its n-th use."""

    def __init__(self, inner, killer):
        self._inner = inner
        self._killer = killer

    def write(self, buffers, offset):
        self._killer.at("before_write")
        self._inner.write(buffers, offset)
        self._killer.at("after_write")

    def sync(self):
        self._inner.sync()
        self._killer.at("after_sync")

    def __getattr__(self, name):
        return getattr(self._inner, name)


class KillingIO:
    """`FileIO` that dies at the `count`-th passing of `point`."""

    def __init__(self, point, count):
        self._inner = FileIO(direct=False)
        self._point = point
        self._left = count

    def at(self, point):
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path):
        return KillingFile(self._inner.open(path), self)

    def commit(self, commit):
        self.at("before_commit")
        self._inner.commit(commit)
        self.at("after_commit")

    def __getattr__(self, name):
        return getattr(self._inner, name)


def settings_in(root):
    return StoreSettings(
        data_folder=root / "data",
        host=HostSettings(memory_bytes=4 * MIB, folder=root / "arena", prefault=False),
        disk=DiskSettings(capacity_bytes=16 * MIB, segment_bytes=MIB, direct_io=False, interval_s=0.01),
    )


def save_until_killed(root, point, count, durability):
    """Runs in a process of its own: puts batch after batch and prints each acknowledgement."""
    tiered = open_tiered_store(settings_in(root), SystemClock(), io=KillingIO(point, count))
    store = EmbeddedStore(tiered, clock=SystemClock(), discard_arena=False)
    namespace_id = store.register(IDENTITY, LAYOUT).namespace_id
    for start in range(0, len(KEYS), BATCH):
        keys = KEYS[start : start + BATCH]
        parent = KEYS[start - 1] if start else None
        store.put(namespace_id, keys, [memoryview(content_of(key)) for key in keys], parent=parent, durability=durability)
        print(json.dumps([key.hex() for key in keys]), flush=True)  # noqa: T201 - the acknowledgement its parent reads
    store.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def delete_until_killed(root, durability):
    """Runs in a process of its own: puts everything, forgets it from its end batch by batch and prints each acknowledgement."""
    tiered = open_tiered_store(settings_in(root), SystemClock())
    store = EmbeddedStore(tiered, clock=SystemClock(), discard_arena=False)
    namespace_id = store.register(IDENTITY, LAYOUT).namespace_id
    store.put(namespace_id, KEYS, [memoryview(content_of(key)) for key in KEYS], durability=durability)
    store.flush()
    for start in range(len(KEYS) - BATCH, 0, -BATCH):
        keys = KEYS[start : start + BATCH]
        assert store.delete(namespace_id, keys) == len(keys)
        print(json.dumps([key.hex() for key in keys]), flush=True)  # noqa: T201 - the acknowledgement its parent reads
    os.kill(os.getpid(), signal.SIGKILL)


def run_until_killed(root, call, *, kill_after=None):
    """Runs `call` (an expression over `root`) in a process that dies by SIGKILL: the keys that it acknowledged.

    kill_after — the process is killed as soon as it has acknowledged so many batches, wherever it is by then; None: it ends itself.
    """
    script = f"import sys, pathlib; from tests.crash.test_kill_points import *\nroot = pathlib.Path(sys.argv[1])\n{call}\n"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    ) as process:
        assert process.stdout is not None
        lines = list(itertools.islice(process.stdout, kill_after))
        if kill_after is not None:
            process.kill()
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    whole = [line for line in [*lines, *rest.splitlines(keepends=True)] if line.endswith("\n")]
    return [bytes.fromhex(key) for line in whole for key in json.loads(line)]


def reopen(root, *, keeps_arena):
    """The keys that the next process finds; the content of each is checked."""
    if not keeps_arena:
        shutil.rmtree(root / "arena")
    tiered = open_tiered_store(settings_in(root), SystemClock())
    store = EmbeddedStore(tiered, clock=SystemClock(), discard_arena=True)
    namespace_id = store.register(IDENTITY, LAYOUT).namespace_id
    found = [key for key in KEYS if holds(store, namespace_id, key)]
    tiered.check_integrity()
    store.close()
    return found


def run_and_reopen(root, point, count, durability, *, keeps_arena, kill_after=None):
    """Kills a saving process, reopens its folder: (keys acknowledged, keys found)."""
    call = f"save_until_killed(root, {point!r}, {count}, Durability({durability.value!r}))"
    acknowledged = run_until_killed(root, call, kill_after=kill_after)
    return acknowledged, reopen(root, keeps_arena=keeps_arena)


def holds(store, namespace_id, key):
    target = memoryview(bytearray(BLOCK_BYTES))
    if store.get(namespace_id, [key], [target]) == 0:
        return False
    assert bytes(target) == content_of(key), "a store must never serve other bytes than were put"
    return True


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_what_strict_acknowledged_is_there_without_the_arena(tmp_path, point, count):
    acknowledged, found = run_and_reopen(tmp_path, point, count, Durability.STRICT, keeps_arena=False)
    assert set(acknowledged) <= set(found)


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.VOLATILE])
@pytest.mark.parametrize("point", ["after_write", "before_commit"])
def test_after_a_kill_the_arena_has_what_was_sealed_and_nothing_is_wrong(tmp_path, point, durability):
    acknowledged, found = run_and_reopen(tmp_path, point, 2, durability, keeps_arena=True)
    # What was acknowledged in the last moments may not have been sealed; the first batch was, long before the second write.
    assert set(acknowledged[:BATCH]) <= set(found)


def test_what_was_flushed_is_there_whatever_its_promise(tmp_path):
    acknowledged, found = run_and_reopen(tmp_path, "never", 1, Durability.VOLATILE, keeps_arena=False)
    assert len(acknowledged) == len(KEYS)
    assert set(found) == set(KEYS)


@pytest.mark.parametrize("kill_after", [1, 4, 8])
@pytest.mark.parametrize("durability", list(Durability))
def test_a_kill_at_any_moment_keeps_the_promise(tmp_path, durability, kill_after):
    """Where the process is when the signal comes differs from run to run; what must hold does not."""
    acknowledged, found = run_and_reopen(
        tmp_path, "never", 1, durability, keeps_arena=durability is not Durability.STRICT, kill_after=kill_after
    )
    assert len(acknowledged) >= kill_after * BATCH
    if durability is Durability.STRICT:
        assert set(acknowledged) <= set(found)


@pytest.mark.parametrize("keeps_arena", [True, False])
@pytest.mark.parametrize("durability", [Durability.STRICT, Durability.VOLATILE])
@pytest.mark.parametrize("kill_after", [1, 5, None])
def test_what_was_deleted_does_not_come_back(tmp_path, kill_after, durability, keeps_arena):
    deleted = run_until_killed(tmp_path, f"delete_until_killed(root, Durability({durability.value!r}))", kill_after=kill_after)
    found = reopen(tmp_path, keeps_arena=keeps_arena)
    assert deleted
    assert not set(deleted) & set(found)
    assert KEYS[0] in found
