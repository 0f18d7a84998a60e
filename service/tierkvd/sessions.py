"""Sessions as the daemon sees them: one-time attach secrets, and which open session shares memory with us.

What a session holds is the store's matter; this table only says whether a secret may open one, and what kind it is.
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass, field

from tierkv.clock import Clock
from tierkv.errors import CapacityError, ClosedError
from tierkv.store import Acquisition, SessionId, TieredStore
from tierkv.wire.limits import SECRET_BYTES

ATTACH_SECRET_TTL_S = 10.0
UNUSED_SECRETS_LIMIT = 256


@dataclass(slots=True)
class SessionHandle:
    """An attached client. closing — set when the daemon stops; awaited — leases whose blocks are still on their way, by id."""

    session: SessionId
    shares_memory: bool
    closing: asyncio.Event
    awaited: dict[int, Acquisition] = field(default_factory=dict)


class Sessions:
    """Used on the event loop only."""

    def __init__(self, store: TieredStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._unused: dict[bytes, float] = {}
        self._open: dict[bytes, SessionHandle] = {}
        self._reason = ""

    def new_attach_secret(self) -> bytes:
        """A secret that opens one session within 10 s. Raises CapacityError when too many wait."""
        now_s = self._clock.monotonic_s()
        self._unused = {secret: expires_s for secret, expires_s in self._unused.items() if expires_s > now_s}
        if len(self._unused) >= UNUSED_SECRETS_LIMIT:
            raise CapacityError("too many clients attach at once; try again", limit=UNUSED_SECRETS_LIMIT)
        secret = self._clock.random_bytes(SECRET_BYTES)
        self._unused[secret] = now_s + ATTACH_SECRET_TTL_S
        return secret

    def open(self, label: str, attach_secret: bytes) -> SessionHandle:
        """Opens a session; with an attach secret it shares memory. Raises ClosedError for a secret that is used up or wrong."""
        if attach_secret:
            known = next((secret for secret in self._unused if hmac.compare_digest(secret, attach_secret)), None)
            if known is None or self._unused.pop(known) <= self._clock.monotonic_s():
                raise ClosedError("this attach secret is not valid (any more); attach again")
        session = SessionHandle(self._store.open_session(label), bool(attach_secret), asyncio.Event())
        self._open[session.session] = session
        return session

    def get(self, secret: bytes) -> SessionHandle:
        """Raises ClosedError for a secret that no open session has."""
        session = self._open.get(secret)
        if session is None:
            raise ClosedError("this session is not open; attach again")
        return session

    def close(self, session: SessionHandle) -> None:
        """Releases everything it held; at a stop that is the store's part, which then keeps in mind who may still be writing."""
        if self._open.pop(session.session, None) is not None and not session.closing.is_set():
            self._store.close_session(session.session)

    def announce_stop(self) -> None:
        """Tells every client that the daemon is stopping."""
        for session in self._open.values():
            session.closing.set()
