"""The inference boundary: token ids in, leased blocks out, and no bad luck ever reaches the engine.

What it leaves to others: what the bytes of a block mean, and where they go.

Invariants: `load` and `save` never raise for anything the store does; a daemon that is away, slow, full or wrong is a counted miss or
a skipped save, and the engine computes. What was copied out of a lease is believed only if the lease is still valid after the copy,
so a process that was stopped meanwhile cannot take another block's bytes for its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from tierkv.errors import InvalidRequestError, TierKVError
from tierkv.interface import BlockStore, Lease, ReadyRun, Reservation
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import ReserveOutcome, TierName

TokenIds = Sequence[int] | npt.NDArray[np.integer]
FillBlock = Callable[[int, memoryview], None]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PrefixCounters:
    """What happened at the boundary so far. Blocks where the name says so, calls otherwise."""

    loads: int = 0
    hits: int = 0
    misses: int = 0
    loaded_blocks: int = 0
    load_errors: int = 0
    saves: int = 0
    saved_blocks: int = 0
    present_blocks: int = 0
    refused_blocks: int = 0
    save_errors: int = 0
    invalid_requests: int = 0


class LoadedPrefix:
    """Leading blocks of a sequence, pinned until `release`; a context manager. Reading stays valid while `is_valid()`."""

    def __init__(self, cache: PrefixCache, lease: Lease) -> None:
        self._cache = cache
        self._lease = lease
        self._released = False

    @property
    def num_blocks(self) -> int:
        """Blocks held; may shrink until `runs()` is exhausted."""
        return self._lease.num_blocks

    @property
    def tiers(self) -> tuple[TierName, ...]:
        """Where each block was found."""
        return self._lease.tiers[: self._lease.num_blocks]

    def runs(self) -> Iterator[ReadyRun]:
        """Blocks in order as they become readable; ends early, and never raises, when the store fails. Iterate once."""
        try:
            yield from self._lease.runs()
        except TierKVError as error:
            self._cache.failed(error, "load")

    def is_valid(self) -> bool:
        """Whether everything read until now was still pinned; ask after the last read, before the bytes are believed."""
        return not self._released and self._lease.is_valid

    def release(self) -> None:
        """Ends the lease. May be called twice."""
        if self._released:
            return
        self._released = True
        try:
            self._cache.store.release(self._lease)
        except TierKVError as error:
            self._cache.failed(error, "load")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class PrefixCache:
    """Loads and saves the block prefix of token sequences of one model.

    store — an embedded store or a client; borrowed. identity, layout — of the namespace; it is registered on first use, and again
    when the store no longer knows it. timeout_s — bound of each call to the store, None for the store's own.
    """

    def __init__(
        self,
        store: BlockStore,
        identity: Identity,
        layout: Layout,
        *,
        timeout_s: float | None = None,
        counters: PrefixCounters | None = None,
    ) -> None:
        self.store = store
        self.identity = identity
        self.layout = layout
        self.namespace_id = identity.fingerprint(layout)
        self.counters = counters or PrefixCounters()
        self._timeout_s = timeout_s
        self._registered = False
        self._reported: set[str] = set()

    def keys(self, token_ids: TokenIds) -> list[BlockKey]:
        """Keys of the full blocks of `token_ids`, head first."""
        return chain_keys(self.namespace_id, token_ids, block_tokens=self.layout.block_tokens)

    def load(self, token_ids: TokenIds, *, hints: Hints = NO_HINTS) -> LoadedPrefix | None:
        """Pins the longest resident prefix of `token_ids`; None when nothing is held. The caller releases what it gets.

        hints — its request id makes this load and the saves that carry it one access to each block.
        """
        self.counters.loads += 1
        keys = self.keys(token_ids)
        lease = self._acquire(keys, hints) if keys else None
        if lease is None or lease.num_blocks == 0:
            self.counters.misses += 1
            if lease is not None:
                LoadedPrefix(self, lease).release()
            return None
        self.counters.hits += 1
        self.counters.loaded_blocks += lease.num_blocks
        return LoadedPrefix(self, lease)

    def save(self, token_ids: TokenIds, start_block: int, fill: FillBlock, *, hints: Hints = NO_HINTS) -> int:
        """Saves the full blocks from `start_block` on that the store lacks; returns how many were committed.

        fill — called with the block's index and its buffer of `layout.block_bytes` bytes, writable until it returns. What it raises
        is raised, after the reservation was returned.
        """
        keys = self.keys(token_ids)
        if start_block >= len(keys):
            return 0
        self.counters.saves += 1
        try:
            return self._save(keys, start_block, fill, hints)
        except TierKVError as error:
            self.failed(error, "save")
            return 0

    def failed(self, error: TierKVError, verb: str) -> None:
        """Counts an error of the store; our own mistakes are also logged, each once."""
        if verb == "load":
            self.counters.load_errors += 1
        else:
            self.counters.save_errors += 1
        if isinstance(error, InvalidRequestError):
            # A store that was emptied no longer knows the namespace: register again with the next call.
            self._registered = False
            self.counters.invalid_requests += 1
            if error.message not in self._reported:
                self._reported.add(error.message)
                _log.warning("the store refused a %s, the engine computes instead: %s", verb, error)
        else:
            _log.debug("a %s failed, the engine computes instead: %s", verb, error)

    def _acquire(self, keys: list[BlockKey], hints: Hints) -> Lease | None:
        try:
            self._register()
            return self.store.acquire(self.namespace_id, keys, hints=hints, timeout_s=self._timeout_s)
        except TierKVError as error:
            self.failed(error, "load")
            return None

    def _save(self, keys: list[BlockKey], start_block: int, fill: FillBlock, hints: Hints) -> int:
        self._register()
        parent = keys[start_block - 1] if start_block else None
        reservation = self.store.reserve(
            self.namespace_id, keys[start_block:], parent=parent, hints=hints, timeout_s=self._timeout_s
        )
        saved = 0
        try:
            for block_idx, grant in enumerate(reservation.grants, start=start_block):
                self._count(grant.outcome)
                if grant.outcome is ReserveOutcome.GRANTED and grant.buffer is not None:
                    fill(block_idx, grant.buffer)
                    saved += 1
            if saved:
                self.store.commit(reservation, timeout_s=self._timeout_s)
        except BaseException:
            self._abort(reservation)
            raise
        self.counters.saved_blocks += saved
        return saved

    def _abort(self, reservation: Reservation) -> None:
        try:
            self.store.abort(reservation, timeout_s=self._timeout_s)
        except TierKVError as error:
            _log.debug("an abort failed; the reservation expires by itself: %s", error)

    def _count(self, outcome: ReserveOutcome) -> None:
        if outcome is ReserveOutcome.REFUSED:
            self.counters.refused_blocks += 1
        elif outcome is not ReserveOutcome.GRANTED:
            self.counters.present_blocks += 1

    def _register(self) -> None:
        if not self._registered:
            self.store.register(self.identity, self.layout, timeout_s=self._timeout_s)
            self._registered = True
