"""What every test gets: one thread for numerics, no network for models, and a check that it left nothing behind.

After each test the threads it started must have ended, the descriptors it opened must be closed and the shared-memory entries it
made must be gone. The fixture is set up before the test's own fixtures and torn down after them, and what wider fixtures hold
(a loaded model, a shared daemon) is there before and therefore no leak.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

# Before anything imports torch: two numeric threads on a busy machine are many times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Triton reads this once, when transformers or a test first imports it; kernels then run on the processor.
os.environ.setdefault("TRITON_INTERPRET", "1")

from tierkv.testing import leaks

SETTLE_S = 3.0


@pytest.fixture(autouse=True)
def leave_nothing_behind() -> Iterator[None]:
    """Fails a test that leaves a thread, a descriptor or a shared-memory entry behind."""
    before = leaks.take_snapshot()
    yield
    left = leaks.find_leaks(before)
    if left:
        # A cycle may still hold the last reference, and a thread that was told to end may need a moment.
        gc.collect()
        left = leaks.wait_for_none(before, timeout_s=SETTLE_S)
    assert not left, "the test left behind: " + "; ".join(left)
