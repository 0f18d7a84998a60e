"""The contract of page stores, for every implementation: one test for each sentence of `tierkv.pages.PageStore`, more where one says much.

An implementer subclasses `PageContract` with a fixture `rig`. Blocks are derived from their keys, so that any reader can judge any page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tierkv.errors import ConflictError, InvalidRequestError
from tierkv.interface import BlockStore
from tierkv.model.hints import Hints, Priority
from tierkv.model.keys import BlockKey, NamespaceId, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import MissReason, TierName
from tierkv.pages import PageLease, PageOutcome, PageRun, PageStore, Pool
from tierkv.testing.deadline import wait_until

BLOCK_BYTES = 16_384
BLOCK_TOKENS = 4
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=BLOCK_TOKENS)
OTHER_LAYOUT = Layout(shape=(2 * BLOCK_BYTES,), dtype="uint8", block_tokens=BLOCK_TOKENS)
COMMITTED, PRESENT, REFUSED = PageOutcome.COMMITTED, PageOutcome.PRESENT, PageOutcome.REFUSED


@dataclass(frozen=True, slots=True)
class PageRig:
    """A page store under test, with a pool of at least 16 pages of `LAYOUT` on `device`.

    another — opens a second session on the same pool; None where there is only one. blocks — the tiers below as a `BlockStore`, with a
    disk; None where there are none.
    """

    store: PageStore
    device: str = "cpu"
    another: Callable[[], PageStore] | None = None
    blocks: BlockStore | None = None


def content_of(key: BlockKey) -> bytes:
    """The bytes every test stores under `key`."""
    return key * (BLOCK_BYTES // len(key))


def page_of(pool: Pool, page: int) -> memoryview:
    """The bytes of a page. Needs a pool that the processor can see."""
    assert pool.buffer is not None
    return pool.buffer[page * pool.page_bytes : (page + 1) * pool.page_bytes]


def fill(pool: Pool, keys: Sequence[BlockKey], pages: Sequence[int]) -> None:
    for key, page in zip(keys, pages, strict=True):
        page_of(pool, page)[:] = content_of(key)


class PageContract:
    """What a page store promises; `rig` is the subclass's fixture."""

    @pytest.fixture
    def store(self, rig: PageRig) -> PageStore:
        return rig.store

    @pytest.fixture
    def namespace(self, store: PageStore, request: pytest.FixtureRequest) -> Namespace:
        return store.register(Identity(weights=f"weights of {request.node.nodeid}"), LAYOUT)

    @pytest.fixture
    def namespace_id(self, namespace: Namespace) -> NamespaceId:
        return namespace.namespace_id

    @pytest.fixture
    def pool(self, rig: PageRig, store: PageStore, namespace_id: NamespaceId) -> Pool:
        return store.open_pool(namespace_id, rig.device)

    @pytest.fixture
    def keys(self, namespace_id: NamespaceId) -> list[BlockKey]:
        return self.chain(namespace_id, 6)

    @staticmethod
    def chain(namespace_id: NamespaceId, blocks: int, *, seed: int = 0) -> list[BlockKey]:
        tokens = [seed * 100_000 + idx for idx in range(blocks * BLOCK_TOKENS)]
        return chain_keys(namespace_id, tokens, block_tokens=BLOCK_TOKENS)

    @staticmethod
    def save(
        store: PageStore, pool: Pool, namespace_id: NamespaceId, keys: Sequence[BlockKey], parent: BlockKey | None = None
    ) -> list[int]:
        """Commits blocks in fresh pages, which stay held."""
        pages = store.reserve_pages(len(keys))
        assert len(pages) == len(keys)
        fill(pool, keys, pages)
        assert store.commit_pages(namespace_id, [PageRun(keys, pages, parent)]) == [(COMMITTED,) * len(keys)]
        return pages

    def cache(self, store: PageStore, pool: Pool, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> None:
        """Commits blocks in fresh pages that nobody holds afterwards."""
        store.release_pages(self.save(store, pool, namespace_id, keys))

    @staticmethod
    def check(pool: Pool, lease: PageLease, keys: Sequence[BlockKey]) -> None:
        """Every block of a lease is there, in its page."""
        assert lease.wait(10.0) == len(keys)
        assert [bytes(page_of(pool, page)) for page in lease.pages] == [content_of(key) for key in keys]

    @staticmethod
    def take_all(store: PageStore, pool: Pool) -> list[int]:
        """Every page of the pool, as they come free."""
        taken: list[int] = []

        def is_empty() -> bool:
            taken.extend(store.reserve_pages(pool.num_pages - len(taken)))
            return len(taken) == pool.num_pages

        wait_until(is_empty, timeout_s=10, what="every page to come free")
        return taken

    @contextlib.contextmanager
    def second(self, rig: PageRig):  # type: ignore[no-untyped-def]  # noqa: ANN201 - a context manager of a PageStore
        if rig.another is None:
            pytest.skip("this store has one session")
        other = rig.another()
        try:
            yield other
        finally:
            other.close()

    # -- the pool --------------------------------------------------------------------------------------------------------------

    def test_a_pool_has_pages_of_the_block_size(self, rig: PageRig, pool: Pool) -> None:
        assert (pool.device, pool.page_bytes) == (rig.device, BLOCK_BYTES)
        assert pool.num_pages >= 16
        if rig.device == "cpu":
            assert pool.buffer is not None
            assert not pool.buffer.readonly
            assert len(pool.buffer) == pool.num_pages * BLOCK_BYTES

    def test_a_device_without_a_pool_is_refused_and_those_that_have_one_are_named(
        self, rig: PageRig, store: PageStore, namespace_id: NamespaceId
    ) -> None:
        with pytest.raises(InvalidRequestError, match=rig.device):
            store.open_pool(namespace_id, "cuda:99")

    def test_a_page_larger_than_the_pool_is_refused(self, rig: PageRig, store: PageStore, pool: Pool) -> None:
        size = (pool.num_pages + 1) * BLOCK_BYTES
        large = store.register(Identity(weights="large"), Layout(shape=(size,), dtype="uint8", block_tokens=1))
        with pytest.raises(InvalidRequestError):
            store.open_pool(large.namespace_id, rig.device)

    def test_another_size_waits_until_the_pages_in_use_are_released(
        self, rig: PageRig, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        other = store.register(Identity(weights="of another size"), OTHER_LAYOUT)
        pages = self.save(store, pool, namespace_id, keys)
        with pytest.raises(ConflictError) as caught:
            store.open_pool(other.namespace_id, rig.device)
        assert str(BLOCK_BYTES) in str(caught.value)
        assert str(2 * BLOCK_BYTES) in str(caught.value)
        store.release_pages(pages)
        wider = store.open_pool(other.namespace_id, rig.device)
        assert (wider.page_bytes, wider.num_pages) == (2 * BLOCK_BYTES, pool.num_pages // 2)
        assert len(self.take_all(store, wider)) == wider.num_pages

    # -- the implementation must: 1 ----------------------------------------------------------------------------------------------

    def test_what_is_acquired_is_what_was_committed(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        self.cache(store, pool, namespace_id, keys)
        lease = store.acquire_pages(namespace_id, keys)
        self.check(pool, lease, keys)
        assert (lease.num_blocks, lease.num_ready, lease.is_settled, lease.miss) == (6, 6, True, None)
        assert lease.tiers == (TierName.DEVICE,) * 6

    def test_a_page_is_found_where_it_was_committed_and_not_copied(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        pages = self.save(store, pool, namespace_id, keys)
        assert store.acquire_pages(namespace_id, keys).pages == tuple(pages)

    def test_the_lease_is_as_long_as_what_is_held(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        self.cache(store, pool, namespace_id, keys[:4])
        lease = store.acquire_pages(namespace_id, keys)
        self.check(pool, lease, keys[:4])
        assert (len(lease.tiers), lease.miss) == (4, MissReason.NEVER_SEEN)
        assert store.acquire_pages(namespace_id, self.chain(namespace_id, 2, seed=1)).pages == ()

    def test_a_page_that_was_only_filled_is_found_by_nobody(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        fill(pool, keys, store.reserve_pages(len(keys)))
        assert store.acquire_pages(namespace_id, keys).pages == ()

    def test_blocks_of_one_sequence_are_committed_one_after_the_other(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        parent = None
        for key in keys:
            self.save(store, pool, namespace_id, [key], parent)
            parent = key
        self.check(pool, store.acquire_pages(namespace_id, keys), keys)

    def test_two_runs_may_bring_the_same_block_and_one_place_is_kept(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        pages = store.reserve_pages(4)
        fill(pool, [*keys[:2], *keys[:2]], pages)
        outcomes = store.commit_pages(namespace_id, [PageRun(keys[:2], pages[:2]), PageRun(keys[:2], pages[2:])])
        assert outcomes == [(COMMITTED, COMMITTED), (PRESENT, PRESENT)]
        assert store.acquire_pages(namespace_id, keys[:2]).pages == tuple(pages[:2])

    def test_a_present_page_stays_the_callers_own(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        self.cache(store, pool, namespace_id, keys)
        own = store.reserve_pages(1)
        fill(pool, keys[:1], own)
        assert store.commit_pages(namespace_id, [PageRun(keys[:1], own)]) == [(PRESENT,)]
        page_of(pool, own[0])[:] = bytes(BLOCK_BYTES)
        self.check(pool, store.acquire_pages(namespace_id, keys), keys)

    def test_what_follows_a_block_that_is_not_held_is_refused_and_stays_the_callers_own(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        pages = store.reserve_pages(2)
        fill(pool, keys[1:3], pages)
        assert store.commit_pages(namespace_id, [PageRun(keys[1:3], pages, keys[0])]) == [(REFUSED, REFUSED)]
        assert store.acquire_pages(namespace_id, keys[1:3]).pages == ()
        store.release_pages(pages)
        assert sorted(self.take_all(store, pool)) == list(range(pool.num_pages))

    def test_committing_a_page_again_changes_nothing(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        pages = self.save(store, pool, namespace_id, keys)
        assert store.commit_pages(namespace_id, [PageRun(keys, pages)]) == [(COMMITTED,) * 6]
        store.release_pages(pages)
        self.check(pool, store.acquire_pages(namespace_id, keys), keys)

    def test_hints_change_no_answer(self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]) -> None:
        hints = Hints(request_id="r", session_closed=True, priority=Priority.HIGH, expected_idle_s=60.0)
        pages = store.reserve_pages(6)
        fill(pool, keys, pages)
        assert store.commit_pages(namespace_id, [PageRun(keys, pages)], hints=hints) == [(COMMITTED,) * 6]
        self.check(pool, store.acquire_pages(namespace_id, keys, hints=hints), keys)

    # -- the implementation must: 2 ----------------------------------------------------------------------------------------------

    def test_pages_that_are_held_are_given_to_nobody(self, store: PageStore, pool: Pool) -> None:
        first = store.reserve_pages(5)
        others = store.reserve_pages(pool.num_pages)
        assert len(set(first)) == 5
        assert sorted(first + others) == list(range(pool.num_pages))
        assert store.reserve_pages(1) == []

    def test_a_page_comes_free_with_its_last_hold(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        pages = self.save(store, pool, namespace_id, keys)
        store.acquire_pages(namespace_id, keys)
        lease = store.acquire_pages(namespace_id, keys)
        store.release_pages([*pages, *pages])
        others = self.take_others(store, pool, 6)
        assert not set(others) & set(pages)
        self.check(pool, lease, keys)
        store.release_pages(pages)
        wait_until(lambda: store.reserve_pages(1), timeout_s=10, what="a page that nobody holds")

    @staticmethod
    def take_others(store: PageStore, pool: Pool, num_held: int) -> list[int]:
        """Every page but `num_held` that are held."""
        others = store.reserve_pages(pool.num_pages)
        assert len(others) == pool.num_pages - num_held
        assert store.reserve_pages(1) == []
        return others

    def test_a_page_may_stand_in_a_release_as_often_as_it_is_held(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        pages = self.save(store, pool, namespace_id, keys)
        store.acquire_pages(namespace_id, keys)
        store.release_pages([page for page in pages for _ in range(2)])
        assert sorted(self.take_all(store, pool)) == list(range(pool.num_pages))

    def test_releasing_what_is_not_held_is_no_error(self, store: PageStore, pool: Pool) -> None:
        held = store.reserve_pages(1)
        store.release_pages([*range(pool.num_pages), pool.num_pages + 7, -1])
        store.release_pages(held)
        assert sorted(self.take_all(store, pool)) == list(range(pool.num_pages))

    def test_a_held_page_of_another_session_is_not_given_away(
        self, rig: PageRig, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        pages = self.save(store, pool, namespace_id, keys)
        with self.second(rig) as other:
            mapped = other.open_pool(namespace_id, rig.device)
            lease = other.acquire_pages(namespace_id, keys)
            assert lease.pages == tuple(pages)
            store.release_pages(pages)
            assert not set(store.reserve_pages(pool.num_pages)) & set(pages)
            self.check(mapped, lease, keys)
            other.release_pages(pages)
            wait_until(lambda: other.reserve_pages(1), timeout_s=10, what="a page that nobody holds")

    # -- the implementation must: 3 ----------------------------------------------------------------------------------------------

    def test_what_a_session_holds_returns_when_it_ends(
        self, rig: PageRig, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        self.cache(store, pool, namespace_id, keys)
        with self.second(rig) as other:
            other.open_pool(namespace_id, rig.device)
            assert len(other.acquire_pages(namespace_id, keys).pages) == 6
            assert len(other.reserve_pages(4)) == 4
            assert len(store.reserve_pages(pool.num_pages)) == pool.num_pages - 10
        taken: list[int] = []

        def has_returned() -> bool:
            taken.extend(store.reserve_pages(10 - len(taken)))
            return len(taken) == 10

        wait_until(has_returned, timeout_s=10, what="the pages of the other session")

    # -- the implementation must: 4 ----------------------------------------------------------------------------------------------

    def test_a_block_that_nobody_holds_stays_until_its_page_is_needed(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        self.cache(store, pool, namespace_id, keys)
        store.release_pages(store.reserve_pages(pool.num_pages - 6))
        lease = store.acquire_pages(namespace_id, keys)
        assert lease.tiers == (TierName.DEVICE,) * 6
        store.release_pages(lease.pages)
        assert len(self.take_all(store, pool)) == pool.num_pages

    def test_what_left_the_device_comes_back_into_pages_of_its_own(
        self, rig: PageRig, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        if rig.blocks is None:
            pytest.skip("there is no tier below")
        self.cache(store, pool, namespace_id, keys)
        everything = self.take_all(store, pool)
        for page in everything:
            page_of(pool, page)[:] = bytes(BLOCK_BYTES)
        store.release_pages(everything)
        lease = store.acquire_pages(namespace_id, keys)
        self.check(pool, lease, keys)
        assert TierName.DEVICE not in lease.tiers
        assert (lease.num_ready, lease.is_settled, lease.miss) == (6, True, None)

    def test_committed_blocks_sink_to_the_tiers_below(
        self, rig: PageRig, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        if rig.blocks is None:
            pytest.skip("there is no tier below")
        self.cache(store, pool, namespace_id, keys)
        rig.blocks.flush()
        targets = [memoryview(bytearray(BLOCK_BYTES)) for _ in keys]
        assert rig.blocks.get(namespace_id, keys, targets) == 6
        assert [bytes(target) for target in targets] == [content_of(key) for key in keys]
        assert next(tier.blocks for tier in rig.blocks.stats().tiers if tier.name is TierName.DISK) >= 6

    def test_a_block_that_the_host_has_is_brought_to_a_page(
        self, rig: PageRig, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        if rig.blocks is None:
            pytest.skip("there is no tier below")
        rig.blocks.put(namespace_id, keys, [memoryview(content_of(key)) for key in keys])
        lease = store.acquire_pages(namespace_id, keys)
        self.check(pool, lease, keys)
        assert lease.tiers == (TierName.HOST,) * 6
        assert store.acquire_pages(namespace_id, keys).tiers == (TierName.DEVICE,) * 6

    def test_a_held_block_is_not_deleted(
        self, rig: PageRig, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        if rig.blocks is None:
            pytest.skip("nobody could delete it")
        pages = self.save(store, pool, namespace_id, keys)
        with pytest.raises(ConflictError):
            rig.blocks.delete(namespace_id, keys)
        self.check(pool, store.acquire_pages(namespace_id, keys), keys)
        store.release_pages([*pages, *pages])
        blocks = rig.blocks

        def is_deleted() -> bool:
            with contextlib.suppress(ConflictError):
                return blocks.delete(namespace_id, keys) == 6
            return False

        wait_until(is_deleted, timeout_s=10, what="the last hold to end")
        assert store.acquire_pages(namespace_id, keys).pages == ()

    def test_where_pages_run_out_the_prefix_ends(
        self, rig: PageRig, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        if rig.blocks is None:
            pytest.skip("without a tier below there is nothing to bring")
        self.cache(store, pool, namespace_id, keys)
        everything = self.take_all(store, pool)
        store.release_pages(everything[:4])
        lease = store.acquire_pages(namespace_id, keys)
        self.check(pool, lease, keys[:4])
        assert lease.miss is MissReason.CAPACITY

    # -- the implementation must: 5 ----------------------------------------------------------------------------------------------

    def test_the_pool_comes_first(self, store: PageStore, namespace_id: NamespaceId, keys: list[BlockKey]) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.reserve_pages(1),
            lambda: store.commit_pages(namespace_id, [PageRun(keys[:1], [0])]),
            lambda: store.acquire_pages(namespace_id, keys),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError):
                call()

    def test_a_bad_commit_changes_nothing(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        pages = store.reserve_pages(6)
        fill(pool, keys, pages)
        not_held = next(page for page in range(pool.num_pages) if page not in pages)
        good = PageRun(keys[:1], pages[:1])
        bad = [
            PageRun(keys[1:3], pages[1:2], keys[0]),  # a page for each key
            PageRun([keys[1]], [not_held], keys[0]),
            PageRun([keys[1]], [pool.num_pages], keys[0]),
            PageRun([keys[1]], [-1], keys[0]),
            PageRun([keys[1]], [pages[0]], keys[0]),  # a page twice
            PageRun([keys[1], keys[1]], pages[1:3], keys[0]),  # a key twice
            PageRun([BlockKey(b"short")], pages[1:2], keys[0]),
            PageRun([keys[1]], pages[1:2], BlockKey(b"short")),
        ]
        for run in bad:
            with pytest.raises(InvalidRequestError):
                store.commit_pages(namespace_id, [good, run])
            assert store.acquire_pages(namespace_id, keys).pages == (), run
        assert store.commit_pages(namespace_id, [PageRun(keys, pages)]) == [(COMMITTED,) * 6]

    def test_a_committed_page_cannot_become_another_block(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        pages = self.save(store, pool, namespace_id, keys[:1])
        with pytest.raises(InvalidRequestError):
            store.commit_pages(namespace_id, [PageRun([keys[1]], pages, keys[0])])
        self.check(pool, store.acquire_pages(namespace_id, keys), keys[:1])

    def test_other_bad_input_is_refused(
        self, store: PageStore, namespace_id: NamespaceId, pool: Pool, keys: list[BlockKey]
    ) -> None:
        other = store.register(Identity(weights="of another size"), OTHER_LAYOUT)
        pages = store.reserve_pages(1)
        calls: list[Callable[[], object]] = [
            lambda: store.reserve_pages(-1),
            lambda: store.acquire_pages(namespace_id, [BlockKey(b"short")]),
            lambda: store.acquire_pages(namespace_id, [keys[0], keys[0]]),
            lambda: store.acquire_pages(other.namespace_id, keys),
            lambda: store.commit_pages(other.namespace_id, [PageRun(keys[:1], pages)]),
            lambda: store.acquire_pages(NamespaceId(bytes(32)), keys),
            lambda: store.open_pool(NamespaceId(bytes(32)), pool.device),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError):
                call()
        assert len(store.reserve_pages(pool.num_pages)) == pool.num_pages - 1

    def test_nothing_is_a_commit_or_a_prefix_too(self, store: PageStore, namespace_id: NamespaceId, pool: Pool) -> None:
        assert store.reserve_pages(0) == []
        assert store.commit_pages(namespace_id, []) == []
        assert store.commit_pages(namespace_id, [PageRun([], [])]) == [()]
        lease = store.acquire_pages(namespace_id, [])
        assert (lease.pages, lease.wait(), lease.miss, lease.is_settled) == ((), 0, None, True)
        assert len(store.reserve_pages(pool.num_pages)) == pool.num_pages

    def test_closing_twice_is_no_error(self, rig: PageRig, namespace_id: NamespaceId) -> None:
        with self.second(rig) as other:
            other.open_pool(namespace_id, rig.device)
            other.close()
