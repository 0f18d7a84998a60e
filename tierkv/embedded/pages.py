"""The verbs of the device tier on an embedded store; contract of each: `tierkv.pages`. A pool's buffer is the store's own map of it."""

from __future__ import annotations

from collections.abc import Sequence

from tierkv.embedded.leases import EmbeddedPageLease
from tierkv.embedded.session import EmbeddedSession
from tierkv.errors import UnavailableError
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.pages import PageOutcome, PageRun, Pool


class EmbeddedPages(EmbeddedSession):
    """The part of a `PageStore` that a `BlockStore` has not."""

    def open_pool(self, namespace_id: NamespaceId, device: str, *, timeout_s: float | None = None) -> Pool:
        try:
            view = self.tiered.open_pool(self._session, namespace_id, device)
        except UnavailableError:  # pages of another size are on their way down
            self._wait(self.tiered.flush(), timeout_s, "pages of another size did not leave the pool in time; ask again")
            view = self.tiered.open_pool(self._session, namespace_id, device)
        buffer = self.tiered.pool_buffer(self._session)
        if buffer is not None:
            self._pool_buffers.append(buffer)
        return Pool(view.device, view.page_bytes, view.num_pages, buffer, view.ipc_handle)

    def reserve_pages(self, count: int, *, timeout_s: float | None = None) -> list[int]:
        del timeout_s  # answers at memory speed
        return self.tiered.reserve_pages(self._session, count)

    def commit_pages(
        self,
        namespace_id: NamespaceId,
        runs: Sequence[PageRun],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> list[tuple[PageOutcome, ...]]:
        result = self.tiered.commit_pages(self._session, namespace_id, runs, hints)
        if result.durable is not None:
            self._wait(result.durable, timeout_s, "the blocks did not reach the disk in time; they are visible, not yet durable")
        return result.outcomes

    def acquire_pages(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> EmbeddedPageLease:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic_s() + limit_s
        acquired = self.tiered.acquire_pages(self._session, namespace_id, keys, hints)
        return EmbeddedPageLease(acquired, clock=self._clock, deadline_s=deadline_s)

    def release_pages(self, pages: Sequence[int]) -> None:
        self.tiered.release_pages(self._session, pages)
