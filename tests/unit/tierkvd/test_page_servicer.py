"""The page verbs over the wire, over a store whose answers are set: what travels, how what is pending arrives, and who is refused."""

from concurrent.futures import Future

import pytest

from tests.unit.tierkvd.daemon_rig import KEYS, NAMESPACE, TIMEOUT_S
from tests.unit.tierkvd.test_servicer import eventually, failure_of
from tierkv.answers import PageAcquisition, PageCommit, PendingRun, RunResult
from tierkv.errors import CapacityError, ClosedError, ConflictError, InvalidRequestError, UnavailableError
from tierkv.model.hints import Hints
from tierkv.model.outcomes import MissReason, TierName
from tierkv.pages import PageOutcome, PageRun
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import KEYS_PER_CALL
from tierkvd.sessions import AWAITED_LIMIT

CALLS = {
    "ReservePages": pb.ReservePagesRequest(pool_id=1, count=1),
    "CommitPages": pb.CommitPagesRequest(pool_id=1, namespace_id=NAMESPACE, runs=[pb.PageRun(keys=KEYS[0], pages=[0])]),
    "AcquirePages": pb.AcquirePagesRequest(pool_id=1, namespace_id=NAMESPACE, keys=KEYS[0]),
    "ReleasePages": pb.ReleasePagesRequest(pool_id=1, pages=[0]),
}


@pytest.fixture
async def metadata(rig, pages):
    """Of the calls of a session that maps a pool."""
    async with rig.session() as (_, found):
        connection, _ = await rig.map_pool(found)
        with connection:
            yield found


async def call(rig, name, request, metadata):
    return await getattr(rig.stub, name)(request, metadata=metadata, timeout=TIMEOUT_S)


async def events_of(rig, await_id, metadata, timeout_s=TIMEOUT_S):
    """(num_ready or num_blocks, miss) of each event."""
    stream = rig.stub.AwaitPages(pb.AwaitPagesRequest(pool_id=1, await_id=await_id), metadata=metadata, timeout=timeout_s)
    return [
        ("ready", event.ready.num_ready) if event.HasField("ready") else ("ended", event.ended.num_blocks, event.ended.miss)
        async for event in stream
    ]


def acquisition(*runs, miss=None):
    """Eight pages; runs — (start, length) of what is on its way."""
    pending = tuple(PendingRun(start, length, Future()) for start, length in runs)
    return PageAcquisition(tuple(range(10, 18)), (TierName.HOST,) * 8, pending, miss)


async def acquired(rig, pages, metadata, acquisition):
    pages.acquisition = acquisition
    return await call(rig, "AcquirePages", CALLS["AcquirePages"], metadata)


@pytest.mark.parametrize("name", CALLS)
async def test_a_session_without_a_pool_is_told_what_to_do(rig, pages, name):
    async with rig.session() as (_, metadata):
        error = await failure_of(call(rig, name, CALLS[name], metadata))
    assert isinstance(error, InvalidRequestError)
    assert "open the pool" in str(error)
    assert isinstance(await failure_of(call(rig, name, CALLS[name], None)), ClosedError)
    assert (pages.committed, pages.released) == ([], [])


async def test_runs_outcomes_and_hints_travel(rig, pages, metadata):
    outcomes = [(PageOutcome.COMMITTED, PageOutcome.PRESENT), (), (PageOutcome.REFUSED,)]
    pages.commit = PageCommit(outcomes, None)
    runs = [pb.PageRun(keys=KEYS[0] + KEYS[1], pages=[5, 6]), pb.PageRun(), pb.PageRun(keys=KEYS[3], pages=[9], parent=KEYS[2])]
    request = pb.CommitPagesRequest(pool_id=1, namespace_id=NAMESPACE, runs=runs, hints=pb.Hints(request_id="r"))
    reply = await call(rig, "CommitPages", request, metadata)
    assert list(reply.outcomes) == [pb.PAGE_OUTCOME_COMMITTED, pb.PAGE_OUTCOME_PRESENT, pb.PAGE_OUTCOME_REFUSED]
    expected = [PageRun(KEYS[:2], [5, 6]), PageRun([], []), PageRun([KEYS[3]], [9], parent=KEYS[2])]
    assert pages.committed == [(NAMESPACE, expected, Hints(request_id="r"))]


async def test_a_strict_commit_waits_for_the_disk(rig, pages, metadata):
    durable = Future()
    pages.commit = PageCommit([(PageOutcome.COMMITTED,)], durable)
    under_way = rig.stub.CommitPages(CALLS["CommitPages"], metadata=metadata, timeout=TIMEOUT_S)
    await eventually(lambda: pages.committed)
    assert not under_way.done()
    durable.set_exception(CapacityError("the disk is full"))
    assert isinstance(await failure_of(under_way), CapacityError)


