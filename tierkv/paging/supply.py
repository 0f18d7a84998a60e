"""The engine's side of a `PageStore`: pages ahead of need, and who of this engine holds which.

A page that a sequence takes comes from a stock that is filled ahead, so decoding waits for nothing. Several sequences may share a page
(choices of one request do); the store's holds are given back as the owners here go.

Invariants: for each page that somebody here owns, 1 ≤ holds of the session ≤ owners; pages of the stock have one hold and no owner.
Used by the engine's thread only; the courier's thread touches its own queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tierkv.errors import TierKVError, UnavailableError
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import TierName
from tierkv.pages import PageRun, PageStore, Pool
from tierkv.paging.courier import Courier, Fetch

__all__ = ["Fetch", "PageSupply"]

RETRY_S = 0.02
"""How often a store that was short of pages is asked again while nothing of ours comes free."""


class PageSupply:
    """pool — of `store`, open. reserve_pages — how many to keep in stock; 0 for a store that answers at memory speed."""

    def __init__(
        self,
        store: PageStore,
        namespace_id: NamespaceId,
        pool: Pool,
        *,
        reserve_pages: int = 0,
        fence: Callable[[], None] | None = None,
        notify: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.namespace_id = namespace_id
        self.pool = pool
        self._courier = Courier(store, namespace_id, fence=fence, notify=notify)
        self._reserve = reserve_pages
        self._stock: list[int] = []
        self._owners: dict[int, int] = {}
        self._holds: dict[int, int] = {}
        self._named: set[int] = set()
        # Pages that the store has been asked for and that have not been answered; what the step at hand is short of.
        self._asked = 0
        self._wanted = 0
        self._wanted_when_asked = 0
        self._retry_at_s = 0.0
        self._now_s = 0.0
        self.is_short = False
        """Whether the store had fewer pages than were needed when it was asked last, and nothing came free since."""

    @property
    def num_pages(self) -> int:
        """Pages of the pool; others may hold some."""
        return self.pool.num_pages

    @property
    def num_owned(self) -> int:
        """Pages that sequences hold, each counted once."""
        return len(self._owners)

    @property
    def num_stocked(self) -> int:
        """Pages at hand."""
        return len(self._stock)

    @property
    def lost(self) -> TierKVError | None:
        """Why the store cannot be used any more; None while it can."""
        if self._courier.lost is None and not getattr(self.store, "pool_is_alive", True):
            self._courier.lose(UnavailableError("the connection that the pages were mapped over has ended"))
        return self._courier.lost

    def start(self) -> None:
        """From now on a thread calls the store."""
        self._courier.start()
        self._refill()
        self._courier.flush()

    def poll(self, now_s: float) -> None:
        """Takes in what the store has answered; the beginning of a step."""
        self._now_s = now_s
        self._wanted = 0
        self._absorb()

    def flush(self) -> None:
        """The end of a step: sends what it asked for, and gives back more stock than is of use."""
        if not self._wanted and not self._asked and len(self._stock) > 2 * self._reserve:
            surplus = self._stock[2 * self._reserve :]
            del self._stock[2 * self._reserve :]
            self._give_back(surplus)
        self._refill()
        self._courier.flush()

    def may_offer(self, count: int) -> bool:
        """Whether `count` pages can be had now, as far as anybody knows. Asks nobody."""
        available = getattr(self.store, "num_available", None)
        return not self.is_short if available is None else len(self._stock) + available >= count

    def take(self, count: int) -> list[int] | None:
        """`count` pages, content undefined; None when they are not at hand: try with the next step, or make room if `is_short`."""
        if count > len(self._stock):
            self._wanted = max(self._wanted, count)
            self._refill()
            if count > len(self._stock):
                return None
        self._wanted = 0
        pages = [self._stock.pop() for _ in range(count)]
        for page in pages:
            self._owners[page] = self._holds[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more owner for each."""
        for page in pages:
            self._owners[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One owner less for each. Name a sequence's pages in order: the last is the first that the store gives away."""
        returned: list[int] = []
        for page in reversed(pages):
            self._owners[page] -= 1
            while self._holds[page] > self._owners[page]:
                self._holds[page] -= 1
                if self._holds[page] == 0 and page not in self._named:
                    self._stock.append(page)
                else:
                    returned.append(page)
            if not self._owners[page]:
                del self._owners[page], self._holds[page]
                self._named.discard(page)
        if pages:
            self.is_short = False
        self._give_back(returned)
        if self._courier.is_inline and len(self._stock) > self._reserve:
            self._give_back(self._stock)
            self._stock = []

    def commit(self, keys: Sequence[BlockKey], pages: Sequence[int], parent: BlockKey | None, *, hints: Hints = NO_HINTS) -> None:
        """Names full pages, which must not be written any more. Those that are named already, because another sequence shares them,
        are left out.
        """
        known = next((idx for idx, page in enumerate(pages) if page not in self._named), len(pages))
        if known:
            parent, keys, pages = keys[known - 1], keys[known:], pages[known:]
        if not pages:
            return
        self._named.update(pages)
        self._courier.commit(hints, PageRun(tuple(keys), tuple(pages), parent))

    def fetch(self, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS) -> Fetch:
        """Asks for the longest held prefix of `keys`; `collect` it once it is settled, or `drop` it."""
        fetch = Fetch(keys, hints)
        self._courier.fetch(fetch)
        self._absorb()
        return fetch

    def collect(self, fetch: Fetch) -> tuple[list[int], tuple[TierName, ...]]:
        """Pages of the blocks that came, owned by the caller now, and where they were found."""
        assert fetch.is_settled and not fetch.is_dropped
        if fetch.lease is None:
            return [], ()
        count = fetch.lease.num_blocks
        self.release(fetch.lease.pages[count:])
        return list(fetch.lease.pages[:count]), fetch.lease.tiers[:count]

    def drop(self, fetch: Fetch) -> None:
        """Nobody wants it any more; its pages go back, now or when they are known."""
        if fetch.is_adopted and fetch.lease is not None and not fetch.is_dropped:
            self.release(fetch.lease.pages)
        fetch.is_dropped = True

    def close(self) -> None:
        """Gives everything back that is at hand and ends the thread; pages that are owned are given back with it."""
        self._courier.stop()
        self._absorb()
        for page, holds in self._holds.items():
            self._give_back([page] * holds)
        self._give_back(self._stock)
        self._stock, self._owners, self._holds = [], {}, {}
        self._courier.stop()

    def check_integrity(self, owned: Iterable[int]) -> None:
        """owned — a page for each owner, as the sequences know it."""
        counts: dict[int, int] = {}
        for page in owned:
            counts[page] = counts.get(page, 0) + 1
        assert counts == self._owners, "pages are owned by nobody, or not known to be owned"
        assert self._holds.keys() == self._owners.keys()
        assert all(1 <= self._holds[page] <= self._owners[page] for page in self._owners)
        assert len(set(self._stock)) == len(self._stock) and not set(self._stock) & self._owners.keys()

    def _refill(self) -> None:
        missing = max(self._wanted, self._reserve) - len(self._stock)
        if missing <= 0 or self._asked or (self.is_short and self._now_s < self._retry_at_s):
            return
        self._asked = missing + self._reserve
        self._wanted_when_asked = self._wanted
        self._courier.reserve(self._asked)
        self._absorb()

    def _absorb(self) -> None:
        while self._courier.granted:
            self._stock += self._courier.granted.popleft()
            self._asked = 0
            self.is_short = len(self._stock) < self._wanted_when_asked
            self._retry_at_s = self._now_s + (0 if self._courier.is_inline else RETRY_S)
        while self._courier.answered:
            self._adopt(self._courier.answered.popleft())

    def _adopt(self, fetch: Fetch) -> None:
        fetch.is_adopted = True
        if fetch.lease is None:
            return
        for page in fetch.lease.pages:
            self._owners[page] = self._owners.get(page, 0) + 1
            self._holds[page] = self._holds.get(page, 0) + 1
        self._named.update(fetch.lease.pages)
        if fetch.is_dropped:
            self.release(fetch.lease.pages)

    def _give_back(self, pages: Sequence[int]) -> None:
        if pages:
            self._courier.release(pages)
