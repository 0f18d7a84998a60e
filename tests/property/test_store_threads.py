"""Several threads on one small store: no wrong byte, no caller that waits for ever, and books that are right afterwards."""

import pytest

from tests.property.actors import BLOCK_BYTES, CHAIN_BLOCKS, Actor, content_of
from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.embedded import EmbeddedStore
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability
from tierkv.settings import MIB, DiskSettings, HostSettings, PolicyName, StoreSettings

THREADS = 4
STEPS = 400


class Caller(Actor):
    """Calls every verb of a store."""

    def act(self, step, keys):
        verbs = [self.put, self.get, self.acquire, self.prefetch, self.delete, self.flush]
        (verb,) = self._random.choices(verbs, [40, 35, 12, 5, 6, 2])
        verb(keys)

    def put(self, keys):
        sources = [memoryview(content_of(key)) for key in keys]
        self._store.put(self._namespace_id, keys, sources, durability=self._random.choice(list(Durability)))

    def get(self, keys):
        targets = [memoryview(bytearray(BLOCK_BYTES)) for _ in keys]
        self.check(keys[: self._store.get(self._namespace_id, keys, targets)], targets, strict=False)

    def acquire(self, keys):
        lease = self._store.acquire(self._namespace_id, keys)
        self.check(keys, lease.blocks(), strict=False)
        self._store.release(lease)

    def prefetch(self, keys):
        self._store.prefetch(self._namespace_id, keys)

    def delete(self, keys):
        self._store.delete(self._namespace_id, keys)

    def flush(self, keys):
        self._store.flush()


@pytest.mark.parametrize("policy", list(PolicyName))
def test_threads_never_see_wrong_bytes_and_never_hang(tmp_path, policy):
    settings = StoreSettings(
        data_folder=tmp_path / "data",
        host=HostSettings(memory_bytes=2 * MIB, folder=tmp_path / "arena", prefault=False),
        disk=DiskSettings(capacity_bytes=6 * MIB, segment_bytes=MIB, direct_io=False, interval_s=0.0, batch_bytes=MIB),
        policy=policy,
    )
    tiered = open_tiered_store(settings, SystemClock())
    store = EmbeddedStore(tiered, clock=SystemClock(), discard_arena=True)
    layout = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
    namespace_id = store.register(Identity(weights="threads"), layout).namespace_id
    chains = [chain_keys(namespace_id, range(base * 1000, base * 1000 + 4 * CHAIN_BLOCKS), block_tokens=4) for base in range(40)]
    actors = [Caller(store, namespace_id, chains, seed=seed, steps=STEPS) for seed in range(THREADS)]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join()
    store.flush()
    tiered.check_integrity()
    damaged = tiered.verify().damaged
    store.close()
    assert [actor.failure for actor in actors] == [None] * THREADS
    assert damaged == ()
