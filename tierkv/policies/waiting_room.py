"""The waiting room: entries of which a caller has said when they are wanted again, the furthest first to leave.

They are judged by how long they will still be idle, not by how long they have been: what ages tell of the others is a guess, this is
advice. An entry that is not used when it was expected goes back among the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from sortedcontainers import SortedList

K = TypeVar("K", bound=Hashable)

NEVER = 1 << 62
"""The moment of entries that are not expected any more."""


class Guest(NamedTuple):
    """expected_at — in the policy's time; order — later ones leave first among those expected together; from_t2 — where it belongs."""

    expected_at: int
    order: int
    weight: int
    from_t2: bool


class WaitingRoom(Generic[K]):
    """Every method costs O(log n) a key, save `check_integrity`."""

    __slots__ = ("_by_moment", "_guests", "_next_order", "total")

    def __init__(self) -> None:
        self._guests: dict[K, Guest] = {}
        self._by_moment: SortedList[tuple[int, int, K]] = SortedList()
        self._next_order = 0
        self.total = 0
        """Sum of the weights."""

    def __contains__(self, key: K) -> bool:
        return key in self._guests

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[K]:
        """Who is wanted last comes first."""
        return (key for _, _, key in reversed(self._by_moment))

    def guest(self, key: K) -> Guest:
        """What is known of a key that waits; KeyError otherwise."""
        return self._guests[key]

    def add(self, key: K, weight: int, expected_at: int, *, from_t2: bool) -> None:
        """A key that does not wait yet waits from now on. Of keys expected at one moment, the one added last leaves first."""
        self._next_order += 1
        self._guests[key] = Guest(expected_at, self._next_order, weight, from_t2)
        self._by_moment.add((expected_at, self._next_order, key))
        self.total += weight

    def pop(self, key: K) -> Guest:
        """A key that waits does not any more."""
        guest = self._guests.pop(key)
        self._by_moment.remove((guest.expected_at, guest.order, key))
        self.total -= guest.weight
        return guest

    def pop_overdue(self, now: int) -> list[tuple[K, Guest]]:
        """Who was expected before `now` and did not come, the earliest first."""
        overdue = [key for _, _, key in itertools.takewhile(lambda item: item[0] < now, self._by_moment)]
        return [(key, self.pop(key)) for key in overdue]

    def check_integrity(self) -> None:
        """Raises AssertionError where order, guests and total do not agree. O(n)."""
        assert self.total == sum(guest.weight for guest in self._guests.values())
        assert [(at, order) for at, order, _ in self._by_moment] == sorted((g.expected_at, g.order) for g in self._guests.values())
        assert all(self._guests[key].order == order for _, order, key in self._by_moment)
