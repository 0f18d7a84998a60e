"""Suffix demotion: the selection of victims that leave nothing behind which could not be used without them (decision 5).

A policy says in which order its entries would leave; this says who then leaves: each candidate with all resident entries that
follow it, tails first, unless one of them is pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from tierkv.model.chains import Chains

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Residents(Protocol[K_contra]):
    """What a selection asks of a policy's lists."""

    def __contains__(self, key: K_contra) -> bool: ...


class SuffixSelector(Generic[K]):
    """One selection: collects victims until enough weight has come together; changes nothing itself.

    Cost: O(1) for each candidate and victim, pinned ones included. `_blocked` remembers who cannot go because of a pinned
    descendant, so that the ancestors of a long pinned chain do not walk it one after the other.
    """

    __slots__ = ("_blocked", "_chains", "_is_pinned", "_resident", "_weight_of", "victims", "weight")

    def __init__(
        self, chains: Chains[K], resident: Residents[K], weight_of: Callable[[K], int], is_pinned: Callable[[K], bool]
    ) -> None:
        self._chains = chains
        self._resident = resident
        self._weight_of = weight_of
        self._is_pinned = is_pinned
        self._blocked: set[K] = set()
        self.victims: dict[K, None] = {}
        self.weight = 0
        """The weight of the victims."""

    def take(self, key: K) -> Sequence[K]:
        """Adds a resident entry and what follows it to the victims; returns those added, none where one of them is pinned."""
        if key in self.victims or key in self._blocked:
            return ()
        if self._is_pinned(key):
            self._blocked.add(key)
            return ()
        group = [key]
        for member in group:  # grows while it is walked: parents before their children
            for child in self._chains.children(member):
                if child not in self._resident or child in self.victims:
                    continue
                if child in self._blocked or self._is_pinned(child):
                    self._block(group, member)
                    return ()
                group.append(child)
        group.reverse()
        for member in group:
            self.victims[member] = None
            self.weight += self._weight_of(member)
        return group

    def _block(self, group: Sequence[K], member: K) -> None:
        """Remembers that `member` cannot go, nor can any of its ancestors in `group`, which are before it."""
        for candidate in reversed(group):
            if candidate == member or member in self._chains.children(candidate):
                self._blocked.add(candidate)
                member = candidate


def num_fitting(weights: Sequence[int], room: int) -> int:
    """How many leading entries fit into `room`."""
    for idx, weight in enumerate(weights):
        room -= weight
        if room < 0:
            return idx
    return len(weights)
