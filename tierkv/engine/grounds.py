"""Where the pages of an engine lie: in the daemon's pool, or in private ones while the daemon is away.

The change is made between two steps. Pages of running sequences are copied over (the old pool's memory stays mapped until then) and
named again in the new pool, so nothing is computed twice; what finds no page there waits like any preempted sequence. The way back is the same:
while the engine stands on private pages, a thread asks for the daemon now and then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tierkv.engine.memory import PageMemory
from tierkv.engine.scheduler import Scheduler
from tierkv.engine.sequence import LiveSequence, State
from tierkv.engine.settings import EngineSettings
from tierkv.errors import ConflictError, InvalidRequestError, TierKVError, UnavailableError
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.pages import PageStore
from tierkv.paging.private_pages import PrivatePages
from tierkv.paging.supply import PageSupply

_log = logging.getLogger("tierkv.engine")


@runtime_checkable
class ClosesPool(Protocol):
    """A store whose pool can be ended by itself: that of a daemon which has gone keeps its memory until then."""

    def close_pool(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ground:
    """One pool in use."""

    supply: PageSupply
    memory: PageMemory
    is_private: bool

    def close(self) -> None:
        """Gives the pages back and lets go of the memory. A store that is not the engine's own stays open. May be called twice."""
        self.supply.close()
        self.memory.close()
        store = self.supply.store
        if self.is_private:
            store.close()
        elif isinstance(store, ClosesPool):
            store.close_pool()


class Grounds:
    """connect — a store with the daemon's pages, raising UnavailableError while it is away; None: private pages only.

    bind — told of each memory before it is used. notify — called when the store has answered something.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], PageStore] | None,
        settings: EngineSettings,
        identity: Identity,
        layout: Layout,
        bind: Callable[[PageMemory], None],
        fence: Callable[[], None] | None = None,
        notify: Callable[[], None] | None = None,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._identity = identity
        self._layout = layout
        self._bind = bind
        self._fence = fence
        self._notify = notify
        self._next_try_s = 0.0
        self._attempt: threading.Thread | None = None
        self._found: Ground | None = None
        self.current: Ground
        self.num_moves = 0

    def open(self, now_s: float) -> Ground:
        """The ground to begin on. What cannot be as asked (no such device there) raises InvalidRequestError."""
        memory_bytes, page_bytes = self._settings.private_memory_bytes, self._layout.block_bytes
        if memory_bytes < page_bytes:
            raise InvalidRequestError(
                "the private memory is smaller than one page; raise it", private_memory_bytes=memory_bytes, page_bytes=page_bytes
            )
        self._next_try_s = now_s + self._settings.retry_s
        self.current = self._first()
        self._bind(self.current.memory)
        self._begin(self.current)
        return self.current

    @property
    def is_looking(self) -> bool:
        """Whether the daemon is away and will be asked for."""
        return self._connect is not None and self.current.is_private

    def look(self, scheduler: Scheduler, now_s: float) -> bool:
        """Between two steps: leaves a pool that was lost, returns to one that is back. True when the pool is another now."""
        if not self.current.is_private and self.current.supply.lost is not None:
            _log.warning("the daemon is away, the engine goes on with pages of its own: %s", self.current.supply.lost)
            self._next_try_s = now_s + self._settings.retry_s
            self._move(scheduler, self._private(), now_s)
            return True
        if self.is_looking:
            self._try(now_s)
        if self._found is None:
            return False
        _log.info("the daemon is back")
        found, self._found = self._found, None
        self._move(scheduler, found, now_s)
        return True

    def close(self) -> None:
        """Gives all pages back. May be called twice."""
        if self._attempt is not None:
            self._attempt.join()
        if self._found is not None:
            self._found.close()
        self.current.close()

    def _first(self) -> Ground:
        if self._connect is not None:
            try:
                return self._ground(self._connect(), is_private=False)
            except (UnavailableError, ConflictError) as error:
                _log.warning("the daemon's pages cannot be had, the engine begins with pages of its own: %s", error)
        return self._private()

    def _private(self) -> Ground:
        store = PrivatePages(self._settings.private_memory_bytes, device=self._settings.device)
        return self._ground(store, is_private=True)

    def _ground(self, store: PageStore, *, is_private: bool) -> Ground:
        """Opens the pool of `store`. Calls nothing else of it."""
        namespace_id = store.register(self._identity, self._layout).namespace_id
        pool = store.open_pool(namespace_id, self._settings.device)
        reserve_pages = 0 if is_private else self._settings.reserve_pages
        supply = PageSupply(store, namespace_id, pool, reserve_pages=reserve_pages, fence=self._fence, notify=self._notify)
        return Ground(supply, PageMemory(pool, self._layout), is_private=is_private)

    def _begin(self, ground: Ground) -> None:
        """A daemon's answers take their time, so a thread waits for them; private pages are there at once."""
        if not ground.is_private:
            ground.supply.start()

    def _try(self, now_s: float) -> None:
        if self._attempt is not None:
            # What it found is used before anybody asks again: opening the pool once more would end the one that was opened.
            if not self._attempt.is_alive():
                self._attempt = None
        elif now_s >= self._next_try_s:
            self._next_try_s = now_s + self._settings.retry_s
            # Connecting may take seconds, and the steps go on meanwhile.
            self._attempt = threading.Thread(target=self._ask, name="tierkv-engine-connect", daemon=True)
            self._attempt.start()

    def _ask(self) -> None:
        assert self._connect is not None
        try:
            self._found = self._ground(self._connect(), is_private=False)
        except TierKVError as error:
            _log.debug("the daemon's pages cannot be had yet: %s", error)
        except Exception:
            _log.exception("asking for the daemon failed; it is tried again")
        if self._found is not None and self._notify is not None:
            self._notify()

    def _move(self, scheduler: Scheduler, target: Ground, now_s: float) -> None:
        """Takes every running sequence along. Calls of the new supply are made in place until its thread starts."""
        source = self.current
        for sequence in list(scheduler.loading):
            scheduler.preempt(sequence, now_s)
        moved: dict[int, int] = {}
        tables: dict[LiveSequence, list[int]] = {}
        for sequence in sorted(scheduler.running, key=lambda one: one.rank):
            table = _copied(sequence.pages, source, target, moved)
            if table is None:
                scheduler.preempt(sequence, now_s)
            else:
                tables[sequence] = table
        scheduler.supply, scheduler.copies = target.supply, target.memory
        for sequence, table in tables.items():
            assert sequence.state is State.RUNNING
            source.supply.release(sequence.pages)
            sequence.pages, sequence.num_committed = table, 0
            scheduler.commit(sequence)
        self._bind(target.memory)
        self.current = target
        self.num_moves += 1
        source.close()
        self._begin(target)


def _copied(pages: list[int], source: Ground, target: Ground, moved: dict[int, int]) -> list[int] | None:
    """A block table in `target` with the content of `pages`; None where its pool has too few."""
    missing = [page for page in pages if page not in moved]
    fresh = target.supply.take(len(missing))
    if fresh is None:
        return None
    target.supply.share(moved[page] for page in pages if page in moved)
    for page, new in zip(missing, fresh, strict=True):
        target.memory.restore(source.memory.pages[page], new)
        moved[page] = new
    return [moved[page] for page in pages]
