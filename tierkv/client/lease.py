"""A client's lease: the blocks that were readable at once, and those that arrive on a stream of the daemon's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from tierkv.client.link import Link
from tierkv.client.progress import LeaseProgress
from tierkv.clock import Clock
from tierkv.errors import ClosedError, TierKVError, UnavailableError
from tierkv.interface import ReadyRun
from tierkv.model.outcomes import MissReason, TierName


class Arrivals:
    """What is still to come of a lease: one stream of the daemon's, opened when the first block is asked for. A break ends the lease.

    take — one event to the run it completes, if any; end — called when the stream is over; on_break — told of a broken stream.
    """

    def __init__(
        self,
        open_stream: Callable[[], Any],
        take: Callable[[Any], ReadyRun | None],
        end: Callable[[], None],
        on_break: Callable[[grpc.RpcError | TierKVError], None],
    ) -> None:
        self._open_stream = open_stream
        self._take = take
        self._end = end
        self._on_break = on_break
        self._stream: Any = None

    def runs(self) -> Iterator[ReadyRun]:
        try:
            if self._stream is None:
                self._stream = self._open_stream()
            for event in self._stream:
                run = self._take(event)
                if run is not None:
                    yield run
        except (grpc.RpcError, UnavailableError, ClosedError) as error:  # the last two where the link was closed meanwhile
            self._on_break(error)
        self._end()

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()


class ClientLease:
    """A lease of a daemon's blocks: those that were readable at once, and those that arrive."""

    def __init__(self, link: Link, progress: LeaseProgress, arrivals: Arrivals, *, expires_at_s: float, clock: Clock) -> None:
        self.link = link
        self.progress = progress
        self.is_released = False
        self._first = ReadyRun(0, tuple(progress.blocks))
        self._arrivals = arrivals
        self._expires_at_s = expires_at_s
        self._clock = clock

    @property
    def num_blocks(self) -> int:
        return self.progress.num_blocks

    @property
    def tiers(self) -> tuple[TierName, ...]:
        return self.progress.tiers

    @property
    def miss(self) -> MissReason | None:
        return self.progress.miss

    @property
    def is_valid(self) -> bool:
        return not self.is_released and self.link.is_alive and self._clock.monotonic_s() < self._expires_at_s

    def runs(self) -> Iterator[ReadyRun]:
        if self._first.blocks:
            yield self._first
        if not self.progress.is_complete:
            yield from self._arrivals.runs()

    def blocks(self) -> tuple[memoryview, ...]:
        if not self.progress.is_complete:
            for _ in self._arrivals.runs():
                pass
        return tuple(self.progress.blocks[: self.progress.num_blocks])

    def stop_reading(self) -> None:
        """No more blocks are wanted."""
        if not self.progress.is_complete:
            self._arrivals.cancel()
