"""How a lease is opened: by `Acquire` and, for what is still on its way, `Await`; or by `Get` where no memory is shared.

Whatever breaks while blocks arrive ends the lease there, is counted, and raises nothing: a lease that was given only ever gets shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from tierkv.client import verbs
from tierkv.client.attachment import Attachment
from tierkv.client.lease import Arrivals, ClientLease
from tierkv.client.link import Link
from tierkv.client.progress import ChunkAssembler, LeaseProgress, View
from tierkv.errors import DataError, TierKVError
from tierkv.interface import ReadyRun
from tierkv.mapping import ArenaMap
from tierkv.model.hints import Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import MissReason
from tierkv.wire._generated import tierkv_pb2 as pb


def open_lease(
    attachment: Attachment,
    link: Link,
    namespace_id: NamespaceId,
    keys: Sequence[BlockKey],
    block_bytes: int,
    hints: Hints,
    deadline_s: float,
) -> ClientLease:
    """One call; a lease on what is held of `keys`. Raises as `BlockStore.acquire` does, ClosedError where the session is gone."""
    return _Loading(attachment, link, hints, deadline_s).open(namespace_id, keys, block_bytes)


class _Loading:
    """What the parts of one lease have in common: the link it lives on, its hints, its progress and its deadline."""

    def __init__(self, attachment: Attachment, link: Link, hints: Hints, deadline_s: float) -> None:
        self._attachment = attachment
        self._link = link
        self._hints = hints
        self._deadline_s = deadline_s
        self._progress = LeaseProgress()

    def open(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], block_bytes: int) -> ClientLease:
        clock, arena = self._attachment.clock, self._link.arena
        if arena is None:
            arrivals = self._stream(namespace_id, keys)
            expires_at_s = float("inf")  # the bytes are ours
        else:
            expires_at_s = clock.monotonic_s() + self._link.lease_ttl_s
            arrivals = self._acquire(arena, namespace_id, keys, block_bytes)
        self._count_misses(expected=len(keys))
        return ClientLease(self._link, self._progress, arrivals, expires_at_s=expires_at_s, clock=clock)

    def _acquire(self, arena: ArenaMap, namespace_id: NamespaceId, keys: Sequence[BlockKey], block_bytes: int) -> Arrivals:
        def view(offset: int) -> memoryview:
            return arena.view(offset, block_bytes).toreadonly()

        request = verbs.acquire_request(namespace_id, keys, self._hints)
        reply = self._attachment.call_on(self._link, "Acquire", request, self._deadline_s)
        self._progress.take_reply(reply, view)
        lease_id = reply.lease_id

        def end() -> None:
            if not self._progress.is_complete:  # the daemon never does so; its blocks must not be claimed unread
                self._progress.ended(len(self._progress.blocks), MissReason.UNAVAILABLE)

        return Arrivals(lambda: self._await(lease_id), lambda event: self._take(event, view), end, self._break)

    def _await(self, lease_id: int) -> Any:
        left_s = max(0.001, self._deadline_s - self._attachment.clock.monotonic_s())
        request, link = pb.AwaitRequest(lease_id=lease_id), self._link
        return self._attachment.guard(link, lambda: link.stub.Await(request, timeout=left_s, metadata=link.metadata))

    def _take(self, event: pb.AwaitEvent, view: View) -> ReadyRun | None:
        expected = self._progress.num_blocks
        run = self._progress.take_await(event, view)
        self._count_misses(expected=expected)
        return run

    def _stream(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> Arrivals:
        link, left_s = self._link, self._attachment.left(self._deadline_s)
        request = verbs.get_request(namespace_id, keys, self._hints)
        stream = self._attachment.guard(link, lambda: link.stub.Get(request, timeout=left_s, metadata=link.metadata))
        header = self._attachment.guard(link, lambda: next(stream, None))
        if header is None:
            raise DataError("the daemon ended a load before it began", keys=len(keys))
        chunks = ChunkAssembler(self._progress)
        chunks.take(header)

        def end() -> None:
            expected = self._progress.num_blocks
            chunks.end()
            self._count_misses(expected=expected)

        return Arrivals(lambda: stream, chunks.take, end, self._break)

    def _break(self, cause: grpc.RpcError | TierKVError) -> None:
        """The stream broke: what arrived is held, the rest is a miss."""
        error = self._attachment.translated(self._link, cause) if isinstance(cause, grpc.RpcError) else cause
        is_late = getattr(cause, "code", lambda: None)() is grpc.StatusCode.DEADLINE_EXCEEDED
        expected = self._progress.num_blocks
        self._progress.ended(len(self._progress.blocks), MissReason.TIMEOUT if is_late else MissReason.UNAVAILABLE)
        self._count_misses(expected=expected)
        self._attachment.counters[f"lease_cut_{type(error).__name__}"] += 1

    def _count_misses(self, *, expected: int) -> None:
        """Blocks that were asked for or promised, and are not held."""
        miss = self._progress.miss
        if miss is not None and expected > self._progress.num_blocks:
            self._attachment.counters[f"misses_{miss}"] += expected - self._progress.num_blocks
