"""Errors ⇄ statuses: every class survives the way there and back, with its sentence and values."""

import grpc
import pytest

from tierkv import errors
from tierkv.wire import status
from tierkv.wire.kinds import CLASS_OF_KIND

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.TierKVError)]
CLASSES.remove(errors.TierKVError)


def test_every_class_has_a_number():
    assert set(CLASS_OF_KIND.values()) == set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES)
def test_round_trip(cls):
    error = cls("what was wrong", key="value", number=7)
    back = status.error_of(status.code_of(error), str(error), status.trailing_metadata_of(error))
    assert type(back) is cls
    assert str(back) == str(error)


def test_without_metadata_the_class_and_the_text_remain():
    back = status.error_of(grpc.StatusCode.ABORTED, "text", ())
    assert isinstance(back, errors.ConflictError)
    assert "text" in str(back)


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"message": 1}', b"\xff" * 50, b"{" * 10_000])
def test_garbage_in_the_metadata_costs_the_context_only(garbage):
    back = status.error_of(grpc.StatusCode.DATA_LOSS, "text", [("tierkv-error-bin", garbage)])
    assert isinstance(back, errors.DataError)


@pytest.mark.parametrize("code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE])
def test_what_a_late_or_absent_daemon_makes_is_unavailable(code):
    assert status.class_of(code) is errors.UnavailableError


def test_a_long_context_is_left_out_not_cut():
    error = errors.InvalidRequestError("x" * 5000)
    assert status.trailing_metadata_of(error) == ()
