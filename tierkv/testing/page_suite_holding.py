"""Page stores: holds and sessions (the implementation must: 2, 3)."""

from __future__ import annotations

from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.pages import PageStore, Pool
from tierkv.testing.deadline import wait_until
from tierkv.testing.page_rig import (
    PageCases,
    PageRig,
)


class HoldingPages(PageCases):
    """A page has one owner until every hold on it is over."""

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
