"""The verbs over the wire: what they answer, and what bad input and broken-off calls get."""

import asyncio
from concurrent.futures import Future

import grpc
import grpc.aio
import pytest

from tests.unit.tierkvd.daemon_rig import BLOCK_BYTES, KEYS, NAMESPACE, TIMEOUT_S, content_of
from tierkv.answers import Acquisition, CommitResult, VerifyReport
from tierkv.errors import CapacityError, ClosedError, ConflictError, InternalError, InvalidRequestError, UnavailableError
from tierkv.model.outcomes import TierName
from tierkv.store import SessionId
from tierkv.wire import messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import KEYS_PER_CALL, LABEL_BYTES, PROTOCOL_VERSION, SESSION_METADATA
from tierkv.wire.status import error_of_rpc
from tierkvd.servicer import COMMIT_GRACE_S
from tierkvd.sessions import AWAITED_LIMIT, SessionHandle

GRANTED = pb.RESERVE_OUTCOME_GRANTED


async def eventually(condition):
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - the store's state has no event to wait for
            await asyncio.sleep(0.005)


async def failure_of(call):
    """The error that a call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return error_of_rpc(caught.value)


ALL_KEYS = b"".join(KEYS)


def lookup(keys=ALL_KEYS, namespace=NAMESPACE):
    return pb.LookupRequest(namespace_id=namespace, keys=keys)


async def test_a_session_says_what_it_lives_by_and_its_end_returns_what_it_held(rig):
    async with rig.session() as (stream, metadata):
        await rig.register(metadata)
        reserved = await rig.stub.Reserve(
            pb.ReserveRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS)), metadata=metadata, timeout=TIMEOUT_S
        )
        assert list(reserved.outcomes) == [GRANTED] * len(KEYS)
        assert len(set(reserved.offsets)) == len(KEYS)
        stats = rig.store.stats()
        assert (stats.sessions, stats.reservations) == (1, 1)
        stream.cancel()
        await eventually(lambda: rig.store.stats().sessions == 0)
    assert rig.store.stats().reservations == 0
    assert rig.store.stats().tiers[0].used_bytes == 0


async def test_opened_names_version_and_lifetimes(rig):
    stream = rig.stub.OpenSession(pb.OpenSessionRequest(label="x"))
    opened = (await stream.read()).opened
    assert opened.protocol_version == PROTOCOL_VERSION
    assert (opened.lease_ttl_s, opened.reservation_ttl_s, len(opened.session_secret)) == (120.0, 60.0, 32)
    stream.cancel()


@pytest.mark.parametrize(
    ("request_of", "sentence"),
    [
        (lambda: lookup(keys=b"x" * 33), "32 bytes a key"),
        (lambda: lookup(keys=bytes(32 * (KEYS_PER_CALL + 1))), "too many keys"),
        (lambda: lookup(namespace=b"short"), "namespace id has 32 bytes"),
        (lambda: lookup(namespace=bytes(32)), "namespace"),
    ],
)
async def test_malformed_calls_are_named_and_change_nothing(rig, request_of, sentence):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        error = await failure_of(rig.stub.Lookup(request_of(), metadata=metadata, timeout=TIMEOUT_S))
        assert isinstance(error, InvalidRequestError)
        assert sentence in str(error)
        assert (await rig.stub.Lookup(lookup(), metadata=metadata, timeout=TIMEOUT_S)).miss == pb.MISS_REASON_NEVER_SEEN


async def test_a_parent_of_another_length_and_an_unknown_durability_are_named(rig):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        request = pb.ReserveRequest(namespace_id=NAMESPACE, keys=KEYS[0], parent=b"p")
        assert "parent" in str(await failure_of(rig.stub.Reserve(request, metadata=metadata, timeout=TIMEOUT_S)))
        commit = pb.CommitRequest(reservation_id=1, durability=77)  # type: ignore[arg-type]  # no number of the enum
        error = await failure_of(rig.stub.Commit(commit, metadata=metadata, timeout=TIMEOUT_S))
        assert isinstance(error, InvalidRequestError)
        assert "77" in str(error)


@pytest.mark.parametrize(
    ("hints", "sentence"),
    [
        (pb.Hints(request_id="r" * 65), "request id"),
        (pb.Hints(priority=9), "priority"),  # type: ignore[arg-type]  # no number of the enum
        (pb.Hints(expected_idle_s=-1.0), "expected_idle_s"),
        (pb.Hints(pin_until_s=float("nan")), "pin_until_s"),
    ],
)
async def test_hints_that_cannot_be_are_named_and_change_nothing(rig, hints, sentence):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        kept = {"metadata": metadata, "timeout": TIMEOUT_S}
        header = pb.PutRequest(header=pb.PutHeader(namespace_id=NAMESPACE, keys=KEYS[0], hints=hints))
        calls = [
            rig.stub.Reserve(pb.ReserveRequest(namespace_id=NAMESPACE, keys=KEYS[0], hints=hints), **kept),
            rig.stub.Acquire(pb.AcquireRequest(namespace_id=NAMESPACE, keys=KEYS[0], hints=hints), **kept),
            rig.stub.Advise(pb.AdviseRequest(namespace_id=NAMESPACE, keys=KEYS[0], hints=hints), **kept),
            rig.stub.Put(iter([header]), **kept),
            rig.stub.Get(pb.GetRequest(namespace_id=NAMESPACE, keys=KEYS[0], hints=hints), **kept).read(),
        ]
        for call in calls:
            error = await failure_of(call)
            assert isinstance(error, InvalidRequestError)
            assert sentence in str(error)
        stats = rig.store.stats()
        assert (stats.reservations, stats.leases) == (0, 0)


async def test_advice_reaches_the_store(rig):
    async with rig.session(shares_memory=False) as (_, metadata):
        await rig.register(metadata)
        await rig.save(metadata, KEYS[:2])
        request = pb.AdviseRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS[:4]), hints=pb.Hints(pin_until_s=4e9))
        assert (await rig.stub.Advise(request, metadata=metadata, timeout=TIMEOUT_S)).advised == 2
        assert [rig.store._books.retention.is_pinned(key) for key in KEYS[:3]] == [True, True, False]


async def test_an_impossible_layout_is_refused(rig):
    async with rig.session() as (_, metadata):
        request = pb.RegisterRequest(identity=pb.Identity(weights="w"), layout=pb.Layout(shape=[1], dtype="float7", block_tokens=1))
        error = await failure_of(rig.stub.Register(request, metadata=metadata, timeout=TIMEOUT_S))
        assert isinstance(error, InvalidRequestError)
        assert "float7" in str(error)


@pytest.mark.parametrize("metadata", [None, ((SESSION_METADATA, b"z" * 32),)])
async def test_a_call_without_a_known_session_must_attach_again(rig, metadata):
    assert isinstance(await failure_of(rig.stub.Lookup(lookup(), metadata=metadata, timeout=TIMEOUT_S)), ClosedError)


async def test_an_attach_secret_opens_one_session_and_not_late(rig):
    secret = rig.servicer.sessions.new_attach_secret()
    first = rig.stub.OpenSession(pb.OpenSessionRequest(attach_secret=secret))
    assert (await first.read()).HasField("opened")
    assert isinstance(await failure_of(rig.stub.OpenSession(pb.OpenSessionRequest(attach_secret=secret)).read()), ClosedError)
    late = rig.servicer.sessions.new_attach_secret()
    rig.clock.advance(11)
    assert isinstance(await failure_of(rig.stub.OpenSession(pb.OpenSessionRequest(attach_secret=late)).read()), ClosedError)
    first.cancel()


async def test_unused_attach_secrets_are_bounded_and_expire(rig):
    for _ in range(256):
        rig.servicer.sessions.new_attach_secret()
    with pytest.raises(CapacityError):
        rig.servicer.sessions.new_attach_secret()
    rig.clock.advance(11)
    rig.servicer.sessions.new_attach_secret()


async def test_a_label_is_bounded(rig):
    request = pb.OpenSessionRequest(label="é" * LABEL_BYTES)
    assert isinstance(await failure_of(rig.stub.OpenSession(request).read()), InvalidRequestError)


async def test_a_session_without_shared_memory_streams_only(rig):
    async with rig.session(shares_memory=False) as (_, metadata):
        await rig.register(metadata)
        for call in (
            rig.stub.Reserve(pb.ReserveRequest(namespace_id=NAMESPACE, keys=KEYS[0]), metadata=metadata, timeout=TIMEOUT_S),
            rig.stub.Acquire(pb.AcquireRequest(namespace_id=NAMESPACE, keys=KEYS[0]), metadata=metadata, timeout=TIMEOUT_S),
        ):
            error = await failure_of(call)
            assert isinstance(error, InvalidRequestError)
            assert "Put and Get" in str(error)
        assert list((await rig.save(metadata, KEYS[:3])).outcomes) == [GRANTED] * 3


async def test_what_is_reserved_filled_and_committed_is_acquired_in_place(rig):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        reserved = await rig.stub.Reserve(
            pb.ReserveRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS)), metadata=metadata, timeout=TIMEOUT_S
        )
        committed = await rig.stub.Commit(
            pb.CommitRequest(reservation_id=reserved.reservation_id), metadata=metadata, timeout=TIMEOUT_S
        )
        assert committed.committed == len(KEYS)
        acquired = await rig.stub.Acquire(
            pb.AcquireRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS)), metadata=metadata, timeout=TIMEOUT_S
        )
        assert list(acquired.offsets) == list(reserved.offsets)
        assert set(acquired.tiers) == {pb.TIER_HOST}
        none_left = rig.stub.Await(pb.AwaitRequest(lease_id=acquired.lease_id), metadata=metadata, timeout=TIMEOUT_S)
        assert isinstance(await failure_of(none_left.read()), ConflictError)
        delete = pb.DeleteRequest(namespace_id=NAMESPACE, keys=KEYS[0])
        assert isinstance(await failure_of(rig.stub.Delete(delete, metadata=metadata, timeout=TIMEOUT_S)), ConflictError)
        await rig.stub.Release(pb.ReleaseRequest(lease_ids=[acquired.lease_id, 99]), metadata=metadata, timeout=TIMEOUT_S)
        assert (await rig.stub.Delete(delete, metadata=metadata, timeout=TIMEOUT_S)).deleted == 1


async def test_streamed_blocks_come_back_as_they_were(rig):
    async with rig.session(shares_memory=False) as (_, metadata):
        await rig.register(metadata)
        await rig.save(metadata, KEYS[:4])
        again = await rig.save(metadata, KEYS[:6])
        assert list(again.outcomes) == [pb.RESERVE_OUTCOME_PRESENT] * 4 + [GRANTED] * 2
        call = rig.stub.Get(pb.GetRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS)), metadata=metadata, timeout=TIMEOUT_S)
        header, *chunks = [event async for event in call]
        assert (len(header.header.tiers), header.header.block_bytes) == (6, BLOCK_BYTES)
        assert messages.miss_of(header.header.miss) == "never_seen"
        assert [(event.chunk.block_idx, event.chunk.data) for event in chunks] == [
            (idx, content_of(key)) for idx, key in enumerate(KEYS[:6])
        ]
        assert rig.store.stats().leases == 0


def put_header(keys):
    return pb.PutRequest(header=pb.PutHeader(namespace_id=NAMESPACE, keys=b"".join(keys)))


def put_chunk(idx, data):
    return pb.PutRequest(chunk=pb.PutChunk(block_idx=idx, data=data))


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([], "begins with its header"),
        ([put_chunk(0, b"x")], "begins with its header"),
        ([put_header(KEYS[:2]), put_chunk(2, b"x")], "a chunk names one of the keys"),
        ([put_header(KEYS[:2]), put_chunk(0, b"")], "1 byte to 1 MiB"),
        ([put_header(KEYS[:2]), put_header(KEYS[:2])], "a chunk names one of the keys"),
        ([put_header(KEYS[:2]), put_chunk(0, bytes(BLOCK_BYTES + 1))], "more bytes than it has"),
        ([put_header(KEYS[:2]), put_chunk(0, bytes(BLOCK_BYTES)), put_chunk(1, b"x")], "incomplete"),
    ],
)
async def test_a_malformed_put_leaves_nothing(rig, parts, sentence):
    async def stream():
        for part in parts:
            yield part

    async with rig.session(shares_memory=False) as (_, metadata):
        await rig.register(metadata)
        error = await failure_of(rig.stub.Put(stream(), metadata=metadata, timeout=TIMEOUT_S))
        assert isinstance(error, InvalidRequestError)
        assert sentence in str(error)
        stats = rig.store.stats()
        assert (stats.reservations, stats.tiers[0].used_bytes) == (0, 0)


async def begin_put(rig, metadata, keys):
    call = rig.stub.Put(metadata=metadata, timeout=TIMEOUT_S)
    await call.write(put_header(keys))
    await call.write(put_chunk(0, content_of(keys[0])))
    await eventually(lambda: rig.store.stats().reservations == 1)
    return call


async def test_a_put_that_breaks_off_leaves_nothing(rig):
    async with rig.session(shares_memory=False) as (_, metadata):
        await rig.register(metadata)
        call = await begin_put(rig, metadata, KEYS[:2])
        call.cancel()
        await eventually(lambda: rig.store.stats().reservations == 0)
        assert rig.store.stats().tiers[0].used_bytes == 0


async def test_a_put_slower_than_its_reservation_writes_no_more(rig):
    async with rig.session(shares_memory=False) as (_, metadata):
        await rig.register(metadata)
        call = await begin_put(rig, metadata, KEYS[:2])
        rig.clock.advance(55)
        await call.write(put_chunk(1, content_of(KEYS[1])))
        assert isinstance(await failure_of(call), ConflictError)


async def test_a_put_whose_session_ended_writes_no_more(rig):
    """Its extents may be another's by then: what it still sends must not reach the arena."""
    async with rig.session() as (_, others):
        await rig.register(others)
        async with rig.session(shares_memory=False) as (stream, metadata):
            call = await begin_put(rig, metadata, KEYS[:2])
            stream.cancel()
            await eventually(lambda: rig.store.stats().sessions == 1)
            request = pb.ReserveRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS))
            theirs = await rig.stub.Reserve(request, metadata=others, timeout=TIMEOUT_S)
            before = bytes(rig.store.view(rig.extent(theirs.offsets[1])))
            await call.write(put_chunk(1, content_of(KEYS[1])))
            assert isinstance(await failure_of(call), ClosedError)
            assert bytes(rig.store.view(rig.extent(theirs.offsets[1]))) == before


