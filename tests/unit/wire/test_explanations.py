"""Explanations and recorded requests ⇄ messages."""

import pytest

from tierkv.answers import ExplainedEvent, Explanation, RecordedRequest
from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.outcomes import MissReason, TierName
from tierkv.wire import explanations
from tierkv.wire._generated import tierkv_pb2 as pb

EVENTS = (ExplainedEvent(1.25, "saved", ""), ExplainedEvent(2.0, "evicted", "oldest of T1"))


@pytest.mark.parametrize(
    "explanation",
    [
        Explanation(bytes(32), "", True, TierName.DISK, None, "held", EVENTS),
        Explanation(b"abcd", "", False, None, MissReason.NEVER_SEEN, "nothing"),
        Explanation(None, "r", False, TierName.HOST, MissReason.NAMESPACE, "salt", EVENTS),
    ],
)
def test_an_explanation_comes_back_equal(explanation):
    assert explanations.explanation_of(explanations.explanation_message(explanation)) == explanation


def test_a_tier_that_is_not_known_is_an_error():
    with pytest.raises(DataError):
        explanations.explanation_of(pb.ExplainReply(tier=9))  # type: ignore[arg-type]  # no number of the enum


@pytest.mark.parametrize(("subject", "tokens"), [(b"abcd", []), ("r", [0, 1, 2**32 - 1])])
def test_a_question_comes_back_equal(subject, tokens):
    message = explanations.explain_message(subject, tokens)
    assert explanations.explain_subject_of(message) == (subject, tokens)
    assert message.token_ids == b"".join(token.to_bytes(4, "little") for token in tokens)


@pytest.mark.parametrize("tokens", [[-1], [2**32], [1.5], ["1"]])
def test_malformed_token_ids_are_not_sent(tokens):
    with pytest.raises(InvalidRequestError, match="token ids"):
        explanations.explain_message("r", tokens)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [(pb.ExplainRequest(), "give one"), (pb.ExplainRequest(request_id="r", token_ids=b"12345"), "4 bytes an id")],
)
def test_malformed_questions_are_not_taken(message, sentence):
    with pytest.raises(InvalidRequestError, match=sentence):
        explanations.explain_subject_of(message)


@pytest.mark.parametrize("request_id", ["", "x" * 65, "\udcff"])
def test_malformed_request_ids_are_not_sent(request_id):
    with pytest.raises(InvalidRequestError, match="request id"):
        explanations.explain_message(request_id, [])


def test_a_recorded_request_comes_back_equal():
    request = RecordedRequest(12.5, 48, (2**64 - 1, 0, 7), 16, 3, 2)
    assert explanations.recorded_of(explanations.recorded_message(request)) == request
