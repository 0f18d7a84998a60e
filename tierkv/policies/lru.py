"""LRU: the entry not used for longest leaves first.

The baseline every other policy is measured against. Bad at scans and loops longer than the cache: one pass over new keys flushes
everything that was worth keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from tierkv.errors import InvalidRequestError
from tierkv.policies.base import Selection
from tierkv.policies.recency import RecencyList

K = TypeVar("K", bound=Hashable)


class LruPolicy(Generic[K]):
    """Weighted LRU; the contract is `tierkv.policies.base.Policy`.

    Every event costs O(1), save `select_victims`: O(victims + pinned entries older than the last victim).
    """

    def __init__(self, capacity: int) -> None:
        """capacity — the largest resident weight, at least 1; InvalidRequestError below."""
        if capacity < 1:
            raise InvalidRequestError("a policy needs a capacity of at least 1", capacity=capacity)
        self.capacity = capacity
        self._resident: RecencyList[K] = RecencyList()

    @property
    def used(self) -> int:
        return self._resident.total

    def __contains__(self, key: K) -> bool:
        return key in self._resident

    def __len__(self) -> int:
        return len(self._resident)

    def __iter__(self) -> Iterator[K]:
        return iter(self._resident)

    def on_access(self, key: K) -> None:
        self._resident.touch(key)

    def select_victims(self, key: K, weight: int, is_pinned: Callable[[K], bool]) -> Selection[K]:
        assert weight > 0 and key not in self._resident
        if weight > self.capacity:
            return Selection(refused=True)
        needed = self._resident.total + weight - self.capacity
        if needed <= 0:
            return Selection()
        victims: list[K] = []
        for candidate in self._resident:
            if is_pinned(candidate):
                continue
            victims.append(candidate)
            needed -= self._resident.weight(candidate)
            if needed <= 0:
                break
        else:
            return Selection(refused=True)
        for victim in victims:
            self._resident.pop(victim)
        return Selection(tuple(victims))

    def on_insert(self, key: K, weight: int) -> None:
        assert weight > 0 and key not in self._resident and self.used + weight <= self.capacity
        self._resident.append(key, weight)

    def on_remove(self, key: K) -> None:
        self._resident.pop(key)

    def check_integrity(self) -> None:
        self._resident.check_integrity()
        assert self.used <= self.capacity, f"used {self.used} of {self.capacity}"
