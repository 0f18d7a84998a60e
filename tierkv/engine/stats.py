"""What an engine counts and measures. Times are kept for the last requests and tokens only."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tierkv.engine.sequence import Request

KEPT_TIMES = 1024


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot; counts since the engine started where nothing else is said.

    requests — sequences now. pages_held — pages that sequences of this engine own; pages_free — at hand for them; pages_total — of the
    pool, which others may use too. hit_tokens — tokens of prompts that were not computed, by the tier they were found in; pages_copied
    — pages of such hits that had to be brought to the device. ttft_ms, itl_ms — percentiles (p50, p95, p99) of the time to the first
    token and between tokens, of the last 1,024. counters — steps, computed_tokens, generated_tokens, finished_*, pool_moves.
    """

    requests_running: int
    requests_loading: int
    requests_waiting: int
    is_private: bool
    pages_total: int
    pages_held: int
    pages_free: int
    pages_copied: int
    preemptions: int
    hit_tokens: dict[str, int]
    ttft_ms: tuple[float, float, float] | None = None
    itl_ms: tuple[float, float, float] | None = None
    counters: dict[str, int] = field(default_factory=dict)


class Meters:
    """Times of requests. Written by the engine's thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ttft_s: deque[float] = deque(maxlen=KEPT_TIMES)
        self._itl_s: deque[float] = deque(maxlen=KEPT_TIMES)

    def note(self, request: Request, now_s: float) -> None:
        """A token of `request` is there."""
        with self._lock:
            if request.last_token_at_s is None:
                self._ttft_s.append(now_s - request.arrived_at_s)
            else:
                self._itl_s.append(now_s - request.last_token_at_s)
        request.last_token_at_s = now_s

    def percentiles(self) -> tuple[tuple[float, float, float] | None, tuple[float, float, float] | None]:
        """Of the time to the first token and between tokens, milliseconds; None before there is one."""
        with self._lock:
            return _percentiles_ms(self._ttft_s), _percentiles_ms(self._itl_s)


def _percentiles_ms(times_s: Iterable[float]) -> tuple[float, float, float] | None:
    ordered = sorted(times_s)
    if not ordered:
        return None
    p50, p95, p99 = (1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95, 0.99))
    return p50, p95, p99
