"""Page stores: pools, and what is found in them (the implementation must: 1)."""

from __future__ import annotations

import pytest

from tierkv.errors import ConflictError, InvalidRequestError
from tierkv.model.hints import Hints, Priority
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import MissReason, TierName
from tierkv.pages import PageRun, PageStore, Pool
from tierkv.testing.page_rig import (
    BLOCK_BYTES,
    COMMITTED,
    OTHER_LAYOUT,
    PRESENT,
    REFUSED,
    PageCases,
    PageRig,
    fill,
    page_of,
)


class FindingPages(PageCases):
    """Only what was committed is found, and where it lies."""

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
