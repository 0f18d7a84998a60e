"""What becomes of the pending runs of an acquisition, in order and before a deadline; for Await, Get and AwaitPages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from tierkv.answers import PendingRun
from tierkv.model.outcomes import MissReason


@dataclass(frozen=True, slots=True)
class Arrival:
    """Blocks [start_idx, stop_idx) are readable now. is_short — the prefix ends at stop_idx, for the reason `miss`."""

    start_idx: int
    stop_idx: int
    is_short: bool
    miss: MissReason | None


async def arrivals(pending: Sequence[PendingRun], num_blocks: int, deadline_s: float) -> AsyncGenerator[Arrival, None]:
    """One for each run, with the readable blocks that follow it; the last one may be short.

    num_blocks — of the whole acquisition; deadline_s — time of the loop by which the last arrival has been told.
    """
    loop = asyncio.get_running_loop()
    for idx, run in enumerate(pending):
        try:
            done = asyncio.shield(asyncio.wrap_future(run.done))
            result = await asyncio.wait_for(done, max(0.0, deadline_s - loop.time()))
            num_ready, miss = result.num_blocks, result.miss
        except TimeoutError:
            num_ready, miss = 0, MissReason.TIMEOUT
        is_short = num_ready < run.num_blocks
        following = pending[idx + 1].start_idx if idx + 1 < len(pending) else num_blocks
        yield Arrival(run.start_idx, run.start_idx + num_ready if is_short else following, is_short, miss)
        if is_short:
            return
