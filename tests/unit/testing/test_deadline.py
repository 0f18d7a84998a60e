"""`wait_until`: returns what the condition answers, gives up by name, lets errors through."""

import pytest

from tierkv.testing.deadline import wait_until


def test_returns_the_first_true_answer():
    answers = iter([None, "", "third"])
    assert wait_until(lambda: next(answers), timeout_s=30, what="an answer") == "third"


def test_asks_once_even_without_time():
    assert wait_until(lambda: 7, timeout_s=0, what="seven") == 7


def test_names_what_it_waited_for():
    with pytest.raises(TimeoutError, match=r"waited 0.01 s for a daemon to be ready"):
        wait_until(lambda: False, timeout_s=0.01, what="a daemon to be ready")


def test_lets_errors_of_the_condition_through():
    def fail():
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        wait_until(fail, timeout_s=30, what="nothing")
