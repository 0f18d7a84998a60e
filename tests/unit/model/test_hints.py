"""Hints: what can be said, and what zero means."""

import pytest

from tierkv.errors import InvalidRequestError
from tierkv.model.hints import NO_HINTS, REQUEST_ID_BYTES, Hints


@pytest.mark.parametrize("request_id", ["r" * REQUEST_ID_BYTES, "é" * (REQUEST_ID_BYTES // 2)])
def test_the_longest_request_ids(request_id):
    assert Hints(request_id=request_id).request_id == request_id


@pytest.mark.parametrize(
    "values",
    [
        {"request_id": "r" * (REQUEST_ID_BYTES + 1)},
        {"request_id": "é" * (REQUEST_ID_BYTES // 2) + "r"},
        {"request_id": "\ud800"},
        {"priority": "urgent"},
        {"expected_idle_s": -1.0},
        {"expected_idle_s": float("nan")},
        {"expected_idle_s": float("inf")},
        {"pin_until_s": -0.5},
        {"pin_until_s": float("inf")},
    ],
)
def test_values_that_cannot_be_are_refused(values):
    with pytest.raises(InvalidRequestError):
        Hints(**values)


def test_zero_says_nothing():
    assert Hints(expected_idle_s=0.0, pin_until_s=0.0) == NO_HINTS
    assert Hints(expected_idle_s=-0.0).expected_idle_s is None
