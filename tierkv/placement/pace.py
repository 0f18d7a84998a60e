"""How fast a policy's time runs: events a second over a sliding window.

Pure: seconds and counts come in. It turns an idle time in seconds into the unit in which policies tell ages.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
_SAMPLES = 12
"""Samples that a window holds; a rate is told over all of it but for one sample's part."""


class Pace:
    """A rate over about the last `window_s` seconds, from samples of a counter that only grows."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, events: int) -> None:
        """The counter stands at `events`. now_s — monotonic seconds; calls closer than a twelfth of the window are left out. O(1)."""
        samples = self._samples
        if samples and now_s - samples[-1][0] < self._window_s / _SAMPLES:
            return
        samples.append((now_s, events))
        # The last sample before the window stays, so that a rate spans all of it.
        while len(samples) > 1 and samples[1][0] <= now_s - self._window_s:
            samples.popleft()

    def per_second(self, now_s: float, events: int) -> float:
        """Events a second between the oldest sample and now; 0 before the first sample."""
        if not self._samples or now_s <= self._samples[0][0]:
            return 0.0
        since_s, before = self._samples[0]
        return (events - before) / (now_s - since_s)