async def test_a_get_whose_session_ended_sends_no_more(rig, monkeypatch):
    """What its lease pinned may be evicted and its place reused: what is sent then would be wrong bytes."""
    async with rig.session(shares_memory=False) as (stream, metadata):
        await rig.register(metadata)
        await rig.save(metadata, KEYS)
        monkeypatch.setattr("tierkvd.streams.CHUNK_BYTES", 64)
        call = rig.stub.Get(pb.GetRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS)), metadata=metadata, timeout=TIMEOUT_S)
        assert (await call.read()).HasField("header")
        (session,) = rig.servicer.sessions._open.values()
        rig.servicer.sessions.close(session)

        async def rest():
            while await call.read() is not grpc.aio.EOF:
                pass

        assert isinstance(await failure_of(rest()), ClosedError)
        stream.cancel()


async def test_a_get_that_breaks_off_releases_its_lease(rig, monkeypatch):
    async with rig.session(shares_memory=False) as (_, metadata):
        await rig.register(metadata)
        await rig.save(metadata, KEYS)
        monkeypatch.setattr("tierkvd.streams.CHUNK_BYTES", 64)
        call = rig.stub.Get(pb.GetRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS)), metadata=metadata, timeout=TIMEOUT_S)
        assert (await call.read()).HasField("header")
        call.cancel()
        await eventually(lambda: rig.store.stats().leases == 0)


