"""A policy that was put back is the one that was written down: lists, weights, moments, p and w, whatever it went through."""

import functools
import threading
from collections import Counter
from collections.abc import Callable
from unittest.mock import patch

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tierkv.model.chains import Chains
from tierkv.model.keys import BlockKey
from tierkv.policies import ArcPolicy, LruPolicy, RestorablePolicy, Rule
from tierkv.policy_state import scribe as scribe_module
from tierkv.policy_state.replaying import restore
from tierkv.policy_state.scribe import PolicyScribe
from tierkv.testing.policy_traffic import MemoryFiles, PolicyTraffic

CAPACITY = 60
MAKERS: dict[str, Callable[[Chains[BlockKey]], RestorablePolicy[BlockKey]]] = {
    "age": lambda chains: ArcPolicy(CAPACITY, chains),
    "size": lambda chains: ArcPolicy(CAPACITY, chains, rule=Rule.SIZE),
    "paper": lambda chains: ArcPolicy(CAPACITY, chains, rule=Rule.PAPER),
    "lru": lambda chains: LruPolicy(CAPACITY, chains),
}


class Store:
    """A policy under traffic, its scribe, and what was known when the scribe wrote last."""

    def __init__(self, kind, seed):
        self.chains = Chains()
        self.kind = kind
        self.files = MemoryFiles()
        self.scribe = self.started()
        self.traffic = PolicyTraffic(self.scribe.policy, self.chains, seed)
        self.write()

    def started(self):
        scribe = PolicyScribe(
            "host", MAKERS[self.kind](self.chains), self.files, threading.RLock(), xxhash.xxh3_128_digest, Counter()
        )
        scribe.restore()
        assert scribe.problems == []
        return scribe

    def write(self):
        self.scribe.write()
        self.written = self.scribe.policy.inner.export_image()

    def restart(self):
        """A kill: what was not written is lost, and the traffic goes on from what is put back."""
        self.scribe = self.started()
        assert self.scribe.policy.inner.export_image().is_same(self.written)
        self.scribe.policy.inner.check_integrity()
        self.traffic.policy = self.scribe.policy
        self.write()


@pytest.mark.parametrize("kind", MAKERS)
@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.lists(st.sampled_from(["go", "go", "go", "go", "write", "restart"]), min_size=5, max_size=150),
    log_bytes=st.sampled_from([400, 4000, 1 << 22]),
)
def test_a_killed_policy_comes_back_as_it_was_written_down(kind, seed, steps, log_bytes):
    """log_bytes — how long a log may grow: short ones make snapshots the rule, long ones the exception."""
    with patch.object(scribe_module, "LOG_BYTES_MIN", log_bytes):
        store = Store(kind, seed)
        for step in steps:
            {"go": store.traffic.step, "write": store.write, "restart": store.restart}[step]()
        store.restart()


@pytest.mark.parametrize("kind", MAKERS)
def test_long_traffic_comes_back_as_it_was_written_down(kind):
    store = Store(kind, seed=11)
    largest = 0
    for idx in range(1500):
        store.traffic.step()
        largest = max(largest, len(store.scribe.policy))
        if idx % 7 == 0:
            store.write()
        if idx % 211 == 0:
            store.restart()
    store.write()
    store.restart()
    assert largest > 15  # of 20 at an average weight of 3


@functools.cache
def history(kind):
    """The files after some traffic, and the image at the end of each record."""
    store = Store(kind, seed=5)
    for _ in range(40):
        store.traffic.step()
    store.scribe._needs_snapshot = True
    store.write()
    images = [store.written]
    for _ in range(5):
        for _ in range(3):
            store.traffic.step()
        before = store.files.log
        store.write()
        assert store.files.log != before
        images.append(store.written)
    return store.files, images


def moment_of(policy, images):
    image = policy.export_image()
    (idx,) = [idx for idx, known in enumerate(images) if image.is_same(known)]
    return idx


@pytest.mark.parametrize("kind", ["age", "lru"])
def test_a_log_torn_anywhere_is_the_history_up_to_there(kind):
    files, images = history(kind)
    log, found = files.log, []
    for length in range(len(log) + 1):
        policy = MAKERS[kind](Chains())
        restored = restore(policy, files.snapshot, log[:length], xxhash.xxh3_128_digest)
        assert restored.problem == "", length
        found.append(moment_of(policy, images))
    assert found == sorted(found) and set(found) == set(range(len(images)))


@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_damage_anywhere_is_a_cold_start_or_the_history_up_to_there(data):
    files, images = history("age")
    contents = [bytearray(files.snapshot), bytearray(files.log)]
    which = data.draw(st.integers(0, 1))
    position = data.draw(st.integers(0, len(contents[which]) - 1))
    contents[which][position] ^= 1 << data.draw(st.integers(0, 7))
    policy = MAKERS["age"](Chains())
    restored = restore(policy, bytes(contents[0]), bytes(contents[1]), xxhash.xxh3_128_digest)
    assert restored.problem or which == 1
    if which == 0:
        assert policy.export_image().is_same(MAKERS["age"](Chains()).export_image())
    else:
        assert moment_of(policy, images) < len(images) - 1
