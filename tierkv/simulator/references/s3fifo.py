"""S3-FIFO: three FIFO queues (Yang, Zhang, Qiu, Yue & Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023, algorithm 1).

New blocks enter a small queue of a tenth of the capacity; at its end, those used more than once meanwhile move to the main queue,
the others leave and are remembered by a ghost queue as long as the main one. A new block that the ghosts know enters the main
queue at once. At the end of the main queue a block that was used since goes round again. Uses are counted up to three. Until the
first block leaves, what the small queue has no room for fills the main one, as in the authors' own simulator (libCacheSim).

Bad at: a conversation's next turn, which uses each block once more after minutes, when it has left the small queue; and at chains,
of which a FIFO loses the head first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

_SMALL_SHARE = 10
"""The small queue is this part of the capacity."""
_MAX_USES = 3
_USES_TO_STAY = 2
"""Uses in the small queue that open the main one: more than one."""


class S3Fifo:
    """S3-FIFO for blocks of one size; an access costs O(1) amortised."""

    def __init__(self, capacity: int) -> None:
        """capacity — blocks, at least 1."""
        self._capacity = capacity
        self._small_target = max(1, capacity // _SMALL_SHARE)
        self._num_ghosts = capacity * 9 // 10
        self._small: OrderedDict[int, int] = OrderedDict()
        self._main: OrderedDict[int, int] = OrderedDict()
        """Key → uses, next to leave first."""
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._is_warm = False

    def __contains__(self, key: int) -> bool:
        return key in self._small or key in self._main

    def __iter__(self) -> Iterator[int]:
        yield from self._small
        yield from self._main

    def access(self, keys: Sequence[int]) -> list[bool]:
        return [self._use(key) or self._insert(key) for key in keys]

    def _use(self, key: int) -> bool:
        queue = self._main if key in self._main else self._small
        uses = queue.get(key)
        if uses is None:
            return False
        queue[key] = min(uses + 1, _MAX_USES)
        return True

    def _insert(self, key: int) -> bool:
        """Takes a new block in; returns False, a miss."""
        while len(self._small) + len(self._main) >= self._capacity:
            self._is_warm = True
            self._evict()
        if key in self._ghosts:
            del self._ghosts[key]
            self._main[key] = 0
        elif not self._is_warm and len(self._small) >= self._small_target:
            self._main[key] = 0
        else:
            self._small[key] = 0
        return False

    def _evict(self) -> None:
        """One block leaves, or the whole small queue moves to the main one."""
        if self._small and len(self._main) <= self._capacity - self._small_target:
            self._evict_from_small()
        else:
            self._evict_from_main()

    def _evict_from_small(self) -> None:
        while self._small:
            key, uses = self._small.popitem(last=False)
            if uses < _USES_TO_STAY:
                self._ghosts[key] = None
                if len(self._ghosts) > self._num_ghosts:
                    self._ghosts.popitem(last=False)
                return
            self._main[key] = 0

    def _evict_from_main(self) -> None:
        while True:
            key, uses = self._main.popitem(last=False)
            if uses == 0:
                return
            self._main[key] = uses - 1

    def state(self) -> None:
        return None

    def check_integrity(self) -> None:
        assert len(self._small) + len(self._main) <= self._capacity, "more blocks than the capacity"
        assert not self._small.keys() & self._main.keys(), "a block is in two queues"
        assert not self._ghosts.keys() & (self._small.keys() | self._main.keys()), "a ghost is resident"
        assert len(self._ghosts) <= self._num_ghosts, "more ghosts than the main queue is long"
