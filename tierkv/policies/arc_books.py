"""What ARC knows: its four lists, the moments of its entries and what steers it; copied out, put back, checked. `arc.py` decides."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from tierkv.errors import DataError, InvalidRequestError
from tierkv.policies.base import PolicyState
from tierkv.policies.ghosts import GhostLists
from tierkv.policies.image import PolicyImage
from tierkv.policies.recency import RecencyList
from tierkv.policies.waiting_room import NEVER, WaitingRoom

K = TypeVar("K", bound=Hashable)

W_LIMIT = 4.0
_W_START = 1.0
_GHOST_SHARE = 2
"""Ghosts weigh at most this many capacities."""


class Rule(StrEnum):
    """Whose oldest entry leaves."""

    AGE = "age"
    SIZE = "size"
    PAPER = "paper"


@dataclass(frozen=True, slots=True)
class ArcSnapshot(Generic[K]):
    """The lists of an ArcPolicy, keys from most to least recent, and what steers them."""

    t1: tuple[K, ...]
    t2: tuple[K, ...]
    b1: tuple[K, ...]
    b2: tuple[K, ...]
    p: float
    w: float


class ArcBooks(Generic[K]):
    """The state of an `ArcPolicy`."""

    def __init__(self, capacity: int, rule: Rule) -> None:
        """Empty. Raises InvalidRequestError for a capacity below 1."""
        if capacity < 1:
            raise InvalidRequestError("a policy needs a capacity of at least 1", capacity=capacity)
        self.capacity = capacity
        self.rule = rule
        self._t1: RecencyList[K] = RecencyList()
        self._t2: RecencyList[K] = RecencyList()
        self._ghosts: GhostLists[K] = GhostLists()
        self._touched_at: dict[K, int] = {}
        self._now = 0
        self._waiting: WaitingRoom[K] = WaitingRoom()
        self._p = 0.0
        self._w = _W_START
        self._hits_b1 = 0
        self._hits_b2 = 0

    @property
    def used(self) -> int:
        return self._t1.total + self._t2.total + self._waiting.total

    def __contains__(self, key: K) -> bool:
        return key in self._touched_at

    def __len__(self) -> int:
        return len(self._touched_at)

    def snapshot(self) -> ArcSnapshot[K]:
        """A copy of the state, for tests and explanations. O(n)."""
        lists = (self._t1, self._t2, self._ghosts.b1, self._ghosts.b2)
        t1, t2, b1, b2 = (tuple(reversed(entries)) for entries in lists)
        return ArcSnapshot(t1=t1, t2=t2, b1=b1, b2=b2, p=self._p, w=self._w)

    def on_remove(self, key: K) -> None:
        del self._touched_at[key]
        self._take_out(key)

    def expect(self, keys: Sequence[K], in_events: int | None) -> None:
        expected_at = NEVER if in_events is None else self._now + in_events
        for key in keys:
            weight, from_t2 = self._take_out(key)
            self._waiting.add(key, weight, expected_at, from_t2=from_t2)

    def _take_out(self, key: K) -> tuple[int, bool]:
        """Takes a resident entry out of its list; its weight, and whether it belongs to T2."""
        if key in self._waiting:
            guest = self._waiting.pop(key)
            return guest.weight, guest.from_t2
        if key in self._t2:
            return self._t2.pop(key), True
        return self._t1.pop(key), False

    def _let_in_overdue(self) -> None:
        """Who did not come when it was expected is one of the others again, and the oldest of its list."""
        for key, guest in self._waiting.pop_overdue(self._now):
            entries = self._t2 if guest.from_t2 else self._t1
            entries.append(key, guest.weight)
            entries.make_oldest([key])

    def pass_time(self, num_events: int) -> None:
        self._now += num_events

    def _weight_of(self, key: K) -> int:
        if key in self._waiting:
            return self._waiting.guest(key).weight
        return (self._t1 if key in self._t1 else self._t2).weight(key)

    def _trim_ghosts(self) -> None:
        ghosts = self._ghosts
        if self.rule is not Rule.PAPER:
            ghosts.trim(_GHOST_SHARE * self.capacity)
            return
        # Both loops end: T1 + T2 <= c holds here, so that without ghosts neither bound can be exceeded.
        while self._t1.total + ghosts.b1.total > self.capacity:
            ghosts.drop_oldest_of(ghosts.b1)
        while self.used + ghosts.total > 2 * self.capacity:
            ghosts.drop_oldest_of(ghosts.b2)

    def export_image(self) -> PolicyImage[K]:
        # What is expected, and when, is not kept: the image has those entries as the oldest of their lists.
        waiting = sorted(self._waiting, key=self._touched_at.__getitem__)
        of_t2 = [key for key in waiting if self._waiting.guest(key).from_t2]
        of_t1 = [key for key in waiting if not self._waiting.guest(key).from_t2]
        in_b2: list[K] = []
        self._ghosts.b2.copy_to(in_b2, [])
        image = PolicyImage(
            name=f"arc-{self.rule}",
            capacity=self.capacity,
            now=self._now,
            p=self._p,
            w=self._w,
            hits_b1=self._hits_b1,
            hits_b2=self._hits_b2,
            t1=[*of_t1, *self._t1],
            t2=[*of_t2, *self._t2],
            ghosts=self._ghosts.order(),
            in_b2=set(in_b2),
            touched_at=dict(self._touched_at),
        )
        for entries in (self._t1, self._t2, self._ghosts.b1, self._ghosts.b2):
            entries.copy_to(image.keys, image.weights)
        image.keys.extend(waiting)
        image.weights.extend(self._waiting.guest(key).weight for key in waiting)
        return image

    def restore_image(self, image: PolicyImage[K]) -> None:
        if not image.name.startswith("arc-"):
            raise DataError("this is the state of another policy", found=image.name, policy=f"arc-{self.rule}")
        self.capacity = image.capacity
        self._now = image.now
        self._waiting = WaitingRoom()
        self._p, self._w = image.p, image.w
        self._hits_b1, self._hits_b2 = image.hits_b1, image.hits_b2
        weights = image.weight_of()
        self._t1.restore(image.t1, weights)
        self._t2.restore(image.t2, weights)
        self._ghosts.restore(image)
        self._touched_at = dict(image.touched_at)
        self._trim_ghosts()  # another rule may keep less

    def state(self) -> PolicyState:
        return PolicyState(
            name=f"arc-{self.rule}",
            t1_weight=self._t1.total,
            t2_weight=self._t2.total,
            b1_keys=len(self._ghosts.b1),
            b2_keys=len(self._ghosts.b2),
            ghost_hits_b1=self._hits_b1,
            ghost_hits_b2=self._hits_b2,
            p=self._p,
            w=self._w,
            events=self._now,
            waiting_weight=self._waiting.total,
        )

    def check_integrity(self) -> None:
        self._t1.check_integrity()
        self._t2.check_integrity()
        self._ghosts.check_integrity()
        self._waiting.check_integrity()
        assert set(self._touched_at) == {*self._t1, *self._t2, *self._waiting}, "a resident entry without its moment"
        assert len(self._t1) + len(self._t2) + len(self._waiting) == len(self._touched_at), "a key is in two lists"
        assert not any(key in self._ghosts for key in self._touched_at), "a ghost is resident"
        assert self.used <= self.capacity, f"used {self.used} of {self.capacity}"
        assert 0 <= self._p <= self.capacity, f"p is {self._p}"
        assert -W_LIMIT <= self._w <= W_LIMIT, f"w is {self._w}"
        if self.rule is Rule.PAPER:
            assert self._t1.total + self._ghosts.b1.total <= self.capacity, f"T1 + B1 exceed {self.capacity}"
            assert self.used + self._ghosts.total <= 2 * self.capacity, f"entries and ghosts exceed 2 * {self.capacity}"
        else:
            assert self._ghosts.total <= _GHOST_SHARE * self.capacity, f"ghosts exceed {_GHOST_SHARE} * {self.capacity}"
