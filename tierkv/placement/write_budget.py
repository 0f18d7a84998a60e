"""The write budget: how many bytes a day may go to disk, so that a cache does not wear out an SSD. A token bucket; pure.

It holds an hour's share at most, and starts with that. Its rate is the day's budget less that hour, so that no 24 hours see more than
the budget. What is written is counted afterwards: a batch may overdraw it, which the next ones pay for. It forgets: a restart begins
with an hour's share again. Lock held, as a look refills it.
"""

from __future__ import annotations

_SECONDS_A_DAY = 86_400.0
_BURST_SHARE = 24
_RESUME_SHARE = 20
"""After it was spent, writing begins again when this part of the bucket is there: not block by block."""


class WriteBudget:
    """Bytes that may be written now. `now_s` — monotonic seconds, never less than before."""

    def __init__(self, bytes_per_day: int, now_s: float) -> None:
        self.bytes_per_day = bytes_per_day
        self._burst = bytes_per_day / _BURST_SHARE
        self._rate = (bytes_per_day - self._burst) / _SECONDS_A_DAY
        self._left = self._burst
        self._at_s = now_s
        self._is_spent = False

    def left_bytes(self, now_s: float) -> int:
        """What is there, not below zero."""
        self._refill(now_s)
        return max(0, int(self._left))

    def is_spent(self, now_s: float) -> bool:
        """Whether nothing may be written now."""
        self._refill(now_s)
        if self._is_spent:
            self._is_spent = self._left < self._burst / _RESUME_SHARE
        return self._is_spent

    def take(self, num_bytes: int, now_s: float) -> None:
        """So much was written."""
        self._refill(now_s)
        self._left -= num_bytes
        self._is_spent |= self._left <= 0

    def _refill(self, now_s: float) -> None:
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
