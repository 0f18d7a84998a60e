"""Room on a device: which cached pages leave for new ones, and what becomes of their blocks. Pure memory, under the store's lock.

Nearly always a victim's block has a copy below, because what is committed is copied to the host at once; then its page is free on
the spot. One that has none is copied first, as far as the host tier takes it, and its page is free afterwards; a hit meanwhile keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierkv.index.entry import BlockEntry
from tierkv.index.holds import SessionId
from tierkv.index.trail import What
from tierkv.model.keys import BlockKey
from tierkv.model.lifecycle import BlockState
from tierkv.model.outcomes import MissReason, TierName
from tierkv.placement.page_books import Page, PageBooks
from tierkv.placement.page_mover import PageMover
from tierkv.placement.planner import plan_chains
from tierkv.placement.residency import Residency, rule_of


class DeviceRoom:
    """Takes pages for sessions, and lets others go for them."""

    def __init__(self, residency: Residency, mover: PageMover) -> None:
        self._books = residency
        self._mover = mover

    def take(self, pool: PageBooks, session: SessionId, count: int) -> list[Page]:
        """Up to `count` pages without a name, held by the session now; fewer where everything is in use or on its way down."""
        taken = pool.take_free(session, count)
        if len(taken) < count and pool.num_idle:
            self._evict(pool, _choose(pool, count - len(taken)))
            taken += pool.take_free(session, count - len(taken))
        return taken

    def empty(self, pool: PageBooks) -> None:
        """Lets every page go that nobody holds or copies; what only they hold is gone."""
        for page in pool.named():
            if page.key is not None and page.num_holds == 0 and page.moves == 0:
                self._discard(pool, page, page.key)

    def _evict(self, pool: PageBooks, victims: Sequence[BlockKey]) -> None:
        """The policy has let these go, tails first."""
        if not victims:
            return
        self._books.counters["device_evictions"] += len(victims)
        rule = rule_of(pool.policy)
        last = [entry for key in victims if (entry := self._books.index.get(key)) is not None and _is_last_copy(entry)]
        only_here = {entry.key for entry in last}
        elsewhere = [key for key in victims if key not in only_here]
        self._books.trail.note(What.EVICTED, elsewhere, f"{rule}; it has a copy below", tier=TierName.DEVICE)
        for key in elsewhere:
            page = pool.page_of(key)
            if page is not None:
                pool.forget(page)
        if last:
            self._demote(pool, last, rule)

    def _demote(self, pool: PageBooks, entries: Sequence[BlockEntry], rule: str) -> None:
        """Blocks of which the page is the last copy, tails first, go to the host tier as far as it takes them; the others are gone."""
        staged: list[BlockEntry] = []
        for chain in plan_chains(entries[::-1]):
            staged += self._mover.demote(pool, chain)
        self._books.trail.note(What.DEMOTED, [entry.key for entry in staged], f"{rule}; it goes to the host", tier=TierName.DEVICE)
        moving = set(staged)
        lost = [entry for entry in entries if entry not in moving]
        self._books.counters["device_discards"] += len(lost)
        why = f"{rule}; the host tier takes nothing now"
        self._books.trail.note(What.EVICTED, [entry.key for entry in lost], why, tier=TierName.DEVICE)
        for entry in lost:
            page = pool.page_of(entry.key)
            if page is not None:  # else it has left with a block that it follows
                self._discard(pool, page, entry.key)

    def _discard(self, pool: PageBooks, page: Page, key: BlockKey) -> None:
        """A page loses its name, and where nothing else holds the block, that goes with all that follows it."""
        entry = self._books.index.get(key)
        pool.forget(page)
        if entry is not None and not entry.is_held and entry.state is BlockState.FREE:
            self._books.drop(entry, MissReason.EVICTED)


def _is_last_copy(entry: BlockEntry) -> bool:
    return entry.is_only_in_pages and entry.num_device_copies == 1


def _choose(pool: PageBooks, count: int) -> list[BlockKey]:
    """Lets the policy name victims for up to `count` pages: as many as it can, when it cannot name all of them."""

    def is_pinned(key: BlockKey) -> bool:
        page = pool.page_of(key)
        return page is None or not page.is_idle

    victims: list[BlockKey] = []
    step = min(count, pool.num_idle)
    while step > 0 and len(victims) < count:
        step = min(step, count - len(victims))
        gone = pool.policy.make_room(step * pool.page_bytes, is_pinned)
        victims += gone
        if not gone:
            step //= 2
    return victims
