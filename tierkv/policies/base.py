"""What every eviction policy is: keys, weights and events in, victims out. No I/O, no clock, no threads.

A policy orders the resident entries of one tier and decides who leaves. It is driven under the store's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Selection(Generic[K]):
    """Who must leave so that an entry fits, in the order they leave; refused — no set of unpinned entries makes enough room."""

    victims: tuple[K, ...] = ()
    refused: bool = False


class Policy(Protocol[K]):
    """An eviction policy over weighted entries.

    The caller guarantees:
    1. `select_victims(key, …)` is called only for a key that is not resident, and is followed by `on_insert(key, …)` with the same
       weight or less, by itself again with more weight (more room is needed), or by nothing at all; no other event comes between.
    2. `on_access` and `on_remove` are called only for resident keys.
    3. Weights are positive and do not change while an entry is resident.

    The implementation must:
    1. Return victims that are resident and not pinned, each at most once; after their removal the resident weight plus the new
       entry's is at most `capacity`. Victims have left (they are ghosts, where the policy keeps ghosts) when the call returns.
    2. Refuse, and let nobody leave, when that cannot be reached: an entry heavier than `capacity`, or too much is pinned.
    3. Skip pinned entries without changing their rank.
    4. Forget a removed key wholly: it does not become a ghost.
    5. Keep `check_integrity` silent after every event.
    """

    capacity: int
    """The largest resident weight."""

    @property
    def used(self) -> int:
        """The resident weight."""
        ...

    def __contains__(self, key: K) -> bool: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[K]:
        """Resident keys, next victim first as far as the policy can tell."""
        ...

    def on_access(self, key: K) -> None:
        """A resident entry was used."""
        ...

    def select_victims(self, key: K, weight: int, is_pinned: Callable[[K], bool]) -> Selection[K]:
        """Makes room for `key`; may adapt to a ghost hit on it."""
        ...

    def on_insert(self, key: K, weight: int) -> None:
        """`key` is resident from now on."""
        ...

    def on_remove(self, key: K) -> None:
        """A resident entry is gone for a reason of its own (deleted, damaged, aborted)."""
        ...

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        ...
