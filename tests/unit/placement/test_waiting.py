"""Futures that wait for several parts."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tierkv.placement.waiting import Countdown, after_all, promised, resolved


def test_countdown_finishes_once_with_the_number_of_failures() -> None:
    heard: list[int] = []
    countdown = Countdown(3, heard.append)
    countdown.report(True)
    countdown.report(False)
    assert heard == []
    countdown.report(False)
    assert heard == [2]


def test_countdown_of_nothing_is_over_at_once() -> None:
    heard: list[int] = []
    Countdown(0, heard.append)
    assert heard == [0]


def test_after_all_evaluates_when_the_last_part_is_done_even_if_parts_failed() -> None:
    first: Future[None] = Future()
    second: Future[None] = Future()
    joined = after_all([first, second], lambda: "evaluated")
    first.set_exception(ValueError("part"))
    assert not joined.done()
    second.set_result(None)
    assert joined.result(0) == "evaluated"


def test_after_all_passes_on_a_bug_in_the_evaluation() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        after_all([resolved(None)], broken).result(0)


def test_after_all_does_not_wait_for_what_was_cancelled() -> None:
    part: Future[None] = Future()
    joined = after_all([part], lambda: "evaluated")
    assert part.cancel()
    assert joined.result(0) == "evaluated"


def test_who_waits_cannot_cancel_what_others_wait_for_too() -> None:
    joined = after_all([promised()], lambda: "evaluated")
    assert not joined.cancel()
