"""S3-FIFO: three FIFO queues (Yang, Zhang, Qiu, Yue & Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023, algorithm 1).

New blocks enter a small queue of a tenth of the capacity; at its end, those used more than once meanwhile move to the main queue,
the others leave and are remembered by a ghost queue as long as the main one. A new block that the ghosts know enters the main
queue at once. At the end of the main queue a block that was used since goes round again. Uses are counted up to three.

Bad at: reuse that comes after a pass through the small queue but before the ghosts see it twice: conversations, whose next turn comes once,
after minutes. A request reads its blocks head to tail, and the FIFO loses heads first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

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
        self._num_ghosts = capacity - self._small_target
        self._small: OrderedDict[int, int] = OrderedDict()
        self._main: OrderedDict[int, int] = OrderedDict()
        """Key → uses, next to leave first."""
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._small or key in self._main

    def __iter__(self) -> Iterator[int]:
        yield from self._small
        yield from self._main

    def access(self, key: int) -> bool:
        queue = self._main if key in self._main else self._small
        uses = queue.get(key)
        if uses is not None:
            if uses < _MAX_USES:
                queue[key] = uses + 1
            return True
        while len(self._small) + len(self._main) >= self._capacity:
            self._evict()
        if key in self._ghosts:
            del self._ghosts[key]
            self._main[key] = 0
        else:
            self._small[key] = 0
        return False

    def _evict(self) -> None:
        if len(self._small) >= self._small_target or not self._main:
            self._evict_from_small()
        else:
            self._evict_from_main()

    def _evict_from_small(self) -> None:
        """Ends with one block gone, or with every block of the queue moved to the main one."""
        while self._small:
            key, uses = self._small.popitem(last=False)
            if uses < _USES_TO_STAY:
                self._ghosts[key] = None
                if len(self._ghosts) > self._num_ghosts:
                    self._ghosts.popitem(last=False)
                return
            self._main[key] = 0
            if len(self._main) > self._capacity - self._small_target:
                self._evict_from_main()
                return

    def _evict_from_main(self) -> None:
        while True:
            key, uses = self._main.popitem(last=False)
            if uses == 0:
                return
            self._main[key] = uses - 1

    def check_integrity(self) -> None:
        assert len(self._small) + len(self._main) <= self._capacity, "more blocks than the capacity"
        assert not self._small.keys() & self._main.keys(), "a block is in two queues"
        assert not self._ghosts.keys() & (self._small.keys() | self._main.keys()), "a ghost is resident"
        assert len(self._ghosts) <= self._num_ghosts, "more ghosts than the main queue is long"
