"""Hints that an agent framework would give, told from a trace that names its sessions.

`closed`: after a session's last request it says of each of its chains that the conversation is over. `idle`: after any other
request it says how long the session will be idle. Both speak of the part of a chain that no other chain and no other session
shares, as in `tierkv.placement.advice`.

An oracle knows the idle time exactly, where a framework guesses: its gain is a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from tierkv.errors import InvalidRequestError
from tierkv.policies.expiry import unshared_tail
from tierkv.simulator.cache import TierCache
from tierkv.simulator.trace import Trace

_SHARED = -1


class HintKind(StrEnum):
    """Which hints are given."""

    CLOSED = "closed"
    IDLE = "idle"
    ALL = "all"


class SessionOracle:
    """Gives hints to a TierCache, after each request of one replay. O(blocks of the request) each."""

    def __init__(self, trace: Trace, kind: HintKind) -> None:
        """InvalidRequestError where the trace names no sessions."""
        if trace.num_sessions == 0:
            raise InvalidRequestError("hints are told from sessions, and the trace names none", trace=trace.name)
        self._trace = trace
        self._says_closed = kind in {HintKind.CLOSED, HintKind.ALL}
        self._says_idle = kind in {HintKind.IDLE, HintKind.ALL}
        self._next_request = next_requests([None if request.is_save else request.session for request in trace.requests])
        self._users: dict[int, int] = {}
        """Block → the session that used it, _SHARED where there were several."""
        self._chains: dict[int, dict[int, Sequence[int]]] = {}
        """Session → its chains, each by its last block."""

    def after(self, idx: int, cache: TierCache) -> None:
        """What the framework says once request `idx` is served."""
        request = self._trace.requests[idx]
        keys = request.keys[: request.num_full]
        if request.session is None or not keys or request.is_save:
            return
        for key in keys:
            if self._users.setdefault(key, request.session) != request.session:
                self._users[key] = _SHARED
        chains = self._chains.setdefault(request.session, {})
        if self._says_closed:
            for last in chains.keys() & set(keys):
                del chains[last]
            chains[keys[-1]] = keys
        next_idx = self._next_request[idx]
        if next_idx is None and self._says_closed:
            for chain in self._chains.pop(request.session).values():
                self._expire(chain, cache, idle_requests=None)
        elif next_idx is not None and self._says_idle:
            self._expire(keys, cache, idle_requests=next_idx - idx, num_requests=idx + 1)

    def _expire(self, keys: Sequence[int], cache: TierCache, idle_requests: int | None, num_requests: int = 0) -> None:
        held = keys[: cache.num_held(keys)]
        tail = unshared_tail(cache.chains, held, cache.__contains__, lambda key: self._users[key] == _SHARED)
        for tier in cache.tiers:
            # A policy's time counts events, of which a request may be two.
            in_events = None if idle_requests is None else idle_requests * tier.state().events // num_requests
            tier.expect([key for key in tail if key in tier], in_events)


def next_requests(sessions: Sequence[int | None]) -> list[int | None]:
    """For each request the next one of its session; None where there is none."""
    following: list[int | None] = [None] * len(sessions)
    nearest: dict[int | None, int] = {}
    for idx in range(len(sessions) - 1, -1, -1):
        following[idx] = nearest.get(sessions[idx])
        nearest[sessions[idx]] = idx
    return following
