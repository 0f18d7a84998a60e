"""The one source of time, randomness and opaque ids.

Everything else takes a `Clock`, so that a seed and a virtual time replay a run (`tierkv.testing.clock.ManualClock`).
"""

from __future__ import annotations

import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """What a component may ask of time and chance."""

    def now_ns(self) -> int:
        """Wall-clock time, nanoseconds since the epoch; for records that people read."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never run backwards; for deadlines and expiries."""
        ...

    def random_bytes(self, size: int) -> bytes:
        """`size` unguessable bytes; for session secrets and jitter."""
        ...


class SystemClock:
    """The operating system's clocks and randomness."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def random_bytes(self, size: int) -> bytes:
        return secrets.token_bytes(size)
