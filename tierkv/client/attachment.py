"""A client's attachment to a daemon: the current link, made anew when it died, guarded by the breaker and by every call's deadline."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from tierkv.client import verbs
from tierkv.client.address import Address
from tierkv.client.breaker import Breaker
from tierkv.client.link import Link
from tierkv.client.verbs import Registration
from tierkv.clock import Clock
from tierkv.errors import CapacityError, ClosedError, ConflictError, InvalidRequestError, TierKVError, UnavailableError
from tierkv.model.keys import NamespaceId
from tierkv.wire.status import error_of_rpc

T = TypeVar("T")


class Attachment:
    """Where calls go. `known` — what was registered, told again to a fresh daemon. Safe to use from several threads."""

    def __init__(self, address: Address, *, label: str, timeout_s: float, clock: Clock) -> None:
        self.counters: Counter[str] = Counter()
        self.known: dict[NamespaceId, Registration] = {}
        self.clock = clock
        self._address = address
        self._label = label
        self._timeout_s = timeout_s
        self._breaker = Breaker(clock)
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._epoch = 0
        self._pid = os.getpid()
        self._is_closed = False

    @property
    def current(self) -> Link | None:
        """The link there is, dead or alive."""
        return self._link

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that attached: channel and session are the other's."""
        return self._pid != os.getpid()

    def deadline(self, timeout_s: float | None) -> float:
        return self.clock.monotonic_s() + (self._timeout_s if timeout_s is None else timeout_s)

    def left(self, deadline_s: float) -> float:
        left_s = deadline_s - self.clock.monotonic_s()
        if left_s <= 0:
            raise UnavailableError("the deadline passed before the daemon was asked")
        return left_s

    def link(self, deadline_s: float) -> Link:
        """The living link, or a new one, for one call: UnavailableError at once while the breaker is open."""
        self.check_open()
        self._breaker.before_call()
        current = self._link
        if current is not None and current.is_alive:
            return current
        if not self._lock.acquire(timeout=self.left(deadline_s)):
            raise UnavailableError("another thread is still attaching")
        try:
            if self._is_closed:  # meanwhile: nobody would ever close a link made now
                raise ClosedError("the client is closed")
            return self._link if self._link is not None and self._link.is_alive else self._attach_anew(deadline_s)
        except UnavailableError:
            self.counters["unavailable"] += 1
            self._breaker.failed()
            raise
        finally:
            self._lock.release()

    def check_open(self) -> None:
        """Raises ClosedError for a client that is closed, or another process's."""
        if self._is_closed:
            raise ClosedError("the client is closed")
        if self.is_foreign:
            raise ClosedError("a client cannot be used after a fork; connect again in the child", opened_in=self._pid)

    def check_answering(self) -> None:
        """For a call on a link that there is: raises UnavailableError at once while the breaker is open."""
        self._breaker.before_call()

    def _attach_anew(self, deadline_s: float) -> Link:
        old, self._link = self._link, None
        if old is not None:
            old.close()
            self.counters["reattached"] += 1
        self._epoch += 1
        link = Link(self._address, label=self._label, epoch=self._epoch, left_s=lambda: self.left(deadline_s))
        try:
            for known in list(self.known.values()):
                self._register_again(link, known, deadline_s)
        except BaseException:
            link.close()
            raise
        self._breaker.succeeded()
        self._link = link
        return link

    def _register_again(self, link: Link, known: Registration, deadline_s: float) -> None:
        try:
            link.stub.Register(verbs.register_request(known), timeout=self.left(deadline_s), metadata=link.metadata)
        except grpc.RpcError as rpc_error:
            error = error_of_rpc(rpc_error)
            if not isinstance(error, InvalidRequestError | CapacityError):
                raise error from rpc_error
            # A daemon with less memory, say, has no room for this one; the others must not suffer. Its own calls will be refused.
            self.counters["register_refused"] += 1

    def guard(self, link: Link, call: Callable[[], T]) -> T:
        """Runs a call on a link; translates its error and keeps the breaker informed."""
        self.counters["calls"] += 1
        try:
            result = call()
        except grpc.RpcError as error:
            raise self.translated(link, error) from error
        except ValueError as error:
            # What gRPC says of a channel that another thread closed, as `close` and attaching anew do.
            if link.is_alive or isinstance(error, TierKVError):
                raise
            kind = ClosedError if self._is_closed else UnavailableError
            raise kind("the attachment was closed during the call") from error
        self._breaker.succeeded()
        return result

    def translated(self, link: Link, rpc_error: grpc.RpcError) -> TierKVError:
        """The error that a call on `link` ended with; the breaker hears of it, and so does the link if its session is gone."""
        error = error_of_rpc(rpc_error)
        if isinstance(error, UnavailableError):
            self.counters["unavailable"] += 1
            self._breaker.failed()
        else:
            self._breaker.succeeded()
        if isinstance(error, ClosedError):
            link.mark_dead()
        return error

    def with_link(self, deadline_s: float, use: Callable[[Link], T]) -> T:
        """`use(link)`; once more on a new link where the daemon does not know the session (any more), under the same deadline."""
        link = self.link(deadline_s)
        try:
            return use(link)
        except ClosedError:
            return use(self.link(deadline_s))

    def call(self, name: str, request: object, timeout_s: float | None) -> Any:
        """One unary call that needs nothing of an earlier session."""
        deadline_s = self.deadline(timeout_s)
        return self.with_link(deadline_s, lambda link: self.call_on(link, name, request, deadline_s))

    def call_on(self, link: Link, name: str, request: object, deadline_s: float) -> Any:
        method = getattr(link.stub, name)
        return self.guard(link, lambda: method(request, timeout=self.left(deadline_s), metadata=link.metadata))

    def call_in(self, epoch: int, name: str, request: object, deadline_s: float) -> Any:
        """One unary call about something that belongs to session `epoch`. Raises ConflictError where that session is gone."""
        link = self.link(deadline_s)
        if link.epoch != epoch:
            raise ConflictError("the daemon was attached to again since; this reservation is gone, reserve again")
        try:
            return self.call_on(link, name, request, deadline_s)
        except ClosedError as error:
            if self._is_closed:
                raise
            raise ConflictError("the daemon has ended the session; this reservation is gone, reserve again") from error

    def close(self) -> bool:
        """Ends the session; False if that was done before, or belongs to another process."""
        if self._is_closed:
            return False
        self._is_closed = True
        if self.is_foreign:
            return False
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()
        return True