async def test_released_pages_travel_as_often_as_they_are_named(rig, pages, metadata):
    await call(rig, "ReleasePages", pb.ReleasePagesRequest(pool_id=1, pages=[4, 4, 2]), metadata)
    assert pages.released == [[4, 4, 2]]
    many = pb.ReleasePagesRequest(pool_id=1, pages=[0] * (KEYS_PER_CALL + 1))
    assert isinstance(await failure_of(call(rig, "ReleasePages", many, metadata)), InvalidRequestError)
    assert pages.released == [[4, 4, 2]]


async def test_a_daemon_that_stops_gives_no_more_free_pages(rig, pages, metadata):
    rig.servicer._is_stopping = True
    assert isinstance(await failure_of(call(rig, "ReservePages", CALLS["ReservePages"], metadata)), UnavailableError)
    await call(rig, "CommitPages", CALLS["CommitPages"], metadata)


async def test_what_is_on_the_device_is_ready_and_leaves_nothing_to_await(rig, pages, metadata):
    reply = await acquired(rig, pages, metadata, acquisition(miss=MissReason.CAPACITY))
    assert list(reply.pages) == list(range(10, 18))
    assert list(reply.tiers) == [pb.TIER_HOST] * 8
    assert (reply.miss, reply.num_ready, reply.await_id) == (pb.MISS_REASON_CAPACITY, 8, 0)


async def test_what_is_pending_arrives_in_order_with_what_follows_it(rig, pages, metadata):
    whole = acquisition((1, 2), (5, 3))
    reply = await acquired(rig, pages, metadata, whole)
    assert reply.num_ready == 1
    for run in reversed(whole.pending):
        run.done.set_result(RunResult(run.num_blocks, None))
    assert await events_of(rig, reply.await_id, metadata) == [("ready", 5), ("ready", 8), ("ended", 8, 0)]


async def test_a_run_that_falls_short_ends_it(rig, pages, metadata):
    short = acquisition((1, 2), (5, 3))
    reply = await acquired(rig, pages, metadata, short)
    short.pending[0].done.set_result(RunResult(1, MissReason.CHECKSUM))
    assert await events_of(rig, reply.await_id, metadata) == [("ready", 2), ("ended", 2, pb.MISS_REASON_CHECKSUM)]


async def test_what_does_not_come_before_the_deadline_is_a_miss(rig, pages, metadata):
    reply = await acquired(rig, pages, metadata, acquisition((3, 5)))
    assert await events_of(rig, reply.await_id, metadata, timeout_s=0.3) == [("ended", 3, pb.MISS_REASON_TIMEOUT)]


async def test_an_acquisition_is_awaited_once_and_not_past_its_pool(rig, pages):
    async with rig.session() as (_, metadata):
        connection, _ = await rig.map_pool(metadata)
        done = acquisition((0, 8))
        done.pending[0].done.set_result(RunResult(8, None))
        first, second = [(await acquired(rig, pages, metadata, done)).await_id for _ in range(2)]
        assert first != second
        assert (await events_of(rig, first, metadata))[-1] == ("ended", 8, 0)
        assert isinstance(await failure_of(rig.stub.AwaitPages(awaiting(first), metadata=metadata).read()), ConflictError)
        connection.close()
        await eventually(lambda: pages.ended)
        again, _ = await rig.map_pool(metadata)
        with again:
            assert isinstance(
                await failure_of(rig.stub.AwaitPages(awaiting(second, pool_id=2), metadata=metadata).read()), ConflictError
            )


def awaiting(await_id, pool_id=1):
    return pb.AwaitPagesRequest(pool_id=pool_id, await_id=await_id)


async def test_acquisitions_that_nobody_awaits_are_bounded(rig, pages, metadata):
    handle = rig.servicer.sessions.get(metadata[0][1])
    first = handle.remember_pages(acquisition((0, 8)))
    for _ in range(AWAITED_LIMIT):
        last = handle.remember_pages(acquisition((0, 8)))
    assert handle.recall_pages(first) is None
    assert handle.recall_pages(last) is not None


@pytest.mark.parametrize(
    ("name", "request_", "sentence"),
    [
        ("CommitPages", pb.CommitPagesRequest(pool_id=1, namespace_id=b"n"), "namespace id has 32 bytes"),
        (
            "CommitPages",
            pb.CommitPagesRequest(pool_id=1, namespace_id=NAMESPACE, runs=[pb.PageRun(keys=KEYS[0])]),
            "one page for each",
        ),
        ("AcquirePages", pb.AcquirePagesRequest(pool_id=1, namespace_id=NAMESPACE, keys=b"k"), "32 bytes a key"),
        (
            "AcquirePages",
            pb.AcquirePagesRequest(pool_id=1, namespace_id=NAMESPACE, hints=pb.Hints(request_id="r" * 65)),
            "request id",
        ),
    ],
)
async def test_malformed_calls_are_named(rig, pages, metadata, name, request_, sentence):
    error = await failure_of(call(rig, name, request_, metadata))
    assert isinstance(error, InvalidRequestError)
    assert sentence in str(error)
    assert pages.committed == []
