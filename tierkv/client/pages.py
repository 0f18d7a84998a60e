"""The page verbs of the synchronous client: `PageStore` over a daemon. Contract of each verb: `tierkv.pages`.

A pool belongs to the session in which it was opened. When that ends, nothing is mended behind the engine's back, as it is for blocks:
every page verb raises UnavailableError until `open_pool` is called again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import grpc

from tierkv.client.attachment import Attachment
from tierkv.client.page_lease import ClientPageLease
from tierkv.client.pool import MappedPool, map_pool
from tierkv.client.unwaited import UnwaitedCalls
from tierkv.errors import DataError, InvalidRequestError, UnavailableError
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import MissReason
from tierkv.pages import PageOutcome, PageRun, Pool
from tierkv.wire import messages, page_messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import KEYS_PER_CALL


class PageClient:
    """The part of `Client` that keeps pages. Safe to use from several threads; not across a fork."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._releasing = UnwaitedCalls(attachment.counters)
        self._mapped: MappedPool | None = None
        self._mapping = threading.Lock()
        self._listening: dict[ClientPageLease, threading.Thread] = {}

    @property
    def pool_is_alive(self) -> bool:
        """Whether the pool that was opened last is still kept by the daemon for this client.

        False before `open_pool`; and for good, until the next one, from the moment when the stream of its session ended (the daemon is
        gone, or did not answer pings for 30 s), its connection ended (the daemon is gone; `close_pool`), a call was told that the
        session is unknown, or `reserve_pages` or `acquire_pages` got no answer, so that pages may be held that nobody knows of. The
        memory stays as it is until `close_pool`, `open_pool` or `close`: pages can be copied away.
        """
        mapped = self._mapped
        return mapped is not None and mapped.is_alive

    def open_pool(self, namespace_id: NamespaceId, device: str, *, timeout_s: float | None = None) -> Pool:
        """As `PageStore.open_pool`. Ends the pool that was open before: its holds, leases and memory, dead or alive.

        Page numbers mean the new pool from then on; those that were named before are void and must not be released any more.
        """
        block_bytes = self._block_bytes(namespace_id)
        deadline_s = self._attachment.deadline(timeout_s)
        self._attachment.check_open()
        with self._mapping:
            self._end_pool()
            self._mapped = self._attachment.with_link(
                deadline_s,
                lambda link: map_pool(link, namespace_id, device, block_bytes, lambda: self._attachment.left(deadline_s)),
            )
            return self._mapped.pool

    def close_pool(self) -> None:
        """Ends the pool, whose pages return, and not the session. Its memory must not be touched any more. May be called twice."""
        if self._attachment.is_foreign:
            return
        with self._mapping:
            self._end_pool()

    def _block_bytes(self, namespace_id: NamespaceId) -> int:
        known = self._attachment.known.get(namespace_id)
        if known is None:
            raise InvalidRequestError("this namespace is not registered; register its identity first", namespace=namespace_id)
        return known.layout.block_bytes

    def reserve_pages(self, count: int, *, timeout_s: float | None = None) -> list[int]:
        mapped = self._living_pool()
        request = page_messages.reserve_pages_request(mapped.pool_id, count)
        reply = self._name_pages(mapped, "ReservePages", request, self._attachment.deadline(timeout_s))
        return _known_pages(mapped, reply.pages)

    def commit_pages(
        self,
        namespace_id: NamespaceId,
        runs: Sequence[PageRun],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> list[tuple[PageOutcome, ...]]:
        mapped, deadline_s = self._living_pool(), self._attachment.deadline(timeout_s)
        request = page_messages.commit_pages_request(mapped.pool_id, namespace_id, runs, hints)
        reply = self._attachment.call_on(mapped.link, "CommitPages", request, deadline_s)
        outcomes = messages.page_outcomes_of(reply.outcomes)
        if len(outcomes) != sum(len(run.keys) for run in runs):
            raise DataError("the daemon's answer does not fit the runs", outcomes=len(outcomes), runs=len(runs))
        found = iter(outcomes)
        return [tuple(next(found) for _ in run.keys) for run in runs]

    def acquire_pages(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> ClientPageLease:
        mapped, deadline_s = self._living_pool(), self._attachment.deadline(timeout_s)
        request = page_messages.acquire_pages_request(mapped.pool_id, namespace_id, keys, hints)
        reply = self._name_pages(mapped, "AcquirePages", request, deadline_s)
        pages, tiers = tuple(_known_pages(mapped, reply.pages)), messages.tiers_of(reply.tiers)
        if len(tiers) != len(pages) or reply.num_ready > len(pages) or (reply.await_id == 0) != (reply.num_ready == len(pages)):
            mapped.give_up()
            raise DataError("the daemon's lease makes no sense", pages=len(pages), tiers=len(tiers), ready=reply.num_ready)
        miss = messages.miss_of(reply.miss)
        lease = ClientPageLease(
            pages,
            tiers,
            miss,
            reply.num_ready,
            left_s=lambda: deadline_s - self._attachment.clock.monotonic_s(),
            on_short=self._count_misses,
        )
        if len(pages) < len(keys):
            self._count_misses(len(keys) - len(pages), miss)
        if reply.await_id:
            self._listen(mapped, lease, reply.await_id, deadline_s)
        return lease

    def release_pages(self, pages: Sequence[int]) -> None:
        """As `PageStore.release_pages`; nothing is sent, and nothing need be, where the pool is gone."""
        page_messages.check_pages(pages)
        mapped = self._mapped
        if mapped is None or self._attachment.is_foreign or not mapped.is_alive:
            return
        for start in range(0, len(pages), KEYS_PER_CALL):
            request = pb.ReleasePagesRequest(pool_id=mapped.pool_id, pages=pages[start : start + KEYS_PER_CALL])
            self._releasing.send(mapped.link, "ReleasePages", request)

    def _living_pool(self) -> MappedPool:
        self._attachment.check_open()
        mapped = self._mapped
        if mapped is None:
            raise InvalidRequestError("no page pool is open; call open_pool first")
        if not mapped.is_alive:
            raise UnavailableError("the page pool went with its session; open it again", device=mapped.pool.device)
        self._attachment.check_answering()
        return mapped

    def _name_pages(self, mapped: MappedPool, name: str, request: object, deadline_s: float) -> Any:
        """A call whose answer names pages that are held from then on; the pool is given up where the answer does not come."""
        try:
            return self._attachment.call_on(mapped.link, name, request, deadline_s)
        except UnavailableError as error:
            if isinstance(error.__cause__, grpc.RpcError):
                mapped.give_up()
            raise

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
        self._listening[lease] = thread
        thread.start()

    def _count_misses(self, num_blocks: int, miss: MissReason | None) -> None:
        if miss is not None:
            self._attachment.counters[f"misses_{miss}"] += num_blocks

    def _end_pool(self) -> None:
        """Ends what arrives, then the map; the object stays, to say that it is gone."""
        for lease, thread in list(self._listening.items()):
            lease.cut(MissReason.UNAVAILABLE)
            thread.join()
        if self._mapped is not None:
            self._mapped.close()


def _known_pages(mapped: MappedPool, pages: Sequence[int]) -> list[int]:
    """Raises DataError for a page outside the pool, and gives the pool up: nobody may touch what lies there."""
    if pages and max(pages) >= mapped.pool.num_pages:
        mapped.give_up()
        raise DataError("the daemon named a page that the pool does not have", page=max(pages), pages=mapped.pool.num_pages)
    return list(pages)
