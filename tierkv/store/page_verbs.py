"""The verbs of the device tier: a session opens the pool of one device, takes pages, commits them, and holds those of a prefix.

What an engine sees of them is `tierkv.pages.PageStore`. Holds are counted: whatever a call names is held once more by the session until
it releases it once, whatever becomes of the block; only `end_pages` ends them all, and that is called when no process can write to the
pool on the session's account any more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Future

from tierkv.answers import PageAcquisition, PageCommit, PoolFill, PoolView, RunResult
from tierkv.errors import ConflictError, InvalidRequestError, UnavailableError
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import SessionId
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import KEY_BYTES, BlockKey, NamespaceId
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import Durability
from tierkv.pages import PageRun
from tierkv.placement.page_books import PageBooks
from tierkv.placement.page_saver import SavedRun
from tierkv.store.care import StoreCare, can_be_written


class PageVerbs(StoreCare):
    """Pages of devices. Every verb answers at memory speed; bytes move in threads."""

    def device_names(self) -> tuple[str, ...]:
        """The devices that have a pool."""
        return tuple(pool.device for pool in self._books.pools)

    def pool_fill(self) -> tuple[PoolFill, ...]:
        """What the pages of each pool are used for, at one moment."""
        with self._lock:
            return tuple(PoolFill(pool.device, pool.num_pages, pool.num_free, pool.num_idle) for pool in self._books.pools)

    def open_pool(self, session: SessionId, namespace_id: NamespaceId, device: str) -> PoolView:
        """The pool of `device`, cut into pages of the namespace's block size; a session opens one.

        Raises InvalidRequestError for another device and for a pool smaller than a page, ConflictError where the pool is open with
        pages of another size, UnavailableError while pages of another size are still being copied (ask again).
        """
        page_bytes = self._namespaces.get(namespace_id).layout.block_bytes
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            pool = next((pool for pool in self._books.pools if pool.device == device), None)
            if pool is None:
                names = ", ".join(self.device_names()) or "none"
                raise InvalidRequestError(
                    "the store has no pool on this device; give it one with --device, as in cpu:2GiB", device=device, devices=names
                )
            if self._pool_of.get(session, pool) is not pool:
                raise InvalidRequestError(
                    "a session uses the pool of one device", device=device, opened=self._pool_of[session].device
                )
            if pool.page_bytes != page_bytes:
                self._cut(pool, session, page_bytes)
            pool.users.add(session)
            self._pool_of[session] = pool
            handle = pool.memory.ipc_handle()
            return PoolView(device, pool.memory.memory_bytes, page_bytes, pool.num_pages, pool.memory.fd, handle)

    def _cut(self, pool: PageBooks, session: SessionId, page_bytes: int) -> None:
        pool.check_cut(page_bytes)  # before cached blocks leave for it
        if pool.users - {session} or pool.is_in_use:
            raise ConflictError("the pool is in use with pages of another size", page_bytes=page_bytes, in_use=pool.page_bytes)
        self._device_room.empty(pool)
        if pool.num_free < pool.num_pages:
            raise UnavailableError(
                "pages of another size are still being copied; ask again", page_bytes=page_bytes, in_use=pool.page_bytes
            )
        pool.cut(page_bytes)

    def pool_buffer(self, session: SessionId) -> memoryview | None:
        """All pages of the pool that a session opened, as this process sees them; None where the processor cannot."""
        with self._lock:
            pool = self._opened(session)
            return pool.memory.view(0, pool.num_pages * pool.page_bytes)

    def reserve_pages(self, session: SessionId, count: int) -> list[int]:
        """Up to `count` free pages, held by the session; fewer where everything is held or on its way down."""
        if not isinstance(count, int) or not 0 <= count <= self._settings.limits.keys_per_call:
            raise InvalidRequestError(
                "a number of pages lies between 0 and the limit of a call", count=count, limit=self._settings.limits.keys_per_call
            )
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            pages = self._device_room.take(self._opened(session), session, count)
        self._mover.kick()
        return [page.number for page in pages]

    def commit_pages(
        self, session: SessionId, namespace_id: NamespaceId, runs: Sequence[PageRun], hints: Hints = NO_HINTS
    ) -> PageCommit:
        """Makes full pages that the session holds the places of their blocks; the copies below are made in the background."""
        namespace = self._checked_runs(namespace_id, runs)
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            pool = self._opened(session)
            self._page_saver.check(pool, session, namespace, runs)
            if self._is_draining:
                raise UnavailableError("the store is draining: it takes nothing new")
            saved = [self._page_saver.commit(pool, session, namespace, run, hints) for run in runs]
            for run, part in zip(runs, saved, strict=True):
                self._notes.pages_committed(session, namespace, run, part.outcomes, part.committed, hints)
                self._adviser.take(part.entries, hints, reader=session)
            durable = self._mover.write_all(self._strict_of(saved)) if namespace.durability is Durability.STRICT else None
        self._mover.kick()
        return PageCommit([tuple(part.outcomes) for part in saved], durable)

    def _strict_of(self, saved: Sequence[SavedRun]) -> list[BlockEntry]:
        """What must be on disk for the blocks of these runs to be found after a restart."""
        wanted: dict[BlockEntry, None] = {}
        for part in saved:
            wanted.update(dict.fromkeys(self._unwritten_before(part.entries)))
            wanted.update(dict.fromkeys(entry for entry in part.entries if not entry.is_on_disk))
        return list(wanted)

    def acquire_pages(
        self, session: SessionId, namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints = NO_HINTS
    ) -> PageAcquisition:
        """Holds the longest held prefix in pages and starts to bring what is not on the device. One access per block and request."""
        namespace = self._checked(namespace_id, keys)
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            pool = self._opened(session)
            pool.check_pages(namespace.layout.block_bytes)
            held = self._page_loader.hold(pool, session, namespace_id, keys, hints.request_id)
            acquired = held.acquisition
            self._observer.count(acquired.tiers, miss=acquired.miss, num_missed=len(keys) - len(acquired.pages))
            self._notes.acquired(session, namespace, keys, acquired.tiers, acquired.miss, request=hints.request_id)
            self._adviser.take(held.entries, hints, reader=session)
            self._notes.advised(namespace_id, held.entries, hints)
        for run in acquired.pending:
            run_keys = keys[run.start_idx : run.start_idx + run.num_blocks]
            run.done.add_done_callback(functools.partial(self._count_run_miss, namespace_id, run_keys, hints.request_id))
        self._mover.kick()
        return acquired

    def release_pages(self, session: SessionId, pages: Sequence[int]) -> None:
        """Ends one hold on each; what is not held is ignored."""
        with self._lock:
            pool = self._pool_of.get(session)
            if pool is not None:
                for number in pages:
                    pool.release(session, number)

    def end_pages(self, session: SessionId) -> None:
        """No process can write to the pool on the session's account any more: everything it holds returns."""
        with self._lock:
            pool = self._pool_of.pop(session, None)
            if pool is not None:
                pool.end_session(session)

    def has_pages(self, session: SessionId) -> bool:
        """Whether a session has a pool open, or has been closed and not ended there."""
        with self._lock:
            return session in self._pool_of

    def page_holds(self, session: SessionId) -> dict[int, int]:
        """Pages that a session holds, and how often; for tests and status."""
        with self._lock:
            pool = self._pool_of.get(session)
            return {} if pool is None else pool.holds_of(session)

    # -- helpers ---------------------------------------------------------------------------------------------------------

    def _opened(self, session: SessionId) -> PageBooks:
        pool = self._pool_of.get(session)
        if pool is None:
            raise InvalidRequestError("this session has no pool; open one first")
        return pool

    def _checked_runs(self, namespace_id: NamespaceId, runs: Sequence[PageRun]) -> Namespace:
        num_keys = sum(len(run.keys) for run in runs)
        if num_keys > self._settings.limits.keys_per_call:
            raise InvalidRequestError("too many keys in one call", keys=num_keys, limit=self._settings.limits.keys_per_call)
        for run in runs:
            for key in run.keys:
                if len(key) != KEY_BYTES:
                    raise InvalidRequestError("a block key has 32 bytes", length=len(key), key=key)
        return self._namespaces.get(namespace_id)

    def _unwritten_before(self, entries: Sequence[BlockEntry]) -> list[BlockEntry]:
        """Blocks before those of one chain that the disk has not, whatever they were promised: without them no restart finds these."""
        if not entries:
            return []
        before, own = self._books.index.ancestors(entries[-1].parent), set(entries)
        return [entry for entry in before if can_be_written(entry) and not entry.is_on_disk and entry not in own]

    def _count_run_miss(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], request_id: str, done: Future[RunResult]
    ) -> None:
        result = done.result()
        if result.miss is not None:
            with self._lock:
                self._observer.count((), miss=result.miss, num_missed=1)
                self._notes.missed(namespace_id, keys[result.num_blocks :], result.miss, request=request_id)
