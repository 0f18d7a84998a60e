"""Which blocks are kept in spite of the order of eviction: pinned until a moment, or of high priority.

Both are bounded in weight, so that hints cannot fill a tier: pins hold at most half of it, high priority at most a quarter. What is
beyond is treated as any other block. Weights and seconds come in; called with the store's lock held.

Invariants: chains are given head first and from their first block on, and what does not fit is left out from there on, so that a
block that is kept has only ancestors that are kept; a protected block's ancestors are at least as recent as itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from sortedcontainers import SortedDict

K = TypeVar("K", bound=Hashable)

_PIN_SHARE = 2
_PROTECTED_SHARE = 4


class Retention(Generic[K]):
    """Keys that must not be victims. `is_retained` costs O(1), everything else O(1) or O(log n) a key.

    A chain is a sequence of (key, weight), head first, from the first block of its sequence on.
    """

    def __init__(self, capacity: int) -> None:
        """capacity — of the host tier, in the unit of the weights."""
        self._pin_limit = capacity // _PIN_SHARE
        self._protected_limit = capacity // _PROTECTED_SHARE
        self._pins: dict[K, tuple[int, int]] = {}
        """Key → weight and the whole second at which the pin ends."""
        self._ends: SortedDict[int, dict[K, None]] = SortedDict()
        self._pinned_weight = 0
        self._protected: OrderedDict[K, int] = OrderedDict()
        self._protected_weight = 0

    def is_retained(self, key: K) -> bool:
        """Whether `key` is kept."""
        return key in self._pins or key in self._protected

    def is_pinned(self, key: K) -> bool:
        """Whether `key` is kept until a moment."""
        return key in self._pins

    def pin(self, chain: Sequence[tuple[K, int]], until_s: float) -> int:
        """Keeps the leading blocks for which there is room, until `until_s`, rounded up to a second; returns how many.

        A pin that lasts longer already stays.
        """
        end = math.ceil(until_s)
        for idx, (key, weight) in enumerate(chain):
            known = self._pins.get(key)
            if known is None and self._pinned_weight + weight > self._pin_limit:
                return idx
            if known is None or known[1] < end:
                self._drop_pin(key)
                self._pins[key] = weight, end
                self._pinned_weight += weight
                self._ends.setdefault(end, {})[key] = None
        return len(chain)

    def unpin(self, keys: Iterable[K]) -> None:
        """Lifts pins. Keys that are not pinned are no error."""
        for key in keys:
            self._drop_pin(key)

    def protect(self, chain: Sequence[tuple[K, int]]) -> int:
        """Keeps the leading blocks that fit into the share, as the most recent ones; the oldest make room. Returns how many."""
        room, count = self._protected_limit, 0
        for _, weight in chain:
            room -= weight
            if room < 0:
                break
            count += 1
        for key, weight in reversed(chain[:count]):
            self._drop_protection(key)
            self._protected[key] = weight
            self._protected_weight += weight
        while self._protected_weight > self._protected_limit:
            self._drop_protection(next(iter(self._protected)))
        return count

    def unprotect(self, keys: Iterable[K]) -> None:
        """Takes high priority away. Keys that have none are no error."""
        for key in keys:
            self._drop_protection(key)

    def expire(self, now_s: float) -> None:
        """Lifts the pins that are over."""
        while self._ends and self._ends.peekitem(0)[0] <= now_s:
            self.unpin(list(self._ends.peekitem(0)[1]))

    def forget(self, key: K) -> None:
        """The block is gone."""
        self._drop_pin(key)
        self._drop_protection(key)

    def _drop_pin(self, key: K) -> None:
        known = self._pins.pop(key, None)
        if known is None:
            return
        weight, end = known
        self._pinned_weight -= weight
        ending = self._ends[end]
        del ending[key]
        if not ending:
            del self._ends[end]

    def _drop_protection(self, key: K) -> None:
        self._protected_weight -= self._protected.pop(key, 0)

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        assert self._pinned_weight == sum(weight for weight, _ in self._pins.values()) <= self._pin_limit
        assert self._protected_weight == sum(self._protected.values()) <= self._protected_limit
        assert {key: end for end, keys in self._ends.items() for key in keys} == {key: end for key, (_, end) in self._pins.items()}
        assert all(self._ends.values())
