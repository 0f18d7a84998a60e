"""Page stores: tiers below, and bad input (the implementation must: 4, 5)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from tierkv.errors import ConflictError, InvalidRequestError
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import MissReason, TierName
from tierkv.pages import PageRun, PageStore, Pool
from tierkv.testing.deadline import wait_until
from tierkv.testing.page_rig import (
    BLOCK_BYTES,
    COMMITTED,
    OTHER_LAYOUT,
    PageCases,
    PageRig,
    content_of,
    fill,
    page_of,
)


class SinkingPages(PageCases):
    """Blocks outlive their pages; what cannot be is refused before anything changed."""

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
