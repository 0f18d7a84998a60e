"""Where the pages of an engine lie: in the daemon's pool, or in private ones while the daemon is away.

The change is made between two steps. Pages of running sequences are copied over (the old pool's memory stays mapped) and named again
in the new pool, so nothing is computed twice; what finds no page there waits like any preempted sequence. The way back is the same:
while the engine stands on private pages, a thread asks for the daemon now and then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from tierkv.engine.memory import PageMemory
from tierkv.engine.scheduler import Scheduler
from tierkv.engine.sequence import LiveSequence, State
from tierkv.errors import ConflictError, InvalidRequestError, TierKVError, UnavailableError
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.pages import PageStore, Pool
from tierkv.paging.private_pages import PrivatePages
from tierkv.paging.supply import PageSupply

_log = logging.getLogger("tierkv.engine")


class Ground:
    """One pool in use: its supply and its memory. Offers the copies that the scheduler asks for."""

    def __init__(self, supply: PageSupply, memory: PageMemory, *, is_private: bool) -> None:
        self.supply = supply
        self.memory = memory
        self.is_private = is_private

    def copy(self, source: int, target: int) -> None:
        self.memory.copy_page(source, target)

    def save(self, page: int) -> Any:
        return self.memory.pages[page].clone()

    def restore(self, content: Any, page: int) -> None:
        self.memory.pages[page].copy_(content)

    def close(self) -> None:
        self.supply.close()
        self.memory.close()
        if self.is_private:
            self.supply.store.close()


class Grounds:
    """connect — a store with the daemon's pages, raising UnavailableError while it is away; None: private pages only.

    bind — told of each memory before it is used. notify — called when the store has answered something.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], PageStore] | None,
        private_memory_bytes: int,
        identity: Identity,
        layout: Layout,
        device: str,
        reserve_pages: int,
        bind: Callable[[PageMemory], None],
        fence: Callable[[], None] | None = None,
        notify: Callable[[], None] | None = None,
        retry_s: float = 5.0,
    ) -> None:
        self._connect = connect
        self._private_memory_bytes = private_memory_bytes
        self._identity = identity
        self._layout = layout
        self._device = device
        self._reserve_pages = reserve_pages
        self._bind = bind
        self._fence = fence
        self._notify = notify
        self._retry_s = retry_s
        self._next_try_s = 0.0
        self._attempt: threading.Thread | None = None
        self._found: tuple[PageStore, Pool] | None = None
        self.current: Ground
        self.num_moves = 0

    def open(self, now_s: float) -> Ground:
        """The ground to begin on. What cannot be as asked (no such device there) raises InvalidRequestError."""
        if self._private_memory_bytes < self._layout.block_bytes:
            raise InvalidRequestError(
                "the private memory is smaller than one page",
                private_memory_bytes=self._private_memory_bytes,
                page_bytes=self._layout.block_bytes,
            )
        self._next_try_s = now_s + self._retry_s
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
            self._next_try_s = now_s + self._retry_s
            self._move(scheduler, self._private(), now_s)
            return True
        if self.is_looking:
            self._try(now_s)
        if self._found is None:
            return False
        (store, pool), self._found = self._found, None
        _log.info("the daemon is back")
        self._move(scheduler, self._ground(store, pool, is_private=False), now_s)
        return True

    def close(self) -> None:
        """Gives all pages back. May be called twice."""
        if self._attempt is not None:
            self._attempt.join()
        self.current.close()

    def _first(self) -> Ground:
        if self._connect is not None:
            try:
                store, pool = self._open(self._connect())
                return self._ground(store, pool, is_private=False)
            except (UnavailableError, ConflictError) as error:
                _log.warning("the daemon's pages cannot be had, the engine begins with pages of its own: %s", error)
        return self._private()

    def _private(self) -> Ground:
        store, pool = self._open(PrivatePages(self._private_memory_bytes, device=self._device))
        return self._ground(store, pool, is_private=True)

    def _open(self, store: PageStore) -> tuple[PageStore, Pool]:
        namespace = store.register(self._identity, self._layout)
        return store, store.open_pool(namespace.namespace_id, self._device)

    def _ground(self, store: PageStore, pool: Pool, *, is_private: bool) -> Ground:
        supply = PageSupply(
            store,
            self._identity.fingerprint(self._layout),
            pool,
            reserve_pages=0 if is_private else self._reserve_pages,
            fence=self._fence,
            notify=self._notify,
        )
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
            self._next_try_s = now_s + self._retry_s
            # Connecting may take seconds, and the steps go on meanwhile.
            self._attempt = threading.Thread(target=self._ask, name="tierkv-engine-connect", daemon=True)
            self._attempt.start()

    def _ask(self) -> None:
        assert self._connect is not None
        try:
            self._found = self._open(self._connect())
        except TierKVError as error:
            _log.debug("the daemon is still away: %s", error)
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
        scheduler.supply, scheduler.copies = target.supply, target
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
        target.memory.copy_page(page, new, source_memory=source.memory)
        moved[page] = new
    return [moved[page] for page in pages]
