"""What calls of one request have done already, so that together they are one access to each block and share one part of a full tier.

A request is named by its session and the id that its calls carry. The table is bounded: the request not heard of for longest is
forgotten, and its next call then counts anew. Called with the store's lock held.

A chain that was accessed is kept as its last key and its length, because that key names all before it: remembering a request costs
the same for one block and for a thousand.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tierkv.index.holds import SessionId
from tierkv.model.keys import BlockKey

_CHAINS_PER_REQUEST = 64
"""Chains remembered of one request (a batch has one a row); the oldest is forgotten."""


@dataclass(slots=True)
class _Request:
    """chains — last key → number of keys that end with it and have been accessed; spent — weight added to the host tier."""

    chains: dict[BlockKey, int] = field(default_factory=dict)
    spent: int = 0


class RequestTable:
    """The requests heard of lately. Calls without a request id are not remembered: each is a request of its own.

    limit — requests remembered. parent_of — the key before a known key, None where it has none or is not known.
    """

    def __init__(self, *, limit: int, parent_of: Callable[[BlockKey], BlockKey | None]) -> None:
        self._limit = limit
        self._parent_of = parent_of
        self._requests: OrderedDict[tuple[SessionId, str], _Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def first_accesses(self, session: SessionId, request_id: str, keys: Sequence[BlockKey]) -> Sequence[BlockKey]:
        """The keys that the request accesses for the first time, in their order; from now on it has accessed all of them.

        keys — consecutive keys of one chain, head first. Cost: O(1) for a new request and for one that has accessed one chain and
        comes back with the same or a longer one; otherwise O(n) for each chain it has accessed.
        """
        if not request_id or not keys:
            return keys
        chains = self._named(session, request_id).chains
        known = next((count for tail, count in chains.items() if len(keys) >= count and keys[count - 1] == tail), 0)
        above = self._parent_of(keys[0]) if known == 0 else None
        joined = 0 if above is None else chains.pop(above, 0)
        if known:
            del chains[keys[known - 1]]
        first = self._not_in(chains, keys[known:])
        if first or known or joined:
            chains[keys[-1]] = max(joined + len(keys), chains.get(keys[-1], 0))
            if len(chains) > _CHAINS_PER_REQUEST:
                del chains[next(iter(chains))]
        return first

    def _not_in(self, chains: dict[BlockKey, int], keys: Sequence[BlockKey]) -> Sequence[BlockKey]:
        if not chains or not keys:
            return keys
        left = dict.fromkeys(keys)
        for tail, count in chains.items():
            key: BlockKey | None = tail
            for _ in range(count):
                if key is None or not left:
                    break
                left.pop(key, None)
                key = self._parent_of(key)
        return list(left)

    def spent(self, session: SessionId, request_id: str) -> int:
        """The weight that the request has added to the host tier."""
        request = self._requests.get((session, request_id))
        return 0 if request is None else request.spent

    def add_spent(self, session: SessionId, request_id: str, weight: int) -> None:
        """The request has added `weight` more."""
        if request_id:
            self._named(session, request_id).spent += weight

    def end_session(self, session: SessionId) -> None:
        """Forgets the requests of a session. O(n) in the requests remembered."""
        for name in [name for name in self._requests if name[0] == session]:
            del self._requests[name]

    def _named(self, session: SessionId, request_id: str) -> _Request:
        name = session, request_id
        request = self._requests.get(name)
        if request is None:
            request = self._requests[name] = _Request()
            if len(self._requests) > self._limit:
                self._requests.popitem(last=False)
        else:
            self._requests.move_to_end(name)
        return request
