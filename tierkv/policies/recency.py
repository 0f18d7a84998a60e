"""A recency list: weighted keys from least to most recent, with their total weight. The one building block of the policies here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class RecencyList(Generic[K]):
    """Keys in order of recency. Every method costs O(1) a key, save `check_integrity`.

    An OrderedDict, not a dict: taking the oldest key of a dict that is used as a queue walks over every hole left at its front.
    """

    __slots__ = ("_weights", "total")

    def __init__(self) -> None:
        self._weights: OrderedDict[K, int] = OrderedDict()
        self.total = 0
        """Sum of the weights."""

    def __contains__(self, key: object) -> bool:
        return key in self._weights

    def __len__(self) -> int:
        return len(self._weights)

    def __iter__(self) -> Iterator[K]:
        """Least recent first."""
        return iter(self._weights)

    def __reversed__(self) -> Iterator[K]:
        """Most recent first."""
        return reversed(self._weights)

    def oldest(self) -> K | None:
        """The least recent key; None of an empty list."""
        return next(iter(self._weights), None)

    def weight(self, key: K) -> int:
        """The weight of a key that is in the list; KeyError otherwise."""
        return self._weights[key]

    def append(self, key: K, weight: int) -> None:
        """Adds a key that is not in the list as the most recent."""
        self._weights[key] = weight
        self.total += weight

    def missing(self, keys: Sequence[K]) -> list[K]:
        """Those of `keys` that are not in the list."""
        weights = self._weights
        return [key for key in keys if key not in weights]

    def touch_all(self, keys: Iterable[K]) -> None:
        """Makes keys that are in the list the most recent, the last of them most of all."""
        move_to_end = self._weights.move_to_end
        for key in keys:
            move_to_end(key)

    def make_oldest(self, keys: Iterable[K]) -> None:
        """Makes keys that are in the list the least recent, the last of them least of all."""
        for key in keys:
            self._weights.move_to_end(key, last=False)

    def pop(self, key: K) -> int:
        """Removes a key that is in the list; returns its weight."""
        weight = self._weights.pop(key)
        self.total -= weight
        return weight

    def pop_oldest(self) -> K:
        """Removes the least recent key of a list that is not empty."""
        key, weight = self._weights.popitem(last=False)
        self.total -= weight
        return key

    def copy_to(self, keys: list[K], weights: list[int]) -> None:
        """Adds its keys and their weights, in no order: many times quicker than in the list's. O(n)."""
        entries: dict[K, int] = self._weights
        keys.extend(dict.keys(entries))
        weights.extend(dict.values(entries))

    def restore(self, keys: Iterable[K], weights: Mapping[K, int]) -> None:
        """Becomes the list of these keys, least recent first. O(n)."""
        self._weights = OrderedDict((key, weights[key]) for key in keys)
        self.total = sum(self._weights.values())

    def check_integrity(self) -> None:
        """Raises AssertionError unless weights are positive and sum to `total`. O(n)."""
        assert all(weight > 0 for weight in self._weights.values()), "a weight is not positive"
        assert self.total == sum(self._weights.values()), f"total {self.total} is not the sum of the weights"
