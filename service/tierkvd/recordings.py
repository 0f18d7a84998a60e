"""Record: requests as they come, streamed to whoever asked, until the client hangs up or the daemon stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from tierkv.store import TieredStore
from tierkv.wire import explanations
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import RECORDING_METADATA
from tierkvd.calls import Context


class Recordings:
    """Used on the event loop only."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._running: set[asyncio.Event] = set()
        self._is_stopping = False

    async def run(self, context: Context) -> AsyncGenerator[pb.RecordEvent, None]:
        """Events of one recording; the call's initial metadata says that it has begun. Raises CapacityError where too many record."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop closed this moment: nobody listens
                loop.call_soon_threadsafe(news.set)

        recording = self._store.recorder.subscribe(wake)
        self._running.add(news)
        try:
            await context.send_initial_metadata(((RECORDING_METADATA, "begun"),))
            while not self._is_stopping:
                await news.wait()
                news.clear()
                # Hashing a long request takes a while, so it is done beside the loop.
                while (request := await asyncio.to_thread(recording.take)) is not None:
                    yield explanations.recorded_message(request)
        finally:
            self._running.discard(news)
            self._store.recorder.end(recording)

    def stop(self) -> None:
        """What waits is still sent, then the streams end."""
        self._is_stopping = True
        for news in self._running:
            news.set()
