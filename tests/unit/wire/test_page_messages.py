"""Page verbs as messages: round trips, and what malformed input gets on either side."""

import pytest

from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.pages import PageOutcome, PageRun
from tierkv.wire import messages, page_messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import KEYS_PER_CALL

NAMESPACE = NamespaceId(bytes(32))
KEYS = [BlockKey(bytes([number]) * 32) for number in range(4)]


def test_runs_come_back():
    runs = [PageRun(KEYS[:2], [7, 2**32 - 1]), PageRun(KEYS[2:3], [0], parent=KEYS[3]), PageRun([], [])]
    request = page_messages.commit_pages_request(3, NAMESPACE, runs, Hints(request_id="r"))
    assert page_messages.runs_of(request) == runs
    assert (request.pool_id, request.hints.request_id) == (3, "r")


@pytest.mark.parametrize(
    "run",
    [
        PageRun(KEYS[:2], [1]),
        PageRun(KEYS[:1], [1, 2]),
        PageRun(KEYS[:1], [-1]),
        PageRun(KEYS[:1], [2**32]),
        PageRun([BlockKey(b"short")], [1]),
        PageRun(KEYS[:1] * (KEYS_PER_CALL + 1), range(KEYS_PER_CALL + 1)),
    ],
)
def test_runs_that_cannot_be_are_not_sent(run):
    with pytest.raises(InvalidRequestError):
        page_messages.commit_pages_request(3, NAMESPACE, [run], NO_HINTS)


@pytest.mark.parametrize(
    "runs",
    [
        [pb.PageRun(keys=bytes(32), pages=[])],
        [pb.PageRun(keys=bytes(33), pages=[1])],
        [pb.PageRun(keys=bytes(32), pages=[1], parent=b"p")],
        [pb.PageRun(keys=bytes(32 * KEYS_PER_CALL), pages=range(KEYS_PER_CALL)), pb.PageRun(keys=bytes(32), pages=[1])],
        [pb.PageRun()] * (KEYS_PER_CALL + 1),
    ],
    ids=["no page", "half a key", "half a parent", "too many keys", "too many runs"],
)
def test_runs_that_cannot_be_are_not_taken(runs):
    with pytest.raises(InvalidRequestError):
        page_messages.runs_of(pb.CommitPagesRequest(namespace_id=NAMESPACE, runs=runs))


@pytest.mark.parametrize("count", [-1, KEYS_PER_CALL + 1])
def test_a_count_out_of_bounds_is_not_sent(count):
    with pytest.raises(InvalidRequestError):
        page_messages.reserve_pages_request(3, count)


def test_outcomes_are_told_run_by_run():
    runs = [PageRun(KEYS[:2], [7, 8]), PageRun([], []), PageRun(KEYS[2:3], [9])]
    reply = pb.CommitPagesReply(outcomes=[pb.PAGE_OUTCOME_COMMITTED, pb.PAGE_OUTCOME_PRESENT, pb.PAGE_OUTCOME_REFUSED])
    assert page_messages.outcomes_of(runs, reply) == [(PageOutcome.COMMITTED, PageOutcome.PRESENT), (), (PageOutcome.REFUSED,)]
    with pytest.raises(DataError):
        page_messages.outcomes_of(runs[:2], reply)


def test_a_call_releases_a_bounded_number_of_pages():
    assert page_messages.released_pages_of(pb.ReleasePagesRequest(pages=[3, 3, 4])) == [3, 3, 4]
    with pytest.raises(InvalidRequestError, match="too many"):
        page_messages.released_pages_of(pb.ReleasePagesRequest(pages=[0] * (KEYS_PER_CALL + 1)))


def test_outcomes_have_the_numbers_of_the_protocol():
    for outcome in PageOutcome:
        (number,) = messages.page_outcome_numbers([outcome])
        assert number == pb.PageOutcome.Value(f"PAGE_OUTCOME_{outcome.name}")
        assert messages.page_outcomes_of([number]) == (outcome,)
    with pytest.raises(DataError):
        messages.page_outcomes_of([9])
