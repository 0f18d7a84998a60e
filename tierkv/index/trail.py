"""The trail: a bounded memory of what happened to blocks and why, for whoever asks "why did I miss?".

Whoever decides over blocks notes it here, once a call and not once a block. Reading is left to `tierkv.observe.explain`. Invariants: at most
`events` events and `keys` keys are remembered, the oldest go first; a note costs what copying a list of references costs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from tierkv.clock import Clock
from tierkv.model.keys import KEY_BYTES, BlockKey, NamespaceId
from tierkv.model.outcomes import MissReason, TierName


class What(StrEnum):
    """What happened to the blocks of an event."""

    SAVED = "saved"
    HIT = "hit"
    MISSED = "missed"
    EVICTED = "evicted"
    DEMOTED = "demoted"
    PROMOTED = "promoted"
    STAGED = "staged"
    """A page of a device was copied to the host tier, on its way to the disk."""
    DEMOTION_CANCELLED = "demotion_cancelled"
    REFUSED = "refused"
    """No room was found."""
    PASSED_BY = "passed_by"
    """Beyond what one request may add to a full tier."""
    LOST = "lost"
    """The bytes did not match their checksum."""
    DELETED = "deleted"
    PINNED = "pinned"
    ADVISED = "advised"
    RECOVERED = "recovered"
    EXPIRED = "expired"
    """A lease or a reservation was not ended by its holder in time."""


class TrailEvent(NamedTuple):
    """One event. at_ns — wall-clock time; tier — where it happened; request, namespace — whose call it was; miss — of MISSED."""

    at_ns: int
    what: What
    keys: tuple[BlockKey, ...]
    why: str
    tier: TierName | None
    request: str
    namespace: NamespaceId | None
    miss: MissReason | None
    session: bytes | None = None
    """Whose request it was: the same id in another session is another request."""


class Trail:
    """The ring. `note` is called under the store's lock, which is the `lock` that reading takes."""

    def __init__(self, *, events: int, keys: int, clock: Clock, lock: threading.RLock) -> None:
        """events, keys — how many are remembered at most; 0 of either: nothing is."""
        self._events_limit = events
        self._keys_limit = keys
        self._clock = clock
        self._lock = lock
        self._is_on = events > 0 and keys > 0
        self._ring: deque[TrailEvent] = deque()
        self._num_keys = 0

    def note(
        self,
        what: What,
        keys: Sequence[BlockKey],
        why: str = "",
        *,
        tier: TierName | None = None,
        request: str = "",
        namespace: NamespaceId | None = None,
        miss: MissReason | None = None,
        session: bytes | None = None,
    ) -> None:
        """Remembers an event of all `keys`; one without keys is none. Lock held. Of more keys than fit alone, the leading ones stay."""
        if not self._is_on or not keys:
            return
        # A tuple: the garbage collector looks once at one that holds nothing but bytes, and then never again.
        held = tuple(keys[: self._keys_limit]) if len(keys) > self._keys_limit else tuple(keys)
        self._ring.append(TrailEvent(self._clock.now_ns(), what, held, why, tier, request, namespace, miss, session))
        self._num_keys += len(held)
        while self._num_keys > self._keys_limit or len(self._ring) > self._events_limit:
            self._num_keys -= len(self._ring.popleft().keys)

    def size(self) -> tuple[int, int]:
        """Events and keys that are remembered now."""
        with self._lock:
            return len(self._ring), self._num_keys

    def events(self) -> list[TrailEvent]:
        """Everything that is remembered, oldest first. Holds the lock for the copy of the ring only."""
        with self._lock:
            return list(self._ring)

    def check_integrity(self) -> None:
        assert self._num_keys == sum(len(event.keys) for event in self._ring)
        assert len(self._ring) <= self._events_limit
        assert self._num_keys <= self._keys_limit


def events_of_key(events: Sequence[TrailEvent], prefix: bytes) -> list[TrailEvent]:
    """Those of `events` with a key that begins with `prefix`. A full trail takes tens of milliseconds, for an abbreviated key hundreds."""
    if len(prefix) == KEY_BYTES:  # comparing whole keys is what tuples do best
        return [event for event in events if prefix in event.keys]
    return [event for event in events if any(key.startswith(prefix) for key in event.keys)]
