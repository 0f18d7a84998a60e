"""Belady's MIN: who is wanted last leaves, the newcomer included (Belady, IBM Systems Journal 5(2), 1966). The bound: no policy that
sees one access after the other has more block hits.

Bad at: being run; it knows the future. It counts blocks, not prefixes, and is therefore no strict bound of prefix hits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence


class Belady:
    """MIN with bypass, over one known stream of accesses; an access costs O(log n)."""

    def __init__(self, capacity: int, stream: Sequence[int], next_uses: Sequence[int]) -> None:
        """capacity — blocks, at least 1. stream — the accesses that will come, in order; next_uses — `next_uses(stream)`."""
        self._capacity = capacity
        self._stream = stream
        self._next_uses = next_uses
        self._position = 0
        self._resident: set[int] = set()
        self._wanted_at: list[int] = []
        """A heap of minus the positions at which resident blocks are wanted; positions that have passed sink to its bottom."""

    def __contains__(self, key: int) -> bool:
        return key in self._resident

    def __iter__(self) -> Iterator[int]:
        return iter(self._resident)

    def access(self, keys: Sequence[int]) -> list[bool]:
        return [self._access(key) for key in keys]

    def _access(self, key: int) -> bool:
        position = self._position
        assert self._stream[position] == key, "another stream than announced"
        self._position = position + 1
        next_use = self._next_uses[position]
        resident = self._resident
        is_hit = key in resident
        if next_use == len(self._stream):
            resident.discard(key)  # never wanted again: whoever takes its place is worth more
            return is_hit
        if is_hit or len(resident) < self._capacity:
            resident.add(key)
            heapq.heappush(self._wanted_at, -next_use)
        elif next_use < -self._wanted_at[0]:
            resident.add(key)
            resident.remove(self._stream[-heapq.heapreplace(self._wanted_at, -next_use)])
        if len(self._wanted_at) > 2 * self._capacity + 1024:
            self._wanted_at = [wanted for wanted in self._wanted_at if -wanted > position]
            heapq.heapify(self._wanted_at)
        return is_hit

    def state(self) -> None:
        return None

    def check_integrity(self) -> None:
        assert len(self._resident) <= self._capacity, "more blocks than the capacity"
        wanted = {self._stream[-wanted] for wanted in self._wanted_at if -wanted >= self._position}
        assert wanted == self._resident, "the heap knows other blocks than are resident"


def next_uses(stream: Sequence[int]) -> list[int]:
    """For each access the position of the next one to the same key, `len(stream)` where there is none. O(n)."""
    uses = [len(stream)] * len(stream)
    last: dict[int, int] = {}
    for position in range(len(stream) - 1, -1, -1):
        key = stream[position]
        uses[position] = last.get(key, len(stream))
        last[key] = position
    return uses
