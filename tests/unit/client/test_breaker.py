"""The circuit breaker over a clock that is moved by hand."""

import pytest

from tierkv.client.breaker import Breaker, BreakerSettings
from tierkv.errors import UnavailableError
from tierkv.testing.clock import ManualClock

SETTINGS = BreakerSettings(threshold=2, first_pause_s=1.0, longest_pause_s=4.0)


@pytest.fixture
def clock():
    return ManualClock(seed=3)


@pytest.fixture
def breaker(clock):
    return Breaker(clock, SETTINGS)


def fail(breaker, times):
    for _ in range(times):
        breaker.before_call()
        breaker.failed()


def test_it_opens_after_the_threshold_and_refuses_at_once(breaker):
    fail(breaker, 1)
    assert not breaker.is_open
    fail(breaker, 1)
    assert breaker.is_open
    with pytest.raises(UnavailableError, match="not asked again"):
        breaker.before_call()


def test_success_forgets_earlier_failures(breaker):
    fail(breaker, 1)
    breaker.before_call()
    breaker.succeeded()
    fail(breaker, 1)
    assert not breaker.is_open


def test_after_the_pause_one_caller_tries_and_success_closes_it(breaker, clock):
    fail(breaker, 2)
    clock.advance(1.0)
    breaker.before_call()
    with pytest.raises(UnavailableError):
        breaker.before_call()
    breaker.succeeded()
    breaker.before_call()


def test_a_trial_that_never_reports_costs_one_pause_only(breaker, clock):
    fail(breaker, 2)
    clock.advance(1.0)
    breaker.before_call()
    clock.advance(1.0)
    breaker.before_call()


def test_pauses_grow_to_their_bound(breaker, clock):
    fail(breaker, 2)
    for longest_s in (2.0, 4.0, 4.0, 4.0):
        clock.advance(4.0)
        breaker.before_call()
        breaker.failed()
        assert breaker.is_open
        clock.advance(longest_s)
        assert not breaker.is_open
