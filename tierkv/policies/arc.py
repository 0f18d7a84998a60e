"""ARC, the adaptive replacement cache: Megiddo & Modha, FAST 2003, figure 4, with weights and pins.

T1 holds entries seen once, T2 entries seen again; B1 and B2 are the ghosts (keys only) of what left T1 and T2. `p` is the target
weight of T1: a hit on a ghost in B1 says that T1 was too small, one in B2 that T2 was. With unit weights and no pins this is the
figure, step by step (`tierkv.testing.arc_vectors`). What weights change:

- Sizes are sums of weights. A ghost keeps the weight it had, and a step of `p` is scaled by that weight.
- REPLACE is repeated until the new entry fits, and looks at T1's shrinking weight and `p` each time.
- Ghosts are trimmed when the new entry enters, instead of before REPLACE. The figure drops B1's oldest when |T1| + |B1| = c and
  B2's oldest when all four hold 2c; REPLACE moves an entry within T1 + B1 or within T2 + B2, so that both orders drop the same
  ghost. The figure's "delete the oldest of T1, keep no ghost" is the case in which that ghost is the one just made.

Invariants: no key in two lists; T1 + T2 <= c, T1 + B1 <= c, all four <= 2c; 0 <= p <= c.
Bad at: loops longer than the cache (like LRU), and entries that were hot once: they leave T2 only when T1 gives way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tierkv.errors import InvalidRequestError
from tierkv.policies.base import Selection
from tierkv.policies.recency import RecencyList

K = TypeVar("K", bound=Hashable)
_NOBODY: Selection[Any] = Selection()


@dataclass(frozen=True, slots=True)
class ArcSnapshot(Generic[K]):
    """The whole state of an ArcPolicy: keys from most to least recent, and the target weight of T1."""

    t1: tuple[K, ...]
    t2: tuple[K, ...]
    b1: tuple[K, ...]
    b2: tuple[K, ...]
    p: float


class ArcPolicy(Generic[K]):
    """Weighted ARC; the contract is `tierkv.policies.base.Policy`.

    Every event costs O(1), save `select_victims`: O(victims + pinned entries older than the last victim); a refusal for pins asks
    about every resident entry. A refused call changes nothing, `p` included.
    """

    def __init__(self, capacity: int) -> None:
        """capacity — the largest resident weight, at least 1; InvalidRequestError below."""
        if capacity < 1:
            raise InvalidRequestError("a policy needs a capacity of at least 1", capacity=capacity)
        self.capacity = capacity
        self._p = 0.0
        self._t1: RecencyList[K] = RecencyList()
        self._t2: RecencyList[K] = RecencyList()
        self._b1: RecencyList[K] = RecencyList()
        self._b2: RecencyList[K] = RecencyList()
        # The ghost whose hit has already moved `p`, while its select_victims may be repeated (for more room) before it enters.
        self._adapted_for: K | None = None

    @property
    def used(self) -> int:
        return self._t1.total + self._t2.total

    def __contains__(self, key: K) -> bool:
        return key in self._t1 or key in self._t2

    def __len__(self) -> int:
        return len(self._t1) + len(self._t2)

    def __iter__(self) -> Iterator[K]:
        for key, _ in self._replace_order(self._p, lambda key: False, from_b2=False):
            yield key

    def snapshot(self) -> ArcSnapshot[K]:
        """A copy of the state, for tests and explanations. O(n)."""
        t1, t2, b1, b2 = (tuple(reversed(entries)) for entries in (self._t1, self._t2, self._b1, self._b2))
        return ArcSnapshot(t1=t1, t2=t2, b1=b1, b2=b2, p=self._p)

    def on_access(self, key: K) -> None:
        self._adapted_for = None
        if key in self._t2:
            self._t2.touch(key)
        else:
            self._t2.append(key, self._t1.pop(key))

    def select_victims(self, key: K, weight: int, is_pinned: Callable[[K], bool]) -> Selection[K]:
        assert weight > 0 and key not in self
        if weight > self.capacity:
            return Selection(refused=True)
        needed = self._t1.total + self._t2.total + weight - self.capacity
        if needed <= 0 and key not in self._b1 and key not in self._b2:
            self._adapted_for = None
            return _NOBODY  # the common case: room enough, nothing to adapt to
        if key != self._adapted_for:
            self._adapted_for = None
        p = self._adapted_p(key)
        victims: list[tuple[K, RecencyList[K]]] = []
        if needed > 0:
            for victim, source in self._replace_order(p, is_pinned, from_b2=key in self._b2):
                victims.append((victim, source))
                needed -= source.weight(victim)
                if needed <= 0:
                    break
            else:
                return Selection(refused=True)
        self._p = p
        self._adapted_for = key
        for victim, source in victims:
            ghosts = self._b1 if source is self._t1 else self._b2
            ghosts.append(victim, source.pop(victim))
        return Selection(tuple(victim for victim, _ in victims))

    def on_insert(self, key: K, weight: int) -> None:
        assert weight > 0 and key not in self and self.used + weight <= self.capacity
        self._adapted_for = None
        ghosts = self._b1 if key in self._b1 else self._b2 if key in self._b2 else None
        if ghosts is None:
            self._t1.append(key, weight)
        else:
            ghosts.pop(key)
            self._t2.append(key, weight)
        self._trim_ghosts()

    def on_remove(self, key: K) -> None:
        self._adapted_for = None
        (self._t1 if key in self._t1 else self._t2).pop(key)

    def check_integrity(self) -> None:
        lists = (self._t1, self._t2, self._b1, self._b2)
        for entries in lists:
            entries.check_integrity()
        assert len(set().union(*lists)) == sum(len(entries) for entries in lists), "a key is in two lists"
        assert self.used <= self.capacity, f"used {self.used} of {self.capacity}"
        assert self._t1.total + self._b1.total <= self.capacity, f"T1 + B1 exceed {self.capacity}"
        assert sum(entries.total for entries in lists) <= 2 * self.capacity, f"entries and ghosts exceed 2 * {self.capacity}"
        assert 0 <= self._p <= self.capacity, f"p is {self._p}"

    def _adapted_p(self, key: K) -> float:
        """`p` after the step for a ghost hit on `key`, sizes taken while the key is still a ghost; `p` itself where it is none."""
        if key == self._adapted_for:
            return self._p
        if key in self._b1:
            ratio = max(1.0, self._b2.total / self._b1.total)
            return min(float(self.capacity), self._p + ratio * self._b1.weight(key))
        if key in self._b2:
            ratio = max(1.0, self._b1.total / self._b2.total)
            return max(0.0, self._p - ratio * self._b2.weight(key))
        return self._p

    def _replace_order(self, p: float, is_pinned: Callable[[K], bool], *, from_b2: bool) -> Iterator[tuple[K, RecencyList[K]]]:
        """Unpinned entries as repeated REPLACE would take them, each with its list; changes nothing.

        Where the list that REPLACE wants has only pinned entries left, the other one gives.
        """
        t1_total = self._t1.total
        from_t1 = ((key, self._t1) for key in self._t1 if not is_pinned(key))
        from_t2 = ((key, self._t2) for key in self._t2 if not is_pinned(key))
        while True:
            wants_t1 = t1_total > p or (from_b2 and t1_total == p)
            first, second = (from_t1, from_t2) if wants_t1 else (from_t2, from_t1)
            taken = next(first, None) or next(second, None)
            if taken is None:
                return
            key, source = taken
            if source is self._t1:
                t1_total -= source.weight(key)
            yield taken

    def _trim_ghosts(self) -> None:
        # Both loops end: T1 + T2 <= c holds here, so that without ghosts neither bound can be exceeded.
        while self._t1.total + self._b1.total > self.capacity:
            self._b1.pop_oldest()
        while self.used + self._b1.total + self._b2.total > 2 * self.capacity:
            self._b2.pop_oldest()
