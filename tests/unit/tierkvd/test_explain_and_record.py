"""Explain and Record over the wire."""

import asyncio
import dataclasses
from concurrent.futures import Future

import grpc
import grpc.aio
import pytest

from tests.unit.tierkvd.daemon_rig import KEYS, NAMESPACE, TIMEOUT_S
from tierkv.answers import PendingRun
from tierkv.errors import CapacityError, InvalidRequestError, UnavailableError
from tierkv.observe.recorder import RECORDINGS_LIMIT
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.status import error_of_rpc


async def failure_of(call):
    """The error that a call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return error_of_rpc(caught.value)


async def explain(rig, **subject):
    return await rig.stub.Explain(pb.ExplainRequest(**subject), timeout=TIMEOUT_S)


def names(reply):
    return [event.what for event in reply.events]


async def test_a_block_is_explained_from_its_save_to_its_end_without_a_session(rig):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        before = await explain(rig, key=KEYS[0])
        assert (before.found, before.miss, before.key) == (False, pb.MISS_REASON_NEVER_SEEN, KEYS[0])
        await rig.save(metadata, KEYS[:4])
        held = await explain(rig, key=KEYS[0][:4])
        assert (held.found, held.tier, held.miss, held.key) == (True, pb.TIER_HOST, 0, KEYS[0])
        request = pb.AcquireRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS[:6]))
        lease = await rig.stub.Acquire(request, metadata=metadata, timeout=TIMEOUT_S)
        await rig.stub.Release(pb.ReleaseRequest(lease_ids=[lease.lease_id]), metadata=metadata, timeout=TIMEOUT_S)
        delete = pb.DeleteRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS[2:4]))
        await rig.stub.Delete(delete, metadata=metadata, timeout=TIMEOUT_S)
    gone = await explain(rig, key=KEYS[3])
    assert (gone.found, gone.miss) == (False, pb.MISS_REASON_EVICTED)
    assert names(gone)[0] == "saved"
    assert names(gone)[-1] == "deleted"
    assert "hit" in names(gone)
    assert "a client deleted them" in gone.reason
    missed = await explain(rig, key=KEYS[5])
    assert names(missed) == ["missed"]
    assert [event.at for event in gone.events] == sorted(event.at for event in gone.events)


async def test_expired_holds_are_told(rig):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        await rig.save(metadata, KEYS[:2])
        request = pb.AcquireRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS[:2]))
        await rig.stub.Acquire(request, metadata=metadata, timeout=TIMEOUT_S)
        request = pb.ReserveRequest(namespace_id=NAMESPACE, keys=KEYS[2], parent=KEYS[1])
        await rig.stub.Reserve(request, metadata=metadata, timeout=TIMEOUT_S)
        for _ in range(3):
            rig.clock.advance(130)
            rig.store.expire()
    leased = await explain(rig, key=KEYS[0])
    assert leased.found
    assert names(leased).count("expired") == 1
    reserved = await explain(rig, key=KEYS[2])
    assert (reserved.found, reserved.miss) == (False, pb.MISS_REASON_TIMEOUT)
    assert names(reserved) == ["expired"]


async def test_a_block_that_came_too_late_is_a_miss_of_its_reader(rig, monkeypatch):
    acquire = rig.store.acquire

    def acquire_slowly(*arguments):
        return dataclasses.replace(acquire(*arguments), pending=(PendingRun(1, 2, Future()),))

    monkeypatch.setattr(rig.store, "acquire", acquire_slowly)
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        await rig.save(metadata, KEYS[:3])
        request = pb.AcquireRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS[:3]))
        lease = await rig.stub.Acquire(request, metadata=metadata, timeout=TIMEOUT_S)
        waiting = rig.stub.Await(pb.AwaitRequest(lease_id=lease.lease_id), metadata=metadata, timeout=0.2)
        (event,) = [event async for event in waiting]
        assert (event.ended.num_blocks, event.ended.miss) == (1, pb.MISS_REASON_TIMEOUT)
    assert "missed" not in names(await explain(rig, key=KEYS[0]))
    late = await explain(rig, key=KEYS[2])
    assert names(late)[-1] == "missed"
    assert "longer than the caller would wait" in late.events[-1].why


async def test_what_is_refused_says_so(rig):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        request = pb.ReserveRequest(namespace_id=NAMESPACE, keys=KEYS[3], parent=KEYS[2])
        await rig.stub.Reserve(request, metadata=metadata, timeout=TIMEOUT_S)
    told = await explain(rig, key=KEYS[3])
    assert (told.found, told.miss, names(told)) == (False, pb.MISS_REASON_CAPACITY, ["refused"])


@pytest.mark.parametrize(
    ("subject", "sentence"),
    [
        ({}, "give one"),
        ({"key": b"abc"}, "at least 4"),
        ({"request_id": "x" * 65}, "64 bytes"),
        ({"request_id": ""}, "not empty"),
        ({"key": b"abcd", "token_ids": b"123"}, "4 bytes an id"),
    ],
)
async def test_malformed_questions_are_named(rig, subject, sentence):
    error = await failure_of(explain(rig, **subject))
    assert isinstance(error, InvalidRequestError)
    assert sentence in str(error)


async def begun(rig):
    """A recording that has begun."""
    call = rig.stub.Record(pb.RecordRequest())
    await call.initial_metadata()
    return call


async def test_requests_are_recorded_as_they_come(rig):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        call = await begun(rig)
        get = pb.GetRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS[:3]))
        [event async for event in rig.stub.Get(get, metadata=metadata, timeout=TIMEOUT_S)]
        await rig.save(metadata, KEYS[:3])
        rig.clock.advance(2.0)
        [event async for event in rig.stub.Get(get, metadata=metadata, timeout=TIMEOUT_S)]
        first, second = await call.read(), await call.read()
        assert list(first.hash_ids) == list(second.hash_ids)
        assert (len(first.hash_ids), first.input_length, first.block_tokens) == (3, 12, 4)
        assert second.timestamp_ms - first.timestamp_ms == 2000.0
        assert not {number.to_bytes(8, "little") for number in first.hash_ids} & {key[:8] for key in KEYS}
        call.cancel()


async def eventually(condition):
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - the recorder's state has no event to wait for
            await asyncio.sleep(0.005)


async def test_a_reader_that_hangs_up_ends_its_recording(rig):
    call = await begun(rig)
    assert rig.store.recorder.is_active
    call.cancel()
    await eventually(lambda: not rig.store.recorder.is_active)


async def test_a_stop_ends_recordings_after_what_waited(rig):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        call = await begun(rig)
        get = pb.GetRequest(namespace_id=NAMESPACE, keys=KEYS[0])
        [event async for event in rig.stub.Get(get, metadata=metadata, timeout=TIMEOUT_S)]
        stopping = asyncio.ensure_future(rig.servicer.stop())
        assert len([event async for event in call]) == 1
    await stopping
    assert isinstance(await failure_of(rig.stub.Record(pb.RecordRequest()).read()), UnavailableError)


async def test_so_many_record_and_no_more(rig):
    calls = [await begun(rig) for _ in range(RECORDINGS_LIMIT)]
    assert isinstance(await failure_of(rig.stub.Record(pb.RecordRequest()).read()), CapacityError)
    for call in calls:
        call.cancel()
    await eventually(lambda: not rig.store.recorder.is_active)
