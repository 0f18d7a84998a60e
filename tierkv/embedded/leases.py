"""What the verbs of an embedded store answer: granted buffers, pinned blocks, pages. Blocks and pages are looked at in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError

from tierkv.answers import Acquisition, PageAcquisition
from tierkv.clock import Clock
from tierkv.errors import InvalidRequestError
from tierkv.interface import Grant, ReadyRun, Reservation
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import MissReason, ReserveOutcome, TierName
from tierkv.store import SessionId, TieredStore


class EmbeddedReservation:
    """Granted buffers of this process's arena."""

    def __init__(self, grants: tuple[Grant, ...], reservation_id: int) -> None:
        self.grants = grants
        self.reservation_id = reservation_id
        self.open_keys = {grant.key: None for grant in grants if grant.outcome is ReserveOutcome.GRANTED}

    def close(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self.open_keys.pop(key, None)


def own_reservation(reservation: Reservation) -> EmbeddedReservation:
    if not isinstance(reservation, EmbeddedReservation):
        raise InvalidRequestError("this reservation was not given by this store", reservation=type(reservation).__name__)
    return reservation


class EmbeddedLease:
    """Pinned blocks of this process's arena."""

    def __init__(
        self,
        store: TieredStore,
        session: SessionId,
        acquired: Acquisition,
        *,
        block_bytes: int,
        clock: Clock,
        asked_at_s: float,
        timeout_s: float,
    ) -> None:
        self.lease_id = acquired.lease_id
        self._store = store
        self._session = session
        self._clock = clock
        self._acquired = acquired
        self._block_bytes = block_bytes
        self._deadline_s = asked_at_s + timeout_s
        self._expires_at_s = asked_at_s + acquired.expires_in_s  # not from now on: the store's clock runs since it was asked
        self._num_blocks = len(acquired.tiers)
        self._miss = acquired.miss
        self._blocks: tuple[memoryview, ...] | None = None
        self.is_released = False

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def tiers(self) -> tuple[TierName, ...]:
        return self._acquired.tiers[: self._num_blocks]

    @property
    def miss(self) -> MissReason | None:
        return self._miss

    @property
    def is_valid(self) -> bool:
        return not self.is_released and not self._store.is_closing and self._clock.monotonic_s() < self._expires_at_s

    def runs(self) -> Iterator[ReadyRun]:
        done = 0
        for run in self._acquired.pending:
            if run.start_idx > done:
                yield self._ready(done, run.start_idx)
            try:
                result = run.done.result(max(0.0, self._deadline_s - self._clock.monotonic_s()))
                num_ready, miss = result.num_blocks, result.miss
            except FutureTimeoutError:
                num_ready, miss = 0, MissReason.TIMEOUT
                self._store.note_timeout(self._session, self.lease_id, run.start_idx)
            done = run.start_idx + num_ready
            if num_ready:
                yield self._ready(run.start_idx, done)
            if num_ready < run.num_blocks:
                self._num_blocks, self._miss = done, miss
                return
        if done < self._num_blocks:
            yield self._ready(done, self._num_blocks)

    def blocks(self) -> tuple[memoryview, ...]:
        if self._blocks is None:
            self._blocks = tuple(block for run in self.runs() for block in run.blocks)
        return self._blocks

    def _ready(self, start_idx: int, stop_idx: int) -> ReadyRun:
        extents = self._acquired.extents[start_idx:stop_idx]
        return ReadyRun(start_idx, tuple(self._store.view(extent)[: self._block_bytes].toreadonly() for extent in extents))


class EmbeddedPageLease:
    """Pages of this process's pool. A copy that fails ends it, and so does a deadline that passes while somebody waits."""

    def __init__(self, acquired: PageAcquisition, *, clock: Clock, deadline_s: float) -> None:
        self.pages = acquired.pages
        self.tiers = acquired.tiers
        self._pending = acquired.pending
        self._miss = acquired.miss
        self._clock = clock
        self._deadline_s = deadline_s
        self._limit = len(acquired.pages)

    @property
    def miss(self) -> MissReason | None:
        self._look()
        return self._miss

    @property
    def num_blocks(self) -> int:
        self._look()
        return self._limit

    @property
    def num_ready(self) -> int:
        self._look()
        return min(self._limit, self._pending[0].start_idx) if self._pending else self._limit

    @property
    def is_settled(self) -> bool:
        self._look()
        return not self._pending

    def wait(self, timeout_s: float | None = None) -> int:
        until_s = self._deadline_s if timeout_s is None else min(self._deadline_s, self._clock.monotonic_s() + timeout_s)
        while self._pending:
            run = self._pending[0]
            try:
                run.done.result(max(0.0, until_s - self._clock.monotonic_s()))
            except FutureTimeoutError:
                self._end(run.start_idx, MissReason.TIMEOUT)
            self._look()
        return self._limit

    def _look(self) -> None:
        """Takes note of the runs that are over, in order."""
        while self._pending and self._pending[0].done.done():
            run, result = self._pending[0], self._pending[0].done.result()
            self._pending = self._pending[1:]
            if result.num_blocks < run.num_blocks:
                self._end(run.start_idx + result.num_blocks, result.miss)

    def _end(self, num_blocks: int, miss: MissReason | None) -> None:
        self._pending = ()
        self._limit, self._miss = num_blocks, miss
