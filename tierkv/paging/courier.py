"""Carries the page calls of an engine to its store, in batches, so that no step waits for an answer.

One batch is what was asked for since the last one: commits first, because a page must not be given back before it was named, then
releases, then what is wanted. With a thread of its own the engine goes on meanwhile; without one (a store that answers at memory
speed) each call is carried out where it is made.

Invariants: `lost` is set once, by the first error that says the store is away; from then on nothing is called any more and every
fetch is answered with nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tierkv.errors import ClosedError, TierKVError, UnavailableError
from tierkv.model.hints import Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.pages import PageLease, PageRun, PageStore

_log = logging.getLogger("tierkv.engine")


@dataclass(slots=True, eq=False)
class Fetch:
    """A prefix that was asked for. lease — None until it is answered, and where the store had no answer."""

    keys: Sequence[BlockKey]
    hints: Hints
    lease: PageLease | None = None
    is_adopted: bool = False
    """Whether the supply has taken the pages into its books."""
    is_dropped: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way any more."""
        return self.is_adopted and (self.lease is None or self.lease.is_settled)


@dataclass(slots=True)
class _Batch:
    commits: dict[Hints, list[PageRun]] = field(default_factory=dict)
    releases: list[int] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    wanted: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.commits or self.releases or self.fetches or self.wanted)


class Courier:
    """fence — called before each commit; on a CUDA device it waits for what was written. notify — called by the thread with each answer."""

    def __init__(
        self, store: PageStore, namespace_id: NamespaceId, *, fence: Callable[[], None] | None, notify: Callable[[], None] | None
    ) -> None:
        self._store = store
        self._namespace_id = namespace_id
        self._fence = fence
        self._notify = notify
        self._batch = _Batch()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self.lost: TierKVError | None = None
        self.answered: deque[Fetch] = deque()
        """Fetches whose lease is there, for the supply to adopt."""
        self.granted: deque[list[int]] = deque()
        """Answers to `reserve`, one each."""

    @property
    def is_inline(self) -> bool:
        """Whether each call is carried out where it is made."""
        return self._thread is None

    def start(self) -> None:
        """From now on batches are carried by a thread, each after a `flush`."""
        self._thread = threading.Thread(target=self._run, name="tierkv-engine-pages", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Carries what is left and ends the thread. May be called twice."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._carry()

    def commit(self, hints: Hints, run: PageRun) -> None:
        with self._lock:
            self._batch.commits.setdefault(hints, []).append(run)
        self._made()

    def release(self, pages: Sequence[int]) -> None:
        with self._lock:
            self._batch.releases.extend(pages)
        self._made()

    def fetch(self, fetch: Fetch) -> None:
        with self._lock:
            self._batch.fetches.append(fetch)
        self._made()

    def reserve(self, count: int) -> None:
        with self._lock:
            self._batch.wanted += count
        self._made()

    def flush(self) -> None:
        """Sends what was asked for since the last time."""
        if self._thread is not None and not self._batch.is_empty:
            self._wake.set()

    def lose(self, error: TierKVError) -> None:
        """The store is away; said once."""
        if self.lost is None:
            self.lost = error

    def _made(self) -> None:
        if self._thread is None:
            self._carry()

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.wait()
            self._wake.clear()
            self._carry()

    def _carry(self) -> None:
        with self._lock:
            batch, self._batch = self._batch, _Batch()
        if batch.commits:
            self._attempt(lambda: self._commit(batch.commits))
        if batch.releases:
            self._attempt(lambda: self._store.release_pages(batch.releases))
        for fetch in batch.fetches:
            self._attempt(lambda fetch=fetch: self._acquire(fetch))  # type: ignore[misc]  # a default binds the loop's value
            self.answered.append(fetch)
            self._tell()
        if batch.wanted:
            pages: list[int] = []
            self._attempt(lambda: pages.extend(self._store.reserve_pages(batch.wanted)))
            self.granted.append(pages)
            self._tell()
        if self.lost is not None:
            self._tell()

    def _tell(self) -> None:
        if self._thread is not None and self._notify is not None:
            self._notify()

    def _commit(self, commits: dict[Hints, list[PageRun]]) -> None:
        if self._fence is not None:
            self._fence()
        for hints, runs in commits.items():
            self._store.commit_pages(self._namespace_id, runs, hints=hints)

    def _acquire(self, fetch: Fetch) -> None:
        fetch.lease = self._store.acquire_pages(self._namespace_id, fetch.keys, hints=fetch.hints)

    def _attempt(self, call: Callable[[], object]) -> None:
        """What fails is a block less in the cache, never a request."""
        if self.lost is not None:
            return
        try:
            call()
        except (UnavailableError, ClosedError) as error:
            self.lose(error)
        except Exception:
            _log.exception("a call to the store of pages failed; the engine computes instead")
