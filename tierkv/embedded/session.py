"""The one session of an embedded store, how its verbs wait, and the thread that looks after expiries."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Self, TypeVar

from tierkv.clock import Clock
from tierkv.errors import UnavailableError
from tierkv.placement.worker import Worker
from tierkv.store import TieredStore

DEFAULT_TIMEOUT_S = 30.0
_HOUSEKEEPING_S = 1.0
T = TypeVar("T")


class EmbeddedSession:
    """A store and the session on it; `close` ends both. A context manager."""

    def __init__(self, store: TieredStore, *, clock: Clock, discard_arena: bool, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.tiered = store
        self._clock = clock
        self._discard_arena = discard_arena
        self._timeout_s = timeout_s
        self._session = store.open_session("embedded")
        self._pool_buffers: list[memoryview] = []
        self._housekeeper = Worker("tierkv-housekeeper", self._tidy, wait_s=lambda: _HOUSEKEEPING_S)
        self._housekeeper.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._housekeeper.stop()
        for buffer in self._pool_buffers:  # what is made of one, an array for example, keeps the memory mapped
            with contextlib.suppress(BufferError):
                buffer.release()
        self.tiered.close(discard_arena=self._discard_arena)
        self.tiered.end_pages(self._session)

    def _tidy(self) -> bool:
        self.tiered.expire()
        return False

    def _wait(self, future: Future[T], timeout_s: float | None, sentence: str) -> T:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return future.result(limit_s)
        except FutureTimeoutError:
            raise UnavailableError(sentence, timeout_s=limit_s) from None
