"""A client's page lease: what was readable at once, and what a thread hears of the rest on a stream of the daemon's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import grpc

from tierkv.errors import DataError
from tierkv.model.outcomes import MissReason, TierName
from tierkv.wire import messages
from tierkv.wire._generated import tierkv_pb2 as pb

_OnShort = Callable[[int, MissReason | None], None]


class ClientPageLease:
    """`tierkv.pages.PageLease` of a daemon. left_s — seconds until the deadline of its call; on_short — how many blocks fell away, and why.

    Only ever gets shorter; whatever breaks while blocks arrive ends it where it stands, and raises nothing.
    """

    def __init__(
        self,
        pages: tuple[int, ...],
        tiers: tuple[TierName, ...],
        miss: MissReason | None,
        num_ready: int,
        *,
        left_s: Callable[[], float],
        on_short: _OnShort,
    ) -> None:
        self._pages = pages
        self._tiers = tiers
        self._miss = miss
        self._num_ready = num_ready
        self._num_blocks = len(pages)
        self._left_s = left_s
        self._on_short = on_short
        self.stop_listening: Callable[[], None] = lambda: None
        """Ends the stream that `listen` reads, from any thread."""
        self._changed = threading.Condition()

    @property
    def pages(self) -> tuple[int, ...]:
        return self._pages

    @property
    def tiers(self) -> tuple[TierName, ...]:
        return self._tiers

    @property
    def miss(self) -> MissReason | None:
        return self._miss

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_ready(self) -> int:
        return self._num_ready

    @property
    def is_settled(self) -> bool:
        with self._changed:
            return self._num_ready == self._num_blocks

    def wait(self, timeout_s: float | None = None) -> int:
        left_s = max(0.0, self._left_s())
        limit_s = left_s if timeout_s is None else min(left_s, timeout_s)
        with self._changed:
            self._changed.wait_for(lambda: self._num_ready == self._num_blocks, limit_s)
        self.cut(MissReason.TIMEOUT)
        return self._num_blocks

    def cut(self, miss: MissReason) -> None:
        """Ends the lease where it stands, and what listens for it."""
        if self._end(None, miss):
            self.stop_listening()

    def listen(self, events: Iterable[pb.AwaitPagesEvent]) -> None:
        """Takes the daemon's events until the last one; for a thread of its own."""
        miss = MissReason.UNAVAILABLE  # of a stream that breaks, or ends without having said so
        try:
            for event in events:
                self._take(event)
        except grpc.RpcError as error:
            if getattr(error, "code", lambda: None)() is grpc.StatusCode.DEADLINE_EXCEEDED:
                miss = MissReason.TIMEOUT
        except DataError:
            self.cut(miss)
        self._end(None, miss)

    def _take(self, event: pb.AwaitPagesEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "ready":
            self._advance(self._checked(event.ready.num_ready))
        elif kind == "ended":
            self._end(self._checked(event.ended.num_blocks), messages.miss_of(event.ended.miss))
        else:
            raise DataError("the daemon sent an event that this version does not know")

    def _checked(self, num_blocks: int) -> int:
        if not self._num_ready <= num_blocks <= len(self._pages):
            raise DataError(
                "the daemon's events are out of order", ready=self._num_ready, told=num_blocks, promised=len(self._pages)
            )
        return num_blocks

    def _advance(self, num_ready: int) -> None:
        with self._changed:
            if self._num_ready < self._num_blocks:
                self._num_ready = num_ready
                self._changed.notify_all()

    def _end(self, num_blocks: int | None, miss: MissReason | None) -> bool:
        """Nothing behind `num_blocks`, or behind what is ready now, arrives any more: a miss. False where the lease is settled already."""
        with self._changed:
            promised = self._num_blocks
            if self._num_ready == promised:
                return False
            if num_blocks is None:
                num_blocks = self._num_ready  # only here: an event may have come while this waited for the lock
            self._num_ready = self._num_blocks = num_blocks
            if num_blocks < promised:
                self._miss = miss or MissReason.UNAVAILABLE
            self._changed.notify_all()
        if num_blocks < promised:
            self._on_short(promised - num_blocks, self._miss)
        return True


def lease_of(reply: pb.AcquirePagesReply, *, left_s: Callable[[], float], on_short: _OnShort) -> ClientPageLease:
    """The lease of an answer. Raises DataError where its numbers do not add up."""
    tiers, num_pages = messages.tiers_of(reply.tiers), len(reply.pages)
    is_whole = reply.num_ready == num_pages
    if len(tiers) != num_pages or reply.num_ready > num_pages or is_whole != (reply.await_id == 0):
        raise DataError("the daemon's lease makes no sense", pages=num_pages, tiers=len(tiers), ready=reply.num_ready)
    miss = messages.miss_of(reply.miss)
    return ClientPageLease(tuple(reply.pages), tiers, miss, reply.num_ready, left_s=left_s, on_short=on_short)
