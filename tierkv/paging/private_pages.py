"""`PageStore` inside one process: pages for an engine that has no daemon, or whose daemon is away.

Blocks are found by their key while nobody has needed their page. What leaves is the least recently released block, with all that
follows it, so that a block that is held can always be reached. Nothing outlives the process.

Invariants: free + cached + held = all pages; a block's parent is held as a block; one thread uses it.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tierkv.errors import ClosedError, ConflictError, InvalidRequestError
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId, block_key
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, MissReason, TierName
from tierkv.pages import PageOutcome, PageRun, Pool


@dataclass(slots=True)
class _Block:
    page: int
    parent: BlockKey | None
    children: set[BlockKey] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class PrivateLease:
    """A prefix that is there already: nothing is ever on its way."""

    pages: tuple[int, ...]
    miss: MissReason | None

    @property
    def tiers(self) -> tuple[TierName, ...]:
        return (TierName.DEVICE,) * len(self.pages)

    @property
    def num_blocks(self) -> int:
        return len(self.pages)

    @property
    def num_ready(self) -> int:
        return len(self.pages)

    @property
    def is_settled(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> int:
        del timeout_s  # nothing to wait for
        return len(self.pages)


class PrivatePages:
    """Pages of `memory_bytes` on one device. On "cpu" their memory is taken when it is first touched; elsewhere the engine takes it."""

    def __init__(self, memory_bytes: int, *, device: str = "cpu") -> None:
        self._memory_bytes = memory_bytes
        self._device = device
        self._namespaces: dict[NamespaceId, Namespace] = {}
        self._pool: Pool | None = None
        self._is_closed = False
        self._reset(0)

    def register(
        self, identity: Identity, layout: Layout, *, durability: Durability | None = None, timeout_s: float | None = None
    ) -> Namespace:
        del timeout_s  # answers at memory speed
        self._check_open()
        namespace = Namespace(identity.fingerprint(layout), identity, layout, durability or Durability.VOLATILE)
        return self._namespaces.setdefault(namespace.namespace_id, namespace)

    def open_pool(self, namespace_id: NamespaceId, device: str, *, timeout_s: float | None = None) -> Pool:
        del timeout_s  # answers at memory speed
        page_bytes = self._namespace(namespace_id).layout.block_bytes
        if device != self._device:
            raise InvalidRequestError("there are no pages on this device", device=device, known=self._device)
        if self._pool is not None and self._pool.page_bytes == page_bytes:
            return self._pool
        if self.num_held:
            raise ConflictError("pages of another size are in use", asked=page_bytes, used=self._cut().page_bytes)
        num_pages = self._memory_bytes // page_bytes
        if num_pages < 1:
            raise InvalidRequestError("the pool is smaller than one page", memory_bytes=self._memory_bytes, page_bytes=page_bytes)
        buffer = memoryview(mmap.mmap(-1, num_pages * page_bytes)) if device == "cpu" else None
        self._pool = Pool(device, page_bytes, num_pages, buffer)
        self._reset(num_pages)
        return self._pool

    def reserve_pages(self, count: int, *, timeout_s: float | None = None) -> list[int]:
        del timeout_s  # answers at memory speed
        self._cut()
        if count < 0:
            raise InvalidRequestError("a count of pages is not negative", count=count)
        while len(self._free) < count and self._idle:
            self._forget(next(iter(self._idle)))
        pages = [self._free.pop() for _ in range(min(count, len(self._free)))]
        for page in pages:
            self._holds[page] = 1
        return pages

    def commit_pages(
        self,
        namespace_id: NamespaceId,
        runs: Sequence[PageRun],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> list[tuple[PageOutcome, ...]]:
        del hints, timeout_s  # nobody ranks what one process holds; answers at memory speed
        self._check_namespace(namespace_id)
        self._check_runs(runs)
        outcomes: list[tuple[PageOutcome, ...]] = []
        for run in runs:
            parents = [run.parent, *run.keys]
            rows = zip(run.keys, run.pages, parents, strict=False)
            outcomes.append(tuple(self._commit(key, page, parent) for key, page, parent in rows))
        return outcomes

    def acquire_pages(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> PrivateLease:
        del hints, timeout_s  # see commit_pages
        self._check_namespace(namespace_id)
        _check_keys(keys)
        pages: list[int] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                break
            self._idle.pop(key, None)
            self._holds[block.page] += 1
            pages.append(block.page)
        return PrivateLease(tuple(pages), None if len(pages) == len(keys) else MissReason.NEVER_SEEN)

    def release_pages(self, pages: Sequence[int]) -> None:
        if self._is_closed:
            return
        for page in pages:
            if not 0 <= page < len(self._holds) or self._holds[page] == 0:
                continue
            self._holds[page] -= 1
            if self._holds[page] == 0:
                key = self._names[page]
                if key is None:
                    self._free.append(page)
                else:
                    self._idle[key] = None

    def close(self) -> None:
        self._is_closed = True
        self._pool = None
        self._reset(0)

    @property
    def num_held(self) -> int:
        """Pages that somebody holds."""
        return len(self._holds) - len(self._free) - len(self._idle)

    @property
    def num_available(self) -> int:
        """Pages that `reserve_pages` can give: free ones and those of blocks that nobody holds."""
        return len(self._free) + len(self._idle)

    def check_integrity(self) -> None:
        """Every page is free, cached or held, and what is named is found."""
        named = {block.page: key for key, block in self._blocks.items()}
        assert len(named) == len(self._blocks), "two blocks share a page"
        assert all(self._names[page] == named.get(page) for page in range(len(self._names)))
        idle = {self._blocks[key].page for key in self._idle}
        held = {page for page, holds in enumerate(self._holds) if holds}
        free = set(self._free)
        assert len(free) == len(self._free) and not free & set(named)
        assert not free & idle and not free & held and not idle & held
        assert len(free) + len(idle) + len(held) == len(self._holds), "a page is nowhere"
        for key, block in self._blocks.items():
            assert block.parent is None or key in self._blocks[block.parent].children
            assert all(self._blocks[child].parent == key for child in block.children)

    def _reset(self, num_pages: int) -> None:
        self._holds = [0] * num_pages
        self._names: list[BlockKey | None] = [None] * num_pages
        self._free = list(reversed(range(num_pages)))
        self._blocks: dict[BlockKey, _Block] = {}
        # Blocks that nobody holds, the one to leave first in front.
        self._idle: OrderedDict[BlockKey, None] = OrderedDict()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("these pages were closed")

    def _namespace(self, namespace_id: NamespaceId) -> Namespace:
        self._check_open()
        found = self._namespaces.get(namespace_id)
        if found is None:
            raise InvalidRequestError("this namespace is not registered here; register it first", namespace=namespace_id)
        return found

    def _check_namespace(self, namespace_id: NamespaceId) -> None:
        page_bytes, block_bytes = self._cut().page_bytes, self._namespace(namespace_id).layout.block_bytes
        if page_bytes != block_bytes:
            raise InvalidRequestError("the pool is cut for blocks of another size", page_bytes=page_bytes, block_bytes=block_bytes)

    def _cut(self) -> Pool:
        self._check_open()
        if self._pool is None:
            raise InvalidRequestError("no pool is open; call open_pool first")
        return self._pool

    def _check_runs(self, runs: Sequence[PageRun]) -> None:
        seen: set[int] = set()
        for run in runs:
            if len(run.keys) != len(run.pages):
                raise InvalidRequestError("a run has one page for each key", keys=len(run.keys), pages=len(run.pages))
            _check_keys(run.keys)
            if run.parent is not None:
                block_key(run.parent)
            for key, page in zip(run.keys, run.pages, strict=True):
                if not 0 <= page < len(self._holds) or self._holds[page] == 0:
                    raise InvalidRequestError("this page is not held; reserve it first", page=page)
                if page in seen:
                    raise InvalidRequestError("a page stands for one block of a call", page=page)
                if self._names[page] not in {None, key}:
                    raise InvalidRequestError("this page holds another block already", page=page)
                seen.add(page)

    def _commit(self, key: BlockKey, page: int, parent: BlockKey | None) -> PageOutcome:
        block = self._blocks.get(key)
        if block is not None:
            return PageOutcome.COMMITTED if block.page == page else PageOutcome.PRESENT
        if parent is not None:
            if parent not in self._blocks:
                return PageOutcome.REFUSED
            self._blocks[parent].children.add(key)
        self._blocks[key] = _Block(page, parent)
        self._names[page] = key
        return PageOutcome.COMMITTED

    def _forget(self, key: BlockKey) -> None:
        """A block leaves with all that follows it; pages of theirs that somebody holds stay his own, unnamed."""
        parent = self._blocks[key].parent
        if parent is not None:
            self._blocks[parent].children.discard(key)
        leaving = [key]
        while leaving:
            gone = leaving.pop()
            block = self._blocks.pop(gone)
            leaving.extend(block.children)
            self._names[block.page] = None
            self._idle.pop(gone, None)
            if self._holds[block.page] == 0:
                self._free.append(block.page)


def _check_keys(keys: Sequence[BlockKey]) -> None:
    for key in keys:
        block_key(key)
    if len(set(keys)) != len(keys):
        raise InvalidRequestError("a key stands once in a sequence", keys=len(keys), distinct=len(set(keys)))
