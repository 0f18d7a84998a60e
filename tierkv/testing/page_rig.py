"""The ground under the suite of page stores: what a test gets, blocks whose bytes follow from their keys, and helpers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey, NamespaceId, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
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


class PageCases:
    """Fixtures and helpers; `rig` is the subclass's fixture."""

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
