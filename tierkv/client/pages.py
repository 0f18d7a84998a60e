"""The page verbs of the synchronous client: `PageStore` over a daemon. Contract of each verb: `tierkv.pages`.

A pool belongs to the session in which it was opened. When that ends, or an answer does not come, nothing is mended behind the engine's
back, as it is for blocks: every page verb raises UnavailableError until `open_pool` is called again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tierkv.client.attachment import Attachment
from tierkv.client.page_lease import ClientPageLease, lease_of
from tierkv.client.pool import MappedPool, map_pool
from tierkv.client.unwaited import UnwaitedCalls
from tierkv.errors import InvalidRequestError, UnavailableError
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import MissReason
from tierkv.pages import PageOutcome, PageRun, Pool
from tierkv.wire import page_messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import KEYS_PER_CALL


class PageClient:
    """The part of `Client` that keeps pages. Safe to use from several threads; not across a fork."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._releasing = UnwaitedCalls(attachment.counters)
        # A hold does not expire, as a lease does: one that a busy daemon did not end in time would stay for as long as the pool.
        self._releasing_pages = UnwaitedCalls(attachment.counters, timeout_s=None)
        self._mapped: MappedPool | None = None
        self._mapping = threading.Lock()
        self._listening: dict[ClientPageLease, threading.Thread] = {}
        self._starting = threading.Lock()

    @property
    def pool_is_alive(self) -> bool:
        """Whether the pool that was opened last is still kept by the daemon for this client, with everything that it holds.

        False before `open_pool`, and until the next one from the moment when the stream of its session ended (the daemon is gone, or
        did not answer pings for 30 s), when its connection ended (the daemon is gone; `close_pool`), or when a page verb raised
        UnavailableError, ClosedError or DataError: pages may be held then that nobody knows of. The memory stays as it is until
        `open_pool`, `close_pool` or `close`, so that pages can be copied away.
        """
        mapped = self._mapped
        return mapped is not None and mapped.is_alive

    def open_pool(self, namespace_id: NamespaceId, device: str, *, timeout_s: float | None = None) -> Pool:
        """As `PageStore.open_pool`. Opening what is open changes nothing; a pool that is alive gives way to pages of another size.

        One that is not alive is ended first: what it held returns, and its memory must not be touched any more. Page numbers that were
        named before are void then: they would mean pages of the new pool.
        """
        deadline_s = self._attachment.deadline(timeout_s)
        self._attachment.check_open()
        # A namespace that another client registered is known to the daemon only, and its size comes with the pool.
        known = self._attachment.known.get(namespace_id)
        block_bytes = None if known is None else known.layout.block_bytes
        with self._mapping:
            old = self._mapped
            if old is not None and old.is_alive and (old.pool.device, old.pool.page_bytes) == (device, block_bytes):
                return old.pool
            if old is not None and not old.is_alive:
                self._end_pool(old)
            self._releasing_pages.wait(self._attachment.left(deadline_s))
            self._mapped = self._attachment.with_link(
                deadline_s,
                lambda link: map_pool(link, namespace_id, device, block_bytes, lambda: self._attachment.left(deadline_s)),
            )
            if old is not None:
                self._end_pool(old)
            return self._mapped.pool

    def close_pool(self) -> None:
        """Ends the pool, whose pages return, and not the session. Its memory must not be touched any more. May be called twice."""
        if self._attachment.is_foreign:
            return
        with self._mapping:
            if self._mapped is not None:
                self._end_pool(self._mapped)

    def _block_bytes(self, namespace_id: NamespaceId) -> int:
        known = self._attachment.known.get(namespace_id)
        if known is None:
            raise InvalidRequestError("this namespace is not registered; register its identity first", namespace=namespace_id)
        return known.layout.block_bytes

    def reserve_pages(self, count: int, *, timeout_s: float | None = None) -> list[int]:
        mapped, deadline_s = self._open_pool(), self._attachment.deadline(timeout_s)
        request = page_messages.reserve_pages_request(mapped.pool_id, count)
        with mapped.given_up_on_failure():
            reply = self._call(mapped, "ReservePages", request, deadline_s)
            return list(mapped.checked(reply.pages))

    def commit_pages(
        self,
        namespace_id: NamespaceId,
        runs: Sequence[PageRun],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> list[tuple[PageOutcome, ...]]:
        mapped, deadline_s = self._open_pool(), self._attachment.deadline(timeout_s)
        request = page_messages.commit_pages_request(mapped.pool_id, namespace_id, runs, hints)
        with mapped.given_up_on_failure():
            reply = self._call(mapped, "CommitPages", request, deadline_s)
            return page_messages.outcomes_of(runs, reply)

    def acquire_pages(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> ClientPageLease:
        mapped, deadline_s = self._open_pool(), self._attachment.deadline(timeout_s)
        request = page_messages.acquire_pages_request(mapped.pool_id, namespace_id, keys, hints)
        with mapped.given_up_on_failure():
            reply = self._call(mapped, "AcquirePages", request, deadline_s)
            mapped.checked(reply.pages)
            lease = lease_of(reply, left_s=lambda: deadline_s - self._attachment.clock.monotonic_s(), on_short=self._count_misses)
        if len(lease.pages) < len(keys):
            self._count_misses(len(keys) - len(lease.pages), lease.miss)
        if reply.await_id:
            self._listen(mapped, lease, reply.await_id, deadline_s)
        return lease

    def release_pages(self, pages: Sequence[int]) -> None:
        """As `PageStore.release_pages`; later page calls of this client find the pages free.

        Nothing is sent, and nothing need be, where the pool is gone.
        """
        mapped = self._mapped
        if mapped is None or self._attachment.is_foreign or not mapped.is_alive:
            return
        held = [page for page in pages if 0 <= page < mapped.pool.num_pages]
        for start in range(0, len(held), KEYS_PER_CALL):
            request = pb.ReleasePagesRequest(pool_id=mapped.pool_id, pages=held[start : start + KEYS_PER_CALL])
            self._releasing_pages.send(mapped.link, "ReleasePages", request)

    def _open_pool(self) -> MappedPool:
        self._attachment.check_open()
        if self._mapped is None:
            raise InvalidRequestError("no page pool is open; call open_pool first")
        return self._mapped

    def _call(self, mapped: MappedPool, name: str, request: object, deadline_s: float) -> Any:
        """One call in the session of the pool, never in another, and behind what was released before."""
        if not mapped.is_alive:
            raise UnavailableError("the page pool went with its session; open it again", device=mapped.pool.device)
        self._attachment.check_answering()
        self._releasing_pages.wait(self._attachment.left(deadline_s))
        return self._attachment.call_on(mapped.link, name, request, deadline_s)

    def _listen(self, mapped: MappedPool, lease: ClientPageLease, await_id: int, deadline_s: float) -> None:
        """Lets a thread hear of what is on its way; a stream that cannot be opened ends the lease where it stands."""
        link, left_s = mapped.link, max(0.001, deadline_s - self._attachment.clock.monotonic_s())
        request = pb.AwaitPagesRequest(pool_id=mapped.pool_id, await_id=await_id)
        try:
            stream = link.stub.AwaitPages(request, timeout=left_s, metadata=link.metadata)
        except ValueError:  # another thread has closed the channel
            lease.cut(MissReason.UNAVAILABLE)
            return

        lease.stop_listening = stream.cancel

        def listen() -> None:
            lease.listen(stream)
            self._listening.pop(lease, None)

        thread = threading.Thread(target=listen, name="tierkv-pages", daemon=True)
        try:
            with self._starting:  # nobody joins a thread that has not begun
                self._listening[lease] = thread
                thread.start()
        except RuntimeError:  # the system has no thread to give; the caller must still hear of its pages
            del self._listening[lease]
            lease.cut(MissReason.UNAVAILABLE)

    def _count_misses(self, num_blocks: int, miss: MissReason | None) -> None:
        if miss is not None:
            self._attachment.counters[f"misses_{miss}"] += num_blocks

    def _end_pool(self, mapped: MappedPool) -> None:
        """Ends what arrives, then the map; the object stays, to say that it is gone."""
        with self._starting:
            listening = list(self._listening.items())
        for lease, thread in listening:
            lease.cut(MissReason.UNAVAILABLE)
            thread.join()
        mapped.close()
