"""Verify: one scrub at a time, in a thread of its own, told of on the event loop. A client that hangs up ends its scrub."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from tierkv.errors import ConflictError, TierKVError, UnavailableError
from tierkv.store import TieredStore, VerifyReport
from tierkv.wire._generated import tierkv_pb2 as pb

REPORT_FRAMES = 256


class _StoppedError(Exception):
    """Raised out of the scrub's progress report: whoever asked is gone."""


@dataclass(slots=True)
class _Scrub:
    """What the thread leaves for the loop. progress — the newest report only, so that a slow reader piles nothing up."""

    loop: asyncio.AbstractEventLoop
    news: asyncio.Event
    is_stopped: threading.Event = field(default_factory=threading.Event)
    progress: tuple[int, int, int] | None = None
    outcome: VerifyReport | Exception | None = None

    def report(self, frames: int, total: int, num_bytes: int) -> None:
        if self.is_stopped.is_set():
            raise _StoppedError
        if frames % REPORT_FRAMES == 0:
            self.progress = (frames, total, num_bytes)
            self._tell()

    def run(self, store: TieredStore) -> None:
        try:
            self.outcome = store.verify(self.report)
        except Exception as error:
            self.outcome = error
        self._tell()

    def _tell(self) -> None:
        if not self.is_stopped.is_set():
            with contextlib.suppress(RuntimeError):  # the loop closed this moment: nobody listens
                self.loop.call_soon_threadsafe(self.news.set)


class Scrubs:
    """Used on the event loop only."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._current: _Scrub | None = None
        self._thread: threading.Thread | None = None

    async def run(self) -> AsyncGenerator[pb.VerifyEvent, None]:
        """Events of one scrub; `done` is the last. Raises ConflictError while another one runs."""
        # Its outcome says that it is over; the thread may live a moment longer.
        if self._current is not None and self._current.outcome is None:
            raise ConflictError("a scrub is under way already; wait for its end")
        scrub = self._current = _Scrub(asyncio.get_running_loop(), asyncio.Event())
        self._thread = threading.Thread(target=scrub.run, args=(self._store,), name="tierkv-scrub", daemon=True)
        self._thread.start()
        try:
            while scrub.outcome is None:
                await scrub.news.wait()
                scrub.news.clear()
                if scrub.outcome is None and scrub.progress is not None:
                    frames, total, num_bytes = scrub.progress
                    yield pb.VerifyEvent(progress=pb.VerifyProgress(frames=frames, frames_total=total, bytes=num_bytes))
            yield pb.VerifyEvent(done=_done(scrub.outcome))
        finally:
            scrub.is_stopped.set()

    def join(self, timeout_s: float) -> None:
        """Waits for a scrub that was stopped, so that the store is not closed under it. Blocks; for after the loop."""
        if self._thread is not None:
            self._thread.join(timeout_s)


def _done(outcome: VerifyReport | Exception) -> pb.VerifyDone:
    if isinstance(outcome, TierKVError):
        raise outcome
    if isinstance(outcome, Exception):
        raise UnavailableError("the scrub could not be finished", error=outcome) from outcome
    damaged = [pb.DamagedFrame(key=frame.key, where=frame.where, what=frame.what) for frame in outcome.damaged]
    return pb.VerifyDone(frames=outcome.frames, bytes=outcome.num_bytes, damaged=damaged)