@pytest.mark.parametrize("verb", ["Put", "Commit"])
async def test_a_client_that_hangs_up_cancels_no_future_of_the_store(rig, monkeypatch, verb):
    """The store's thread completes the future of a strict commit later, and must be able to."""
    durable = Future()
    commit = rig.store.commit

    def commit_slowly(*arguments):
        return CommitResult(commit(*arguments).committed, durable)

    monkeypatch.setattr(rig.store, "commit", commit_slowly)
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        if verb == "Put":
            call = asyncio.ensure_future(rig.save(metadata, KEYS[:2]))
        else:
            request = pb.ReserveRequest(namespace_id=NAMESPACE, keys=KEYS[0])
            reserved = await rig.stub.Reserve(request, metadata=metadata, timeout=TIMEOUT_S)
            request = pb.CommitRequest(reservation_id=reserved.reservation_id, durability=pb.DURABILITY_STRICT)
            call = rig.stub.Commit(request, metadata=metadata, timeout=TIMEOUT_S)
        await eventually(lambda: rig.store.stats().tiers[0].blocks > 0)
        call.cancel()
        await eventually(lambda: not [t for t in asyncio.all_tasks() if "_handle_" in repr(t) and verb.lower() in repr(t).lower()])
        durable.set_result(None)


async def test_a_wait_for_the_disk_ends_with_the_deadline(rig, monkeypatch):
    written = Future()
    monkeypatch.setattr(rig.store, "flush", lambda: written)
    error = await failure_of(rig.stub.Flush(pb.FlushRequest(), timeout=0.2))
    assert isinstance(error, UnavailableError)
    written.set_result(3)


