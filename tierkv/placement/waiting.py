"""Futures that wait for several things at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Countdown:
    """Calls `finish` once, when `count` parts have reported; parts may report from any thread."""

    def __init__(self, count: int, finish: Callable[[int], None]) -> None:
        self._remaining = count
        self._failures = 0
        self._finish = finish
        self._lock = threading.Lock()
        if count == 0:
            finish(0)

    def report(self, ok: bool) -> None:
        """One part is done; `finish` gets the number of parts that failed."""
        with self._lock:
            self._remaining -= 1
            self._failures += not ok
            is_last = self._remaining == 0
        if is_last:
            self._finish(self._failures)


def promised() -> Future[Any]:
    """A future that whoever waits for it cannot cancel: the work goes on, and completing it must not fail."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def resolved(value: T) -> Future[T]:
    """A future that is done."""
    future: Future[T] = promised()
    future.set_result(value)
    return future


def after_all(futures: list[Future[None]], evaluate: Callable[[], T]) -> Future[T]:
    """A future of `evaluate()`, called when every one of `futures` is done, whatever became of them."""
    result: Future[T] = promised()

    def finish(_failures: int) -> None:
        try:
            result.set_result(evaluate())
        except Exception as error:  # the waiter must hear of a bug, not hang
            result.set_exception(error)

    countdown = Countdown(len(futures), finish)
    for future in futures:
        future.add_done_callback(lambda done: countdown.report(not done.cancelled() and done.exception() is None))
    return result
