"""Waiting for another thread or process: poll a condition until a deadline, never sleep for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05


def wait_until(condition: Callable[[], T], *, timeout_s: float, what: str) -> T:
    """Calls `condition` until it answers something true, and returns that.

    Blocks for at most about `timeout_s` beyond one call of the condition; pauses grow from 1 to 50 ms. Raises TimeoutError that
    names `what` was waited for. What the condition raises passes through.
    """
    deadline_s = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        answer = condition()
        if answer:
            return answer
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(min(pause_s, remaining_s))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