async def test_a_bug_is_internal_and_tells_its_class_only(rig, monkeypatch, caplog):
    def fail():
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(rig.store, "stats", fail)
    error = await failure_of(rig.stub.Stats(pb.StatsRequest(), timeout=TIMEOUT_S))
    assert isinstance(error, InternalError)
    assert "ZeroDivisionError" in str(error)
    assert "secret detail" not in str(error)
    assert "secret detail" in caplog.text


async def test_stats_flush_and_drain_need_no_session(rig):
    assert (await rig.stub.Stats(pb.StatsRequest(), timeout=TIMEOUT_S)).sessions == 0
    assert (await rig.stub.Flush(pb.FlushRequest(), timeout=TIMEOUT_S)).written == 0
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        await rig.stub.Drain(pb.DrainRequest(), timeout=TIMEOUT_S)
        request = pb.ReserveRequest(namespace_id=NAMESPACE, keys=KEYS[0])
        assert isinstance(await failure_of(rig.stub.Reserve(request, metadata=metadata, timeout=TIMEOUT_S)), UnavailableError)


async def test_verify_reads_everything_and_one_at_a_time(rig, monkeypatch):
    async with rig.session(shares_memory=False) as (_, metadata):
        await rig.register(metadata)
        await rig.save(metadata, KEYS)
        await rig.stub.Flush(pb.FlushRequest(), timeout=TIMEOUT_S)
    events = [event async for event in rig.stub.Verify(pb.VerifyRequest(), timeout=TIMEOUT_S)]
    assert events[-1].done.frames == 2 * len(KEYS)  # in the arena and on disk
    assert not events[-1].done.damaged

    started, calls = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def verify(progress):
        loop.call_soon_threadsafe(started.set)
        frames = 0
        while True:  # until the report says that nobody listens
            calls.append(frames)
            frames += 1
            progress(frames, 10, 10)

    monkeypatch.setattr(rig.store, "verify", verify)
    monkeypatch.setattr("tierkvd.scrubs.REPORT_FRAMES", 10_000_000)
    first = rig.stub.Verify(pb.VerifyRequest(), timeout=TIMEOUT_S)
    reading = asyncio.ensure_future(first.read())
    await started.wait()
    assert isinstance(await failure_of(rig.stub.Verify(pb.VerifyRequest(), timeout=TIMEOUT_S).read()), ConflictError)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await eventually(lambda: rig.servicer.scrubs._current.outcome is not None)
    monkeypatch.setattr(rig.store, "verify", lambda progress: VerifyReport(1, 2, ()))
    done = [event.done async for event in rig.stub.Verify(pb.VerifyRequest(), timeout=TIMEOUT_S)]
    assert [(event.frames, event.bytes) for event in done] == [(1, 2)]


