"""LRU: the entry not used for longest leaves first, with all that follows it.

The baseline every other policy is measured against. Bad at scans and loops longer than the cache: one pass over new keys flushes
everything that was worth keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.chains import Chains
from tierkv.policies.base import Admission, Cause, PolicyState, Shortfall
from tierkv.policies.image import PolicyImage
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
            victims = tuple(selector.victims)
        outcome = Admission(num_admitted, victims, None if num_admitted == len(keys) else Shortfall.PINNED)
        self._apply(keys, weights, outcome, head)
        return outcome

    def _apply(self, keys: Sequence[K], weights: Sequence[int], outcome: Admission[K], head: Sequence[K]) -> None:
        self.let_go(outcome.victims)
        for idx in range(outcome.num_admitted - 1, -1, -1):
            self._resident.append(keys[idx], weights[idx])
        if outcome.num_admitted:
            self._resident.touch_all(reversed(head))

    def make_room(self, weight: int, is_pinned: Callable[[K], bool]) -> tuple[K, ...]:
        selector = self._collect(weight, is_pinned)
        if selector.weight < weight:
            return ()
        victims = tuple(selector.victims)
        self.let_go(victims)
        return victims

    def _collect(self, needed: int, is_pinned: Callable[[K], bool]) -> SuffixSelector[K]:
        selector = SuffixSelector(self._chains, self._resident, self._resident.weight, is_pinned)
        for key in self._resident:
            if selector.weight >= needed:
                break
            selector.take(key)
        return selector

    def on_remove(self, key: K) -> None:
        self._resident.pop(key)

    def expect(self, keys: Sequence[K], in_events: int | None) -> None:
        if in_events is None:  # when others are wanted again says nothing of how recent they are
            self._resident.make_oldest(keys)

    def export_image(self) -> PolicyImage[K]:
        image: PolicyImage[K] = PolicyImage("lru", self.capacity, t1=list(self._resident))
        self._resident.copy_to(image.keys, image.weights)
        return image

    def restore_image(self, image: PolicyImage[K]) -> None:
        if image.name != "lru":
            raise DataError("this is the state of another policy", found=image.name, policy="lru")
        self.capacity = image.capacity
        self._resident.restore(image.t1, image.weight_of())

    def replay_admit(
        self,
        keys: Sequence[K],
        weights: Sequence[int],
        outcome: Admission[K],
        *,
        cause: Cause,
        head: Sequence[K] = (),
    ) -> None:
        del cause
        self._apply(keys, weights, outcome, head)

    def let_go(self, keys: Sequence[K]) -> None:
        for key in keys:
            self._resident.pop(key)

    def pass_time(self, num_events: int) -> None:
        """It has none."""

    def resize(self, capacity: int) -> tuple[K, ...]:
        self.capacity = capacity
        return self.make_room(self.used - capacity, lambda _: False) if self.used > capacity else ()

    def state(self) -> PolicyState:
        return PolicyState("lru", t1_weight=self._resident.total)

    def check_integrity(self) -> None:
        self._resident.check_integrity()
        assert self.used <= self.capacity, f"used {self.used} of {self.capacity}"
