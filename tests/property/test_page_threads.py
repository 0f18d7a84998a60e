"""Several engines and readers of the host tier on one small store with a page pool: no wrong byte, no caller that waits for ever, and
books that are right afterwards.
"""

import pytest

from tests.property.actors import BLOCK_BYTES, Actor, content_of
from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.model.hints import Hints
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability
from tierkv.pages import PageOutcome, PageRun
from tierkv.settings import MIB, DeviceSettings, DiskSettings, HostSettings, PolicyName, StoreSettings

POOL_PAGES = 40
STEPS = 150


class SessionActor(Actor):
    """An actor with a session of its own."""

    def __init__(self, store, *rest, **options):
        super().__init__(store, *rest, **options)
        self.session = store.open_session(self.name)


class Engine(SessionActor):
    """Answers requests: acquires what is there, computes the rest, commits it, and lets go; now and then it dies with what it holds."""

    def act(self, step, keys):
        if step == 0 or self._random.random() < 0.05:
            self._store.close_session(self.session)
            self._store.end_pages(self.session)
            self.session = self._store.open_session(self.name)
            self._store.open_pool(self.session, self._namespace_id, "cpu")
        hints = Hints(request_id=str(step))
        acquired = self._store.acquire_pages(self.session, self._namespace_id, keys, hints)
        num_blocks = len(acquired.pages)
        for run in acquired.pending:
            result = run.done.result(30)
            if result.num_blocks < run.num_blocks:
                num_blocks = min(num_blocks, run.start_idx + result.num_blocks)
        fresh = self._store.reserve_pages(self.session, len(keys) - num_blocks)
        for key, page in zip(keys[num_blocks:], fresh, strict=False):
            self.page(page)[:] = content_of(key)
        count = num_blocks + len(fresh)
        parent = keys[num_blocks - 1] if num_blocks else None
        run = PageRun(keys[num_blocks:count], fresh, parent)
        result = self._store.commit_pages(self.session, self._namespace_id, [run], hints)
        if result.durable is not None:
            result.durable.result(30)
        assert all(outcome in PageOutcome for outcome in result.outcomes[0])
        self.check(keys[:count], [self.page(page) for page in [*acquired.pages[:num_blocks], *fresh]], strict=True)
        self._store.release_pages(self.session, [*acquired.pages, *fresh])

    def page(self, number):
        buffer = self._store.pool_buffer(self.session)
        return buffer[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]


class Reader(SessionActor):
    """Reads through the host tier, and deletes."""

    def act(self, step, keys):
        if self._random.random() < 0.1:
            self._store.delete(self._namespace_id, keys).result(30)
            return
        acquired = self._store.acquire(self.session, self._namespace_id, keys)
        num_blocks = len(acquired.extents)
        for run in acquired.pending:
            result = run.done.result(30)
            if result.num_blocks < run.num_blocks:
                num_blocks = min(num_blocks, run.start_idx + result.num_blocks)
        extents = acquired.extents[:num_blocks]
        self.check(keys[:num_blocks], [self._store.view(extent)[:BLOCK_BYTES] for extent in extents], strict=True)
        self._store.release(self.session, [acquired.lease_id])


@pytest.mark.parametrize("durability", list(Durability))
def test_many_threads_on_one_pool(tmp_path, durability):
    settings = StoreSettings(
        data_folder=tmp_path / "data",
        host=HostSettings(memory_bytes=40 * BLOCK_BYTES, folder=tmp_path / "arena", prefault=False),
        disk=DiskSettings(capacity_bytes=3 * MIB, segment_bytes=MIB, direct_io=False, interval_s=0.01),
        devices=(DeviceSettings("cpu", POOL_PAGES * BLOCK_BYTES),),
        policy=PolicyName.ARC,
        durability=durability,
        promote_run_blocks=3,
    )
    store = open_tiered_store(settings, SystemClock())
    try:
        layout = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
        namespace_id = store.register(Identity(weights="threads"), layout).namespace_id
        chains = [
            chain_keys(namespace_id, [(chain // 2 if idx < 12 else 100 + chain) * 1000 + idx for idx in range(40)], block_tokens=4)
            for chain in range(10)
        ]
        kinds: list[type[SessionActor]] = [Engine, Engine, Reader, Reader]
        actors = [kind(store, namespace_id, chains, seed=seed, steps=STEPS) for seed, kind in enumerate(kinds)]
        for actor in actors:
            actor.start()
        for actor in actors:
            actor.join(60)
            assert not actor.is_alive()
        for actor in actors:
            if actor.failure is not None:
                raise actor.failure
            store.close_session(actor.session)
            store.end_pages(actor.session)
        store.flush().result(30)
        store.check_integrity()
        counters = store.stats().counters
        assert counters["pages_staged"] > 0
        assert counters["device_evictions"] > 0
    finally:
        store.close(discard_arena=True)
