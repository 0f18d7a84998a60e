"""The circuit breaker: a daemon that is away is not asked again until a pause has passed. A pure state machine over a clock.

closed ─ failures ≥ threshold → open ─ pause over → half-open (one call may try) ─ success → closed
                                  ↑                        └─ failure: a longer pause ─┘
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tierkv.clock import Clock
from tierkv.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """threshold — failures in a row that open it; pauses double from first_pause_s to longest_pause_s, each shortened by up to half."""

    threshold: int = 3
    first_pause_s: float = 0.25
    longest_pause_s: float = 5.0


class Breaker:
    """Safe to use from several threads."""

    def __init__(self, clock: Clock, settings: BreakerSettings | None = None) -> None:
        self._clock = clock
        self._settings = settings or BreakerSettings()
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether a call would be refused now."""
        with self._lock:
            return self._refuses()

    def before_call(self) -> None:
        """Raises UnavailableError at once while open; lets one caller through when the pause is over."""
        with self._lock:
            if self._refuses():
                raise UnavailableError("the daemon did not answer lately and is not asked again yet", failures=self._failures)
            if self._open_until_s is not None:  # this caller tries; the others wait for what becomes of it, or for another pause
                self._open_until_s = self._clock.monotonic_s() + self._pause_s()

    def succeeded(self) -> None:
        """A call was answered, whatever the answer."""
        with self._lock:
            self._failures = 0
            self._open_until_s = None

    def failed(self) -> None:
        """A call was not answered."""
        with self._lock:
            self._failures += 1
            if self._failures >= self._settings.threshold:
                self._open_until_s = self._clock.monotonic_s() + self._pause_s()

    def _refuses(self) -> bool:
        return self._open_until_s is not None and self._clock.monotonic_s() < self._open_until_s

    def _pause_s(self) -> float:
        over = min(max(0, self._failures - self._settings.threshold), 16)
        pause_s = min(self._settings.first_pause_s * 2.0**over, self._settings.longest_pause_s)
        return pause_s * (1 - self._clock.random_bytes(1)[0] / 512)
