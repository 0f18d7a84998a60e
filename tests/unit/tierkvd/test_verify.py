"""Verify ends with its caller, so that neither an abandoned one nor a stop of the daemon goes on for minutes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tierkv.answers import VerifyReport
from tierkv.clock import SystemClock
from tierkv.settings import LimitSettings
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkvd.servicer import Servicer

DEADLINE_S = 10.0


class EndlessStore:
    """Verifies for as long as somebody listens."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.give_up = threading.Event()

    def verify(self, progress: Any) -> VerifyReport:
        frames = 0
        try:
            while not self.give_up.is_set():
                frames += 256
                progress(frames, 0, 0)
                self.give_up.wait(0.001)
        finally:
            self.is_over.set()
        return VerifyReport(frames, 0, ())


def test_an_abandoned_verification_ends() -> None:
    store: Any = EndlessStore()
    context: Any = None

    async def run() -> bool:
        events: Any = Servicer(store, SystemClock(), LimitSettings()).Verify(pb.VerifyRequest(), context)
        assert (await anext(events)).HasField("progress")
        await events.aclose()
        try:
            return await asyncio.to_thread(store.is_over.wait, DEADLINE_S)
        finally:
            store.give_up.set()

    assert asyncio.run(run())
