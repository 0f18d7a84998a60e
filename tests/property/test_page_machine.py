"""Pages of a device under random verbs of two sessions, over a small host tier and a small disk, with every book checked after each rule.

What the model knows: which pages each session holds, how often, and the block that each of them was committed or acquired for. A page
that is held has the bytes of its block, whatever has become of that; a page is held by one session more only where a call says so.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tierkv.assemble import open_tiered_store
from tierkv.errors import ConflictError
from tierkv.index.holds import SessionId
from tierkv.model.hints import NO_HINTS, Hints, Priority
from tierkv.model.keys import BlockKey, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability
from tierkv.pages import PageOutcome, PageRun
from tierkv.settings import MIB, DeviceSettings, DiskSettings, HostSettings, PolicyName, StoreSettings
from tierkv.store import TieredStore
from tierkv.testing.clock import ManualClock

BLOCK_BYTES = 128 * 1024
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
CHAINS = 6
CHAIN_BLOCKS = 8
SHARED_BLOCKS = 3
POOL_PAGES = 16


def content_of(key: BlockKey) -> bytes:
    return key * (BLOCK_BYTES // len(key))


class PageMachine(RuleBasedStateMachine):
    """A pool of 16 pages, a host tier of 8 blocks or of 40, a disk of about 24 or none."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tierkv-pages-"))
        self.clock = ManualClock()
        self.committed: set[BlockKey] = set()

    @initialize(
        policy=st.sampled_from(list(PolicyName)),
        durability=st.sampled_from([Durability.VOLATILE, Durability.INTERVAL]),
        host_blocks=st.sampled_from([8, 8, 40]),
        has_disk=st.booleans(),
    )
    def open(self, policy: PolicyName, durability: Durability, host_blocks: int, has_disk: bool) -> None:
        store_settings = StoreSettings(
            data_folder=self.folder / "data",
            host=HostSettings(memory_bytes=host_blocks * BLOCK_BYTES, folder=self.folder / "arena", prefault=False),
            disk=DiskSettings(capacity_bytes=3 * MIB if has_disk else 0, segment_bytes=MIB, direct_io=False, interval_s=0.0),
            devices=(DeviceSettings("cpu", POOL_PAGES * BLOCK_BYTES),),
            policy=policy,
            durability=durability,
            promote_run_blocks=3,
        )
        self.store: TieredStore = open_tiered_store(store_settings, self.clock)
        self.namespace_id = self.store.register(Identity(weights="machine"), LAYOUT).namespace_id
        self.sessions: list[SessionId] = []
        self.free_holds: list[list[int]] = []
        """Pages of each session that it reserved and has not committed."""
        self.places: list[Counter[tuple[int, BlockKey]]] = []
        """Holds of each session on pages of blocks."""
        for _ in range(2):
            self._attach()

    def _attach(self) -> None:
        session = self.store.open_session("actor")
        self.store.open_pool(session, self.namespace_id, "cpu")
        self.sessions.append(session)
        self.free_holds.append([])
        self.places.append(Counter())

    def _chain(self, chain: int, length: int) -> list[BlockKey]:
        tokens = [(chain // 2 if idx < 4 * SHARED_BLOCKS else CHAINS + chain) * 1000 + idx for idx in range(4 * length)]
        return chain_keys(self.namespace_id, tokens, block_tokens=4)

    def _page(self, page: int) -> memoryview:
        buffer = self.store.pool_buffer(self.sessions[0])
        assert buffer is not None
        return buffer[page * BLOCK_BYTES : (page + 1) * BLOCK_BYTES]

    actors = st.integers(0, 1)
    chains = st.integers(0, CHAINS - 1)
    lengths = st.integers(1, CHAIN_BLOCKS)
    starts = st.just(0) | st.integers(0, CHAIN_BLOCKS)
    hints = st.just(NO_HINTS) | st.builds(
        Hints,
        request_id=st.sampled_from(["", "r", "q"]),
        session_closed=st.booleans(),
        priority=st.sampled_from(list(Priority)),
        pin_until_s=st.none() | st.floats(0, 1e3),
    )

    @rule(actor=actors, count=st.integers(0, POOL_PAGES))
    def reserve(self, actor: int, count: int) -> None:
        pages = self.store.reserve_pages(self.sessions[actor], count)
        held = {page for places in self.places for page, _ in places} | {page for pages in self.free_holds for page in pages}
        assert not held & set(pages)
        assert len(set(pages)) == len(pages) <= count
        self.free_holds[actor] += pages

    @rule(actor=actors, chain=chains, length=lengths, start=starts, hints=hints, is_released=st.booleans())
    def commit(self, actor: int, chain: int, length: int, start: int, hints: Hints, is_released: bool) -> None:
        keys = self._chain(chain, length)[start:]
        pages = self.free_holds[actor][: len(keys)]
        keys = keys[: len(pages)]
        parent = self._chain(chain, start)[-1] if start and keys else None
        for key, page in zip(keys, pages, strict=True):
            self._page(page)[:] = content_of(key)
        result = self.store.commit_pages(self.sessions[actor], self.namespace_id, [PageRun(keys, pages, parent)], hints)
        for key, page, outcome in zip(keys, pages, result.outcomes[0], strict=True):
            if outcome is PageOutcome.COMMITTED:
                self.committed.add(key)
                self.free_holds[actor].remove(page)
                self.places[actor][page, key] += 1
                if is_released:
                    self._release(actor, page, key)
            else:
                self._page(page)[:] = bytes(BLOCK_BYTES)  # it is still the caller's own

    @rule(actor=actors, chain=chains, length=lengths, start=starts, hints=hints, is_released=st.booleans())
    def acquire(self, actor: int, chain: int, length: int, start: int, hints: Hints, is_released: bool) -> None:
        keys = self._chain(chain, length)[start:]
        acquired = self.store.acquire_pages(self.sessions[actor], self.namespace_id, keys, hints)
        num_blocks = len(acquired.pages)
        for run in acquired.pending:
            result = run.done.result(10)
            if result.num_blocks < run.num_blocks:
                num_blocks = min(num_blocks, run.start_idx + result.num_blocks)
        for idx, (page, key) in enumerate(zip(acquired.pages, keys, strict=False)):
            if idx < num_blocks:
                assert key in self.committed
                assert bytes(self._page(page)) == content_of(key)
                self.places[actor][page, key] += 1
                if is_released:
                    self._release(actor, page, key)
            else:
                self.store.release_pages(self.sessions[actor], [page])

    def _release(self, actor: int, page: int, key: BlockKey) -> None:
        self.store.release_pages(self.sessions[actor], [page])
        self.places[actor][page, key] -= 1
        self.places[actor] += Counter()  # drops what is zero

    @rule(actor=actors, which=st.integers(0, 99))
    def release(self, actor: int, which: int) -> None:
        held = sorted(self.places[actor])
        if held:
            self._release(actor, *held[which % len(held)])

    @rule(actor=actors)
    def release_reserved(self, actor: int) -> None:
        self.store.release_pages(self.sessions[actor], self.free_holds[actor])
        self.free_holds[actor].clear()

    @rule(actor=actors)
    def kill(self, actor: int) -> None:
        """The process of a session is gone: first its stream, then its map of the pool."""
        session = self.sessions[actor]
        self.store.close_session(session)
        self.pages_are_conserved()
        assert self.store.has_pages(session)
        self.store.end_pages(session)
        assert not self.store.has_pages(session)
        del self.sessions[actor], self.free_holds[actor], self.places[actor]
        self._attach()

    @rule(chain=chains, length=lengths)
    def read_from_the_host(self, chain: int, length: int) -> None:
        """A reader of the host tier: what only a page has comes to it."""
        keys, session = self._chain(chain, length), self.sessions[0]
        acquired = self.store.acquire(session, self.namespace_id, keys)
        num_blocks = len(acquired.extents)
        for run in acquired.pending:
            result = run.done.result(10)
            if result.num_blocks < run.num_blocks:
                num_blocks = min(num_blocks, run.start_idx + result.num_blocks)
        for key, extent in zip(keys[:num_blocks], acquired.extents, strict=False):
            assert key in self.committed
            assert bytes(self.store.view(extent)[:BLOCK_BYTES]) == content_of(key)
        self.store.release(session, [acquired.lease_id])

    @rule(chain=chains, length=lengths, is_committed=st.booleans())
    def save_in_the_host(self, chain: int, length: int, is_committed: bool) -> None:
        """A client of the host tier saves the same blocks, with a commit of pages between its reserve and its end."""
        keys, session = self._chain(chain, length), self.sessions[1]
        result = self.store.reserve(session, self.namespace_id, keys)
        granted = [(key, extent) for key, extent in zip(keys, result.extents, strict=True) if extent is not None]
        for key, extent in granted:
            self.store.view(extent)[:BLOCK_BYTES] = content_of(key)
        self.commit(0, chain, length, 0, NO_HINTS, is_released=False)
        if granted and is_committed:
            self.store.commit(session, result.reservation_id)
            self.committed.update(key for key, _ in granted)
        elif granted:
            self.store.abort(session, result.reservation_id)

    @rule(chain=chains, length=lengths)
    def delete(self, chain: int, length: int) -> None:
        keys = self._chain(chain, length)
        with contextlib.suppress(ConflictError):
            self.store.delete(self.namespace_id, keys).result(10)

    @rule()
    def flush(self) -> None:
        self.store.flush().result(10)

    @rule()
    def tidy(self) -> None:
        self.clock.advance(1.0)
        self.store.expire()

    @invariant()
    def pages_are_conserved(self) -> None:
        if hasattr(self, "store"):
            self.store.check_integrity()
            for actor, session in enumerate(self.sessions):
                holds = Counter(self.free_holds[actor])
                for (page, key), count in self.places[actor].items():
                    holds[page] += count
                    assert bytes(self._page(page)[:64]) == content_of(key)[:64]
                assert self.store.page_holds(session) == holds

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close(discard_arena=True)
        shutil.rmtree(self.folder)


TestPageMachine = PageMachine.TestCase
TestPageMachine.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