async def test_a_stop_lets_a_client_commit_what_it_reserved_and_nothing_new(rig):
    async with rig.session() as (stream, metadata), rig.session() as (idle, idle_metadata):
        await rig.register(metadata)
        request = pb.ReserveRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS))
        reserved = await rig.stub.Reserve(request, metadata=metadata, timeout=TIMEOUT_S)
        stopping = asyncio.ensure_future(rig.servicer.stop())
        assert (await stream.read()).HasField("closing")
        assert (await idle.read()).HasField("closing")
        new = rig.stub.OpenSession(pb.OpenSessionRequest())
        assert isinstance(await failure_of(new.read()), UnavailableError)
        commit = pb.CommitRequest(reservation_id=reserved.reservation_id)
        assert (await rig.stub.Commit(commit, metadata=metadata, timeout=TIMEOUT_S)).committed == len(KEYS)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await stopping
        assert loop.time() - began_s < COMMIT_GRACE_S  # it waits for commits, not for the grace
        assert not rig.servicer.sessions._open
        assert idle_metadata != metadata


def test_leases_that_nobody_awaits_are_bounded():
    handle = SessionHandle(SessionId(b"s"), True, asyncio.Event())
    for lease_id in range(AWAITED_LIMIT + 2):
        handle.remember(Acquisition(lease_id, (TierName.HOST,), (), (), None, 1.0))
    assert handle.recall(1) is None
    assert handle.recall(2).lease_id == 2
    assert handle.recall(2) is None
