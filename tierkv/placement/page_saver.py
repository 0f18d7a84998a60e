"""The save path of a device: full pages become the places of their blocks. Called with the lock held, at memory speed.

A committed block is found at once; its copy for the host tier is made in the background (`tierkv.placement.page_mover`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tierkv.errors import InvalidRequestError
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import SessionId
from tierkv.model.hints import Hints
from tierkv.model.keys import KEY_BYTES, BlockKey
from tierkv.model.namespace import Namespace
from tierkv.pages import PageOutcome, PageRun
from tierkv.placement.page_books import Page, PageBooks
from tierkv.placement.planner import plan_chains
from tierkv.placement.requests import RequestTable
from tierkv.placement.residency import Residency
from tierkv.placement.staging import Claim, StagingFor


@dataclass(slots=True)
class SavedRun:
    """What became of a run: an outcome for each key; the entries of its leading blocks, held; which of these the call brought."""

    outcomes: list[PageOutcome] = field(default_factory=list)
    entries: list[BlockEntry] = field(default_factory=list)
    committed: list[BlockEntry] = field(default_factory=list)


class PageSaver:
    """Commits of pages."""

    def __init__(self, *, residency: Residency, requests: RequestTable) -> None:
        self._books = residency
        self._requests = requests

    def check(self, pool: PageBooks, session: SessionId, namespace: Namespace, runs: Sequence[PageRun]) -> None:
        """Raises InvalidRequestError for runs that cannot be committed; changes nothing."""
        pool.check_pages(namespace.layout.block_bytes)
        pages = [page for run in runs for page in run.pages]
        if len(set(pages)) != len(pages):
            raise InvalidRequestError("a page stands twice in one commit", pages=len(pages))
        for run in runs:
            if len(set(run.keys)) != len(run.keys):
                raise InvalidRequestError("a key stands twice in one run", keys=len(run.keys))
            if len(run.keys) != len(run.pages):
                raise InvalidRequestError("a run needs one page a key", keys=len(run.keys), pages=len(run.pages))
            if run.parent is not None and len(run.parent) != KEY_BYTES:
                raise InvalidRequestError("a parent key has 32 bytes", length=len(run.parent), parent=run.parent)
            for key, number in zip(run.keys, run.pages, strict=True):
                self._check_pair(pool, session, namespace, key, number)

    def _check_pair(self, pool: PageBooks, session: SessionId, namespace: Namespace, key: BlockKey, number: int) -> None:
        entry = self._books.index.get(key)
        if entry is not None and entry.namespace_id != namespace.namespace_id:
            raise InvalidRequestError("this key belongs to another namespace", key=key, namespace=entry.namespace_id)
        if not pool.is_held_by(session, number):
            raise InvalidRequestError("this page is not held by the session; reserve pages first", page=number)
        named = pool.page(number).key
        if named is not None and named != key:
            raise InvalidRequestError("this page is another block's place already", page=number, key=named)

    def commit(self, pool: PageBooks, session: SessionId, namespace: Namespace, run: PageRun, hints: Hints) -> SavedRun:
        """Takes one checked run in. Where a block cannot be kept, nor can what follows it."""
        books, saved = self._books, SavedRun()
        above = None if run.parent is None else books.index.get(run.parent)
        is_reachable = run.parent is None or (above is not None and above.is_held)
        parent, pages = run.parent, []
        for key, number in zip(run.keys, run.pages, strict=True):
            entry = self._entry_for(namespace, key, parent) if is_reachable else None
            if entry is None:
                break
            page = pool.page(number)
            outcome = self._outcome(pool, page, key)
            if outcome is PageOutcome.COMMITTED and page.key is None:
                pages.append(page)
                saved.committed.append(entry)
            saved.outcomes.append(outcome)
            saved.entries.append(entry)
            parent = key
        if pages:  # else nobody need know what is before them, which costs O(n)
            head = [entry.key for entry in books.index.ancestors(run.parent) if entry.key in pool.policy]
            pool.name(pages, [entry.key for entry in saved.committed], head, is_ready=True)
        saved.outcomes += [PageOutcome.REFUSED] * (len(run.keys) - len(saved.outcomes))
        for chain in plan_chains(saved.committed):
            self._requests.first_accesses(session, hints.request_id, [entry.key for entry in chain])
        homeless = [entry for entry in saved.committed if entry.is_only_in_pages and entry.moves == 0]
        books.stage_soon(homeless, StagingFor(Claim.SHARE, session, hints.request_id))
        return saved

    @staticmethod
    def _outcome(pool: PageBooks, page: Page, key: BlockKey) -> PageOutcome:
        known = pool.page_of(key)
        if known is None or known is page:
            return PageOutcome.COMMITTED
        if known.is_leaving:
            pool.keep(known)
        return PageOutcome.PRESENT

    def _entry_for(self, namespace: Namespace, key: BlockKey, parent: BlockKey | None) -> BlockEntry | None:
        """The block's entry, a new one where it is not known; None where it could not be found behind its parent."""
        index = self._books.index
        entry = index.get(key)
        if entry is not None:  # one that is being written while what it follows has left is no place to begin from
            return None if entry.parent is not None and index.get(entry.parent) is None else entry
        if self._would_follow_itself(key, parent):
            return None
        entry = BlockEntry(key, namespace.namespace_id, parent, namespace.layout.block_bytes)
        entry.generation = index.next_generation()
        entry.durability = namespace.durability
        index.add(entry)
        return entry

    def _would_follow_itself(self, key: BlockKey, parent: BlockKey | None) -> bool:
        """Whether blocks that others are writing lead from `parent` back to `key`; see `Saver.reserve`."""
        index = self._books.index
        above = parent if index.chains.children(key) else None
        while above is not None and above != key:
            above = index.parent_of(above)
        return above is not None
