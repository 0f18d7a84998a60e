"""One background thread that works until there is nothing left, then sleeps until it is kicked or its time comes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Worker:
    """One thread that runs `work` until it says there is no more, then waits for a kick or for `wait_s()` seconds."""

    def __init__(
        self, name: str, work: Callable[[], bool], *, wait_s: Callable[[], float | None] = lambda: None, pause_s: float = 0.0
    ) -> None:
        """work — a step, True if there may be more; wait_s — how long to sleep at most without a kick; pause_s — between kick and work."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._work = work
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._wake = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def kick(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._wait_s())
            if self._pause_s:
                self._stopping.wait(self._pause_s)
            self._wake.clear()
            try:
                while self._work() and not self._stopping.is_set():
                    pass
            except Exception:
                _log.exception("a worker's step failed; it goes on with the next")
