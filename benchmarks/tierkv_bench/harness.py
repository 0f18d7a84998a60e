"""Interleaved measurement: the subject and its reference take turns, so that a slow minute of the machine hits both.

A case is one way to move the same bytes. Every round runs each case once, in an order that rotates, so that none is always the one
that finds the caches warm. Rounds before the first counted one warm buffers and code up. Results are medians and percentiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that a case took, one entry a counted round, in the order of the rounds."""

    times_s: tuple[float, ...]

    def percentile_s(self, percent: float) -> float:
        """The time within which `percent` of the rounds were done."""
        return float(np.percentile(self.times_s, percent))

    @property
    def median_s(self) -> float:
        return self.percentile_s(50)


def run_interleaved(
    cases: Mapping[str, Callable[[], float]], *, rounds: int, warmup_rounds: int = 1, rotate: bool = True
) -> dict[str, Timing]:
    """Runs every case `rounds` times, taking turns.

    cases — by name; each does its work once and returns the seconds that count, so that it can prepare and tidy up outside of them.
    rotate — start each round with the next case; False keeps the given order, for cases that build on each other.
    Blocks until done. Raises ValueError for fewer than one round or no case; what a case raises passes through.
    """
    if rounds < 1 or not cases:
        raise ValueError("a measurement needs a case and a round")
    times_s: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for round_idx in range(-warmup_rounds, rounds):
        turn = round_idx % len(names) if rotate else 0
        for name in names[turn:] + names[:turn]:
            elapsed_s = cases[name]()
            if round_idx >= 0:
                times_s[name].append(elapsed_s)
    return {name: Timing(tuple(values)) for name, values in times_s.items()}


def measure_s(work: Callable[[], object]) -> float:
    """Seconds that one call of `work` takes."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def speed_gbps(num_bytes: int, elapsed_s: float) -> float:
    """Gigabytes (10^9 bytes) a second."""
    return num_bytes / elapsed_s / 1e9


def speed_ratio(subject: Timing, reference: Timing) -> float:
    """How fast the subject is as a share of the reference, for the same bytes: the median of the rounds' own ratios.

    Both were timed next to each other in every round, so a disturbance that spans a round cancels out.
    """
    pairs = zip(reference.times_s, subject.times_s, strict=True)
    return float(np.median([reference_s / subject_s for reference_s, subject_s in pairs]))


def patterned(num_bytes: int, seed: int) -> npt.NDArray[np.uint8]:
    """`num_bytes` of incompressible content that only depends on `seed`; memory that has been touched."""
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


def warm_buffers(count: int, num_bytes: int) -> list[npt.NDArray[np.uint8]]:
    """`count` buffers with memory behind every page: the first touch costs 30 times a copy, and is nobody's speed."""
    whole = np.empty(count * num_bytes, dtype=np.uint8)
    whole.fill(1)
    return [whole[start : start + num_bytes] for start in range(0, count * num_bytes, num_bytes)]


def views(buffers: Sequence[npt.NDArray[np.uint8]]) -> list[memoryview]:
    """The buffers as the store takes them."""
    return [buffer.data for buffer in buffers]
