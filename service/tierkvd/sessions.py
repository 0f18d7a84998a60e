"""Sessions as the daemon sees them: one-time attach secrets, and which open session shares memory with us.

What a session holds is the store's matter; this table only says whether a secret may open one, and what kind it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tierkv.answers import PageAcquisition
from tierkv.clock import Clock
from tierkv.errors import CapacityError, ClosedError
from tierkv.store import Acquisition, SessionId, TieredStore
from tierkv.wire.limits import SECRET_BYTES

ATTACH_SECRET_TTL_S = 10.0
UNUSED_SECRETS_LIMIT = 256
AWAITED_LIMIT = 1_024
"""Leases of one session that wait for an Await; a client awaits a lease at once or never."""
CLOSING_POLL_S = 0.02


@dataclass(slots=True)
class SessionHandle:
    """An attached client. closing — set when the daemon stops; num_streams — Put and Get calls under way; pool_id — of the page pool
    that it maps, if any.
    """

    session: SessionId
    shares_memory: bool
    closing: asyncio.Event
    is_open: bool = True
    num_streams: int = 0
    pool_id: int | None = None
    _awaited: dict[int, Acquisition] = field(default_factory=dict)
    _awaited_pages: dict[int, PageAcquisition] = field(default_factory=dict)
    _next_await_id: int = 1

    def check_open(self) -> None:
        """Raises ClosedError once the session has ended: what it held may be somebody else's by now."""
        if not self.is_open:
            raise ClosedError("this session is not open; attach again")

    @contextlib.contextmanager
    def streaming(self) -> Iterator[None]:
        """Counts a stream for as long as it runs."""
        self.num_streams += 1
        try:
            yield
        finally:
            self.num_streams -= 1

    def remember(self, acquired: Acquisition) -> None:
        """Keeps a lease whose blocks are still on their way for Await. Of too many that nobody awaits, the oldest is dropped."""
        if len(self._awaited) >= AWAITED_LIMIT:
            del self._awaited[next(iter(self._awaited))]
        self._awaited[acquired.lease_id] = acquired

    def recall(self, lease_id: int) -> Acquisition | None:
        """What was kept for a lease, once."""
        return self._awaited.pop(lease_id, None)

    def remember_pages(self, acquired: PageAcquisition) -> int:
        """Keeps an acquisition whose pages are still being filled for AwaitPages, which finds it by the number returned."""
        if len(self._awaited_pages) >= AWAITED_LIMIT:
            del self._awaited_pages[next(iter(self._awaited_pages))]
        await_id, self._next_await_id = self._next_await_id, self._next_await_id + 1
        self._awaited_pages[await_id] = acquired
        return await_id

    def recall_pages(self, await_id: int) -> PageAcquisition | None:
        """What was kept under a number, once."""
        return self._awaited_pages.pop(await_id, None)

    def lose_pool(self) -> None:
        """The client maps no pool any more; what was acquired of it is nobody's to await."""
        self.pool_id = None
        self._awaited_pages.clear()


class Sessions:
    """Used on the event loop only."""

    def __init__(self, store: TieredStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._unused: dict[bytes, float] = {}
        self._open: dict[bytes, SessionHandle] = {}

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
        session.is_open = False
        if self._open.pop(session.session, None) is not None and not session.closing.is_set():
            self._store.close_session(session.session)

    def announce_stop(self) -> None:
        """Tells every client that the daemon is stopping."""
        for session in self._open.values():
            session.closing.set()

    async def finish(self, session: SessionHandle, timeout_s: float) -> None:
        """Waits until a client has committed what it reserved and its streams are over, at most `timeout_s`."""

        def is_busy() -> bool:
            return session.num_streams > 0 or self._store.has_reservations(session.session)

        await _poll_until(lambda: not is_busy(), timeout_s)

    async def wait_closed(self, timeout_s: float) -> None:
        """Waits until no session is open, at most `timeout_s`."""
        await _poll_until(lambda: not self._open, timeout_s)


async def _poll_until(condition: Callable[[], bool], timeout_s: float) -> None:
    # Commits come through the store, from any thread; there is nothing to be woken by.
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    while not condition() and loop.time() < until_s:  # noqa: ASYNC110 - see above
        await asyncio.sleep(CLOSING_POLL_S)
