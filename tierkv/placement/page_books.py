"""The books of one device's pages: which holds what, who holds it, and which are free. Pure memory, always under the store's lock.

A page is free, or held without a name (an engine fills it, or its block has gone), or named: the place of a block. A named page that
nobody holds is a cached copy, which the pool's policy may let go. Who decides over blocks is `tierkv.placement.device_room`.

Invariants: free + held without a name + named = all pages, but for those that a job still looks at; a page is free only when it has
neither a name, nor a hold, nor a job; a named page's block is in the index; a name stands on one page of the pool only; the policy
knows every named page that is not leaving; only its holder, or the end of its holder, ends a hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from tierkv.errors import InvalidRequestError
from tierkv.index.block_index import BlockIndex
from tierkv.index.holds import SessionId
from tierkv.model.keys import BlockKey
from tierkv.policies.base import Cause, Policy
from tierkv.tiers.base import PoolMemory


@dataclass(slots=True, eq=False)
class Page:
    """One page. key — of the block whose place it is; moves — jobs that look at its bytes; fill — the job that brings them, shared by all
    who wait. is_ready — the block is whole; is_leaving — the policy has let it go, and it is copied to the host first.
    """

    number: int
    key: BlockKey | None = None
    num_holds: int = 0
    moves: int = 0
    is_ready: bool = False
    is_leaving: bool = False
    fill: Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the policy may let it go now, as far as the page itself is asked."""
        return self.is_ready and self.num_holds == 0 and self.moves == 0 and self.key is not None and not self.is_leaving

    @property
    def is_free(self) -> bool:
        return self.key is None and self.num_holds == 0 and self.moves == 0


