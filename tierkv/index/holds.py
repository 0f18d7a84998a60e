"""Who holds on to blocks: sessions, their leases and their reservations, each with an expiry and a bound.

Pure bookkeeping; what a lease or reservation means for the blocks is the store's matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NewType, Protocol, TypeVar

from tierkv.errors import CapacityError, ClosedError
from tierkv.index.entry import BlockEntry
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey

SessionId = NewType("SessionId", bytes)


@dataclass(slots=True)
class Lease:
    """Pins on `entries`, counted once each, until `expires_at_s`. request_id — of the call that took it, or empty."""

    lease_id: int
    session: SessionId
    entries: list[BlockEntry]
    expires_at_s: float
    request_id: str = ""

    @property
    def hold_id(self) -> int:
        return self.lease_id


@dataclass(slots=True)
class Reservation:
    """Extents that a client may still write: `granted` waits for commit or abort.

    After expiry commits conflict, but the client may still be writing through its map; so the extents of a living session stay
    out of circulation for as long again (`is_expired`), and return at once when the session ends or aborts.
    """

    reservation_id: int
    session: SessionId
    granted: dict[BlockKey, BlockEntry]
    expires_at_s: float
    committed: set[BlockKey] = field(default_factory=set)
    is_expired: bool = False
    hints: Hints = NO_HINTS
    """What its call said of the blocks; for their commit."""

    @property
    def hold_id(self) -> int:
        return self.reservation_id


class Hold(Protocol):
    """What a table of holds needs to know of one."""

    session: SessionId
    expires_at_s: float

    @property
    def hold_id(self) -> int: ...


H = TypeVar("H", bound=Hold)


class HoldTable(Generic[H]):
    """Holds by id and by session, bounded."""

    def __init__(self, *, limit: int, noun: str) -> None:
        self._limit = limit
        self._noun = noun
        self._holds: dict[int, H] = {}
        self._by_session: dict[SessionId, set[int]] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[H]:
        return iter(self._holds.values())

    def next_id(self) -> int:
        """An id for a new hold. Raises CapacityError when the table is full."""
        if len(self._holds) >= self._limit:
            raise CapacityError(f"the table of {self._noun}s is full; release some or wait for their expiry", limit=self._limit)
        self._next_id += 1
        return self._next_id

    def add(self, hold: H) -> None:
        self._holds[hold.hold_id] = hold
        self._by_session.setdefault(hold.session, set()).add(hold.hold_id)

    def get(self, hold_id: int, session: SessionId) -> H | None:
        """The hold, if it exists and is this session's."""
        hold = self._holds.get(hold_id)
        return hold if hold is not None and hold.session == session else None

    def remove(self, hold: H) -> None:
        self._holds.pop(hold.hold_id, None)
        ids = self._by_session.get(hold.session)
        if ids is not None:
            ids.discard(hold.hold_id)
            if not ids:
                del self._by_session[hold.session]

    def of_session(self, session: SessionId) -> list[H]:
        return [self._holds[hold_id] for hold_id in self._by_session.get(session, ())]

    def expired(self, now_s: float) -> list[H]:
        return [hold for hold in self._holds.values() if hold.expires_at_s <= now_s]


class SessionTable:
    """The attached clients, bounded."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._labels: dict[SessionId, str] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def all(self) -> list[SessionId]:
        return list(self._labels)

    def open(self, session: SessionId, label: str) -> None:
        if len(self._labels) >= self._limit:
            raise CapacityError("too many sessions; end one", limit=self._limit)
        self._labels[session] = label

    def close(self, session: SessionId) -> bool:
        return self._labels.pop(session, None) is not None

    def check(self, session: SessionId) -> None:
        """Raises ClosedError for a session that is not open."""
        if session not in self._labels:
            raise ClosedError("this session is not open; attach again", session=session[:4])
