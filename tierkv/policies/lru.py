"""LRU: the entry not used for longest leaves first, with all that follows it.

The baseline every other policy is measured against. Bad at scans and loops longer than the cache: one pass over new keys flushes
everything that was worth keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from tierkv.errors import InvalidRequestError
from tierkv.model.chains import Chains
from tierkv.policies.base import Admission, Cause, PolicyState, Shortfall
from tierkv.policies.recency import RecencyList
from tierkv.policies.suffix import SuffixSelector, num_fitting

K = TypeVar("K", bound=Hashable)


class LruPolicy(Generic[K]):
    """Weighted LRU; the contract is `tierkv.policies.base.Policy`.

    Every event costs O(1) a key; `admit` and `make_room` also for each pinned entry older than the last victim.
    """

    def __init__(self, capacity: int, chains: Chains[K] | None = None) -> None:
        """capacity — the largest resident weight, at least 1; InvalidRequestError below. chains — who follows whom (None: nobody)."""
        if capacity < 1:
            raise InvalidRequestError("a policy needs a capacity of at least 1", capacity=capacity)
        self.capacity = capacity
        self._chains: Chains[K] = Chains() if chains is None else chains
        self._resident: RecencyList[K] = RecencyList()

    @property
    def used(self) -> int:
        return self._resident.total

    def __contains__(self, key: K) -> bool:
        return key in self._resident

    def __len__(self) -> int:
        return len(self._resident)

    def __iter__(self) -> Iterator[K]:
        return iter(self._collect(self.used, lambda key: False).victims)

    def on_access(self, keys: Sequence[K]) -> None:
        self._resident.touch_all(reversed(keys))

    def admit(
        self,
        keys: Sequence[K],
        weights: Sequence[int],
        is_pinned: Callable[[K], bool],
        *,
        cause: Cause,
        head: Sequence[K] = (),
        spent: int = 0,
    ) -> Admission[K]:
        del cause, spent  # one way in is as good as another, and nothing is capped
        free = self.capacity - self._resident.total
        needed = sum(weights) - free
        victims: tuple[K, ...] = ()
        num_admitted = len(keys)
        if needed > 0:
            selector = self._collect(needed, is_pinned)
            num_admitted = num_fitting(weights, free + selector.weight)
            if num_admitted < len(keys):
                selector = self._collect(sum(weights[:num_admitted]) - free, is_pinned)
            victims = self._evict(selector)
        for idx in range(num_admitted - 1, -1, -1):
            self._resident.append(keys[idx], weights[idx])
        if num_admitted:
            self._resident.touch_all(reversed(head))
        return Admission(num_admitted, victims, None if num_admitted == len(keys) else Shortfall.PINNED)

    def make_room(self, weight: int, is_pinned: Callable[[K], bool]) -> tuple[K, ...]:
        selector = self._collect(weight, is_pinned)
        return self._evict(selector) if selector.weight >= weight else ()

    def _collect(self, needed: int, is_pinned: Callable[[K], bool]) -> SuffixSelector[K]:
        selector = SuffixSelector(self._chains, self._resident, self._resident.weight, is_pinned)
        for key in self._resident:
            if selector.weight >= needed:
                break
            selector.take(key)
        return selector

    def _evict(self, selector: SuffixSelector[K]) -> tuple[K, ...]:
        for victim in selector.victims:
            self._resident.pop(victim)
        return tuple(selector.victims)

    def on_remove(self, key: K) -> None:
        self._resident.pop(key)

    def expire_first(self, keys: Sequence[K]) -> None:
        self._resident.make_oldest(keys)

    def state(self) -> PolicyState:
        return PolicyState("lru", t1_weight=self._resident.total)

    def check_integrity(self) -> None:
        self._resident.check_integrity()
        assert self.used <= self.capacity, f"used {self.used} of {self.capacity}"