class PageBooks:
    """Pages of one size at a time. make_policy — an empty policy for a capacity in bytes."""

    def __init__(self, memory: PoolMemory, *, index: BlockIndex, make_policy: Callable[[int], Policy[BlockKey]]) -> None:
        self.memory = memory
        self.policy = make_policy(memory.memory_bytes)
        self.page_bytes = 0
        self.num_idle = 0
        """Pages that are cached only. Those of them that have no busy follower can leave at once."""
        self.users: set[SessionId] = set()
        self._index = index
        self._make_policy = make_policy
        self._pages: list[Page] = []
        self._free: list[int] = []
        self._by_key: dict[BlockKey, Page] = {}
        self._held: dict[SessionId, Counter[int]] = {}

    @property
    def device(self) -> str:
        return self.memory.device

    @property
    def num_pages(self) -> int:
        return len(self._pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_named(self) -> int:
        return len(self._by_key)

    def named(self) -> list[Page]:
        """Every page that has a name. O(n)."""
        return list(self._by_key.values())

    def page_of(self, key: BlockKey) -> Page | None:
        """The page that is a block's place, whole or being filled."""
        return self._by_key.get(key)

    def offset_of(self, page: Page) -> int:
        """Where a page begins in the memory."""
        return page.number * self.page_bytes

    def check_pages(self, block_bytes: int) -> None:
        """Raises InvalidRequestError for blocks that are not as large as the pages."""
        if block_bytes != self.page_bytes:
            raise InvalidRequestError(
                "blocks of this namespace do not fit the pages that are open", block_bytes=block_bytes, page_bytes=self.page_bytes
            )

    def check_cut(self, page_bytes: int) -> None:
        """Raises InvalidRequestError where no page of this size fits."""
        memory_bytes = self.memory.memory_bytes
        if page_bytes > memory_bytes:
            raise InvalidRequestError(
                "the pool is smaller than one page; give it more memory", page_bytes=page_bytes, memory_bytes=memory_bytes
            )

    def cut(self, page_bytes: int) -> None:
        """Cuts the memory into pages of another size; all of the old ones must be free. Raises as `check_cut`."""
        self.check_cut(page_bytes)
        num_pages = self.memory.memory_bytes // page_bytes
        assert len(self._free) == len(self._pages), "a page is in use"
        self.page_bytes = page_bytes
        self.policy = self._make_policy(num_pages * page_bytes)
        self._pages = [Page(number) for number in range(num_pages)]
        self._free = list(range(num_pages - 1, -1, -1))  # low ones first: they have memory first

    # -- holds -----------------------------------------------------------------------------------------------------------

    def take_free(self, session: SessionId, count: int) -> list[Page]:
        """Up to `count` free pages, each held by the session now."""
        taken: list[Page] = []
        while self._free and len(taken) < count:
            page = self._pages[self._free[-1]]
            if not self.memory.back(self.offset_of(page), self.page_bytes):
                break
            self._free.pop()
            self.hold(session, page)
            taken.append(page)
        return taken

    def hold(self, session: SessionId, page: Page) -> None:
        """One hold more."""
        self.num_idle -= page.is_idle
        page.num_holds += 1
        self._held.setdefault(session, Counter())[page.number] += 1
        self._count_hold(page, 1)

    def is_held_by(self, session: SessionId, number: int) -> bool:
        return number in self._held.get(session, ())

    def is_held_by_others(self, session: SessionId, page: Page) -> bool:
        """Whether somebody else holds the page."""
        return page.num_holds > self._held.get(session, Counter())[page.number]

    def release(self, session: SessionId, number: int) -> None:
        """Ends one hold; of a page that the session does not hold, none."""
        held = self._held.get(session)
        if held is None or number not in held:
            return
        held[number] -= 1
        if not held[number]:
            del held[number]
            if not held:
                del self._held[session]
        page = self._pages[number]
        page.num_holds -= 1
        self._count_hold(page, -1)
        self.num_idle += page.is_idle
        self._free_if_over(page)

    def end_session(self, session: SessionId) -> None:
        """Ends every hold of a session."""
        for number, count in dict(self._held.get(session, ())).items():
            for _ in range(count):
                self.release(session, number)
        self.users.discard(session)

    def holds_of(self, session: SessionId) -> dict[int, int]:
        """Pages that a session holds, and how often. A copy."""
        return dict(self._held.get(session, ()))

    @property
    def is_in_use(self) -> bool:
        """Whether anybody holds a page."""
        return bool(self._held)

    def page(self, number: int) -> Page:
        return self._pages[number]

    # -- names -----------------------------------------------------------------------------------------------------------

    def name(self, pages: Sequence[Page], keys: Sequence[BlockKey], head: Sequence[BlockKey], *, is_ready: bool) -> None:
        """Makes pages without a name the places of blocks that have none here, in one access of one request.

        head — keys that the request has before them. is_ready — the bytes are there already, saved by the request; otherwise it loads
        them, and `became_ready` follows. No share of a full tier keeps them out: room was made when the pages were taken.
        """
        if not pages:
            return
        for page, key in zip(pages, keys, strict=True):
            assert page.key is None, page.number
            page.key = key
            page.is_leaving = False
            self._by_key[key] = page
            self._count_hold(page, page.num_holds)
        self._admit(keys, head, Cause.SAVE if is_ready else Cause.LOAD)
        if is_ready:
            for page in pages:
                self.became_ready(page)

    def keep(self, page: Page) -> None:
        """A page that was leaving stays: somebody wants its block."""
        assert page.key is not None
        page.is_leaving = False
        self._admit([page.key], (), Cause.LOAD)
        self.num_idle += page.is_idle

    def leave(self, page: Page) -> None:
        """The policy has let a page go whose bytes are still to be copied away; it stays the block's place until `forget`."""
        self.num_idle -= page.is_idle
        page.is_leaving = True

    def became_ready(self, page: Page) -> None:
        """The page holds its whole block."""
        assert page.key is not None
        page.is_ready = True
        self.num_idle += page.is_idle
        entry = self._index.get(page.key)
        assert entry is not None, page.key.hex()
        entry.num_device_copies += 1

    def forget(self, page: Page) -> None:
        """A page is no block's place any more; who holds it keeps it, and its bytes."""
        assert page.key is not None
        self.num_idle -= page.is_idle
        key, entry = page.key, self._index.get(page.key)
        if key in self.policy:  # else it has let the page go itself
            self.policy.on_remove(key)
        if entry is not None:
            entry.page_holds -= page.num_holds
            entry.num_device_copies -= page.is_ready
        del self._by_key[key]
        page.key = None
        page.is_ready = page.is_leaving = False
        self._free_if_over(page)

    def _admit(self, keys: Sequence[BlockKey], head: Sequence[BlockKey], cause: Cause) -> None:
        weights = [self.page_bytes] * len(keys)
        admission = self.policy.admit(keys, weights, lambda _: True, cause=cause, head=head)
        assert admission.num_admitted == len(keys), "the policy holds as much as the pool"

    # -- jobs ------------------------------------------------------------------------------------------------------------

    def begin_move(self, page: Page) -> None:
        """A job looks at the page's bytes from now on, or is about to."""
        self.num_idle -= page.is_idle
        page.moves += 1

    def end_move(self, page: Page) -> None:
        page.moves -= 1
        self.num_idle += page.is_idle
        self._free_if_over(page)

    def _count_hold(self, page: Page, change: int) -> None:
        entry = None if page.key is None else self._index.get(page.key)
        if entry is not None:
            entry.page_holds += change

    def _free_if_over(self, page: Page) -> None:
        if page.is_free:
            page.fill = None
            self._free.append(page.number)

    # -- self-check ------------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        self.policy.check_integrity()
        free = set(self._free)
        assert len(free) == len(self._free)
        holds: Counter[int] = Counter()
        for held in self._held.values():
            holds.update(held)
        for page in self._pages:
            assert page.is_free == (page.number in free), page
            assert page.num_holds == holds[page.number], page
            assert page.moves >= 0, page
            assert page.key is not None or not (page.is_ready or page.is_leaving), page
            assert page.key is None or self._by_key[page.key] is page, page
        for key, page in self._by_key.items():
            assert page.key == key
            assert self._index.get(key) is not None, key.hex()
            assert (key in self.policy) != page.is_leaving, page
            assert page.is_ready or page.moves > 0, page
        assert len(self.policy) == sum(not page.is_leaving for page in self._by_key.values())
        assert self.num_idle == sum(page.is_idle for page in self._pages)
        unnamed = sum(page.key is None and not page.is_free for page in self._pages)
        assert len(free) + unnamed + len(self._by_key) == len(self._pages)
