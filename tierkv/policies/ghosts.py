"""Ghosts: keys that have left a tier lately, with the weight they had, and by which list they left.

B1 and B2 of ARC. They remember the order in which their keys left, so that both can share one bound.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from tierkv.policies.image import PolicyImage
from tierkv.policies.recency import RecencyList

K = TypeVar("K", bound=Hashable)


class GhostLists(Generic[K]):
    """Two recency lists of keys that are gone. Every method costs O(1) a key, save `check_integrity`."""

    __slots__ = ("_left_at", "_now", "b1", "b2")

    def __init__(self) -> None:
        self.b1: RecencyList[K] = RecencyList()
        self.b2: RecencyList[K] = RecencyList()
        self._left_at: dict[K, int] = {}
        self._now = 0

    def __contains__(self, key: K) -> bool:
        return key in self._left_at

    def __len__(self) -> int:
        return len(self._left_at)

    @property
    def total(self) -> int:
        """The weight of both lists."""
        return self.b1.total + self.b2.total

    def append(self, key: K, weight: int, *, to_b2: bool) -> None:
        """Adds a key that is in neither list as the one that left last."""
        self._now += 1
        self._left_at[key] = self._now
        (self.b2 if to_b2 else self.b1).append(key, weight)

    def pop(self, key: K) -> int:
        """Removes a key that is in one of the lists; returns its weight."""
        del self._left_at[key]
        return self.b2.pop(key) if key in self.b2 else self.b1.pop(key)

    def drop_oldest_of(self, ghosts: RecencyList[K]) -> None:
        """Forgets the key that left `ghosts` (b1 or b2, not empty) longest ago."""
        del self._left_at[ghosts.pop_oldest()]

    def trim(self, limit: int) -> None:
        """Forgets who left longest ago, by whichever list, until both together weigh at most `limit`."""
        while self.total > limit:
            one, two = self.b1.oldest(), self.b2.oldest()
            is_b1_older = two is None or (one is not None and self._left_at[one] < self._left_at[two])
            self.drop_oldest_of(self.b1 if is_b1_older else self.b2)

    def order(self) -> list[K]:
        """All keys, who left longest ago first. O(n)."""
        return list(self._left_at)  # whoever leaves again was taken out before

    def restore(self, image: PolicyImage[K]) -> None:
        """Becomes the ghosts of an image. O(n)."""
        weights = image.weight_of()
        self.b1.restore((key for key in image.ghosts if key not in image.in_b2), weights)
        self.b2.restore((key for key in image.ghosts if key in image.in_b2), weights)
        self._left_at = {key: idx for idx, key in enumerate(image.ghosts, start=1)}
        self._now = len(self._left_at)

    def check_integrity(self) -> None:
        """Raises AssertionError where the two lists and the order do not agree. O(n)."""
        self.b1.check_integrity()
        self.b2.check_integrity()
        assert set(self._left_at) == {*self.b1, *self.b2}, "a ghost without its moment"
        assert len(self.b1) + len(self.b2) == len(self._left_at), "a ghost is in two lists"
        for ghosts in (self.b1, self.b2):
            moments = [self._left_at[key] for key in ghosts]
            assert moments == sorted(moments), "ghosts are not in the order in which they left"
