"""Page verbs ⇄ protobuf messages, for both sides. Pure; see `tierkv.wire.messages`."""

from __future__ import annotations

from collections.abc import Sequence

from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.hints import Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.pages import PageOutcome, PageRun
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import KEYS_PER_CALL
from tierkv.wire.messages import hints_message, pack_keys, page_outcomes_of, unpack_keys, unpack_parent

_PAGE_LIMIT = 1 << 32


def reserve_pages_request(pool_id: int, count: int) -> pb.ReservePagesRequest:
    """Raises InvalidRequestError for a count below zero or above the bound of a call."""
    if not 0 <= count <= KEYS_PER_CALL:
        raise InvalidRequestError("a call reserves 0 to 65,536 pages", count=count)
    return pb.ReservePagesRequest(pool_id=pool_id, count=count)


def commit_pages_request(pool_id: int, namespace_id: NamespaceId, runs: Sequence[PageRun], hints: Hints) -> pb.CommitPagesRequest:
    """Raises InvalidRequestError as `runs_of` does."""
    _check_runs([(len(run.keys), len(run.pages)) for run in runs])
    for run in runs:
        if run.pages and not 0 <= min(run.pages) <= max(run.pages) < _PAGE_LIMIT:
            raise InvalidRequestError("a page is a number of the pool, from 0", lowest=min(run.pages), highest=max(run.pages))
    messages = [pb.PageRun(keys=pack_keys(run.keys), pages=run.pages, parent=run.parent or b"") for run in runs]
    return pb.CommitPagesRequest(pool_id=pool_id, namespace_id=namespace_id, runs=messages, hints=hints_message(hints))


def runs_of(request: pb.CommitPagesRequest) -> list[PageRun]:
    """Raises InvalidRequestError for too many runs or keys, and for runs whose keys and pages differ in number."""
    runs = [PageRun(unpack_keys(run.keys), list(run.pages), unpack_parent(run.parent)) for run in request.runs]
    _check_runs([(len(run.keys), len(run.pages)) for run in runs])
    return runs


def acquire_pages_request(
    pool_id: int, namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints
) -> pb.AcquirePagesRequest:
    """Raises InvalidRequestError for too many keys, or malformed ones."""
    if len(keys) > KEYS_PER_CALL:
        raise InvalidRequestError("too many keys in one call", keys=len(keys), limit=KEYS_PER_CALL)
    return pb.AcquirePagesRequest(pool_id=pool_id, namespace_id=namespace_id, keys=pack_keys(keys), hints=hints_message(hints))


def outcomes_of(runs: Sequence[PageRun], reply: pb.CommitPagesReply) -> list[tuple[PageOutcome, ...]]:
    """Run by run. Raises DataError where they do not fit the runs."""
    outcomes = page_outcomes_of(reply.outcomes)
    if len(outcomes) != sum(len(run.keys) for run in runs):
        raise DataError("the daemon's answer does not fit the runs", outcomes=len(outcomes), runs=len(runs))
    found = iter(outcomes)
    return [tuple(next(found) for _ in run.keys) for run in runs]


def released_pages_of(request: pb.ReleasePagesRequest) -> list[int]:
    """Raises InvalidRequestError for more pages than a call may have."""
    if len(request.pages) > KEYS_PER_CALL:
        raise InvalidRequestError("too many pages in one call", pages=len(request.pages), limit=KEYS_PER_CALL)
    return list(request.pages)


def _check_runs(sizes: Sequence[tuple[int, int]]) -> None:
    num_keys = sum(keys for keys, _ in sizes)
    if num_keys > KEYS_PER_CALL or len(sizes) > KEYS_PER_CALL:
        raise InvalidRequestError("too many keys in one call", keys=num_keys, runs=len(sizes), limit=KEYS_PER_CALL)
    for num_run_keys, num_run_pages in sizes:
        if num_run_keys != num_run_pages:
            raise InvalidRequestError("a run has one page for each of its keys", keys=num_run_keys, pages=num_run_pages)
