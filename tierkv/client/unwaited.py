"""Calls that nobody waits for: what they were to return comes back with the session, or with the pool's connection, if they fail."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from tierkv.client.link import Link

_TIMEOUT_S = 5.0


class UnwaitedCalls:
    """Sent and forgotten; failures are counted as `release_failures`. Safe to use from several threads.

    timeout_s — of each; None for calls that nothing else makes good, which end with the link then.
    """

    def __init__(self, counters: Counter[str], *, timeout_s: float | None = _TIMEOUT_S) -> None:
        self._counters = counters
        self._timeout_s = timeout_s
        self._calls: set[Any] = set()
        self._ending = threading.Condition()

    def __len__(self) -> int:
        return len(self._calls)

    def send(self, link: Link, name: str, request: object) -> None:
        """Sends one unary call on the link's session; does not block."""
        method = getattr(link.stub, name)
        try:
            call = method.future(request, timeout=self._timeout_s, metadata=link.metadata)
        except ValueError:  # another thread has closed the channel, and the session with it
            return
        with self._ending:
            self._calls.add(call)
        call.add_done_callback(self._ended)

    def _ended(self, call: Any) -> None:
        with self._ending:
            self._calls.discard(call)
            self._ending.notify_all()
        if call.cancelled() or call.exception() is not None:
            self._counters["release_failures"] += 1

    def wait(self, timeout_s: float) -> None:
        """Blocks until what has been sent so far is done, or `timeout_s` has passed: for a call that must not overtake it."""
        if self._calls:
            with self._ending:
                sent = set(self._calls)
                self._ending.wait_for(lambda: sent.isdisjoint(self._calls), timeout_s)

    def cancel(self) -> None:
        """The daemon takes back with the session what the calls under way would have released."""
        for call in list(self._calls):
            call.cancel()
