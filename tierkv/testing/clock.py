"""A clock that moves only when told, with seeded chance: a seed replays a run."""

from __future__ import annotations

import random


class ManualClock:
    """Virtual time in seconds from 0, and pseudo-random bytes from `seed`. Not for secrets."""

    def __init__(self, *, seed: int = 0) -> None:
        self._now_s = 0.0
        self._random = random.Random(seed)

    def advance(self, seconds: float) -> None:
        self._now_s += seconds

    def now_ns(self) -> int:
        return int(self._now_s * 1e9)

    def monotonic_s(self) -> float:
        return self._now_s

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)
