"""A lease's bookkeeping, event by event."""

import pytest

from tierkv.client.progress import ChunkAssembler, LeaseProgress
from tierkv.errors import DataError
from tierkv.model.outcomes import MissReason, TierName
from tierkv.wire._generated import tierkv_pb2 as pb


def view(offset):
    return memoryview(bytes([offset]) * 4)


def reply(*, held, ready):
    return pb.AcquireReply(lease_id=7, tiers=[pb.TIER_DISK] * held, offsets=list(range(ready)))


def ready_event(start, offsets):
    return pb.AwaitEvent(ready=pb.BlocksReady(start_idx=start, offsets=offsets))


def test_everything_at_once():
    progress = LeaseProgress()
    run = progress.take_reply(reply(held=2, ready=2), view)
    assert (run.start_idx, [bytes(block) for block in run.blocks]) == (0, [b"\0" * 4, b"\1" * 4])
    assert (progress.is_complete, progress.lease_id, progress.tiers) == (True, 7, (TierName.DISK,) * 2)


def test_blocks_that_arrive_later_come_in_order():
    progress = LeaseProgress()
    assert progress.take_reply(reply(held=3, ready=0), view) is None
    assert progress.take_await(ready_event(0, [5, 6]), view).start_idx == 0
    assert not progress.is_complete
    assert progress.take_await(ready_event(2, [7]), view).start_idx == 2
    assert progress.is_complete


def test_an_end_shortens_the_lease_and_says_why():
    progress = LeaseProgress()
    progress.take_reply(reply(held=3, ready=1), view)
    ended = pb.AwaitEvent(ended=pb.LeaseEnded(num_blocks=1, miss=pb.MISS_REASON_CHECKSUM))
    assert progress.take_await(ended, view) is None
    assert (progress.num_blocks, len(progress.tiers), progress.miss) == (1, 1, MissReason.CHECKSUM)
    assert progress.is_complete


@pytest.mark.parametrize("event", [ready_event(1, [5]), ready_event(0, [1, 2, 3, 4]), pb.AwaitEvent()])
def test_events_that_make_no_sense_are_found_out(event):
    progress = LeaseProgress()
    progress.take_reply(reply(held=3, ready=0), view)
    with pytest.raises(DataError):
        progress.take_await(event, view)


def chunk(idx, data):
    return pb.GetEvent(chunk=pb.GetChunk(block_idx=idx, data=data))


@pytest.fixture
def assembled():
    progress = LeaseProgress()
    chunks = ChunkAssembler(progress)
    chunks.take(pb.GetEvent(header=pb.GetHeader(tiers=[pb.TIER_HOST] * 2, block_bytes=4)))
    return progress, chunks


def test_chunks_make_blocks(assembled):
    progress, chunks = assembled
    assert chunks.take(chunk(0, b"ab")) is None
    assert bytes(chunks.take(chunk(0, b"cd")).blocks[0]) == b"abcd"
    assert chunks.take(chunk(1, b"efgh")).start_idx == 1
    chunks.end()
    assert (progress.num_blocks, progress.miss) == (2, None)


def test_a_stream_that_ends_early_is_a_shorter_lease(assembled):
    progress, chunks = assembled
    chunks.take(chunk(0, b"abcd"))
    chunks.take(chunk(1, b"ef"))
    chunks.end()
    assert (progress.num_blocks, progress.miss) == (1, MissReason.CHECKSUM)


@pytest.mark.parametrize("event", [chunk(1, b"abcd"), chunk(0, b"abcde")])
def test_chunks_out_of_order_or_too_long_are_found_out(assembled, event):
    _, chunks = assembled
    with pytest.raises(DataError):
        chunks.take(event)


def test_a_lease_that_shrank_to_nothing_is_still_to_be_released():
    progress = LeaseProgress()
    progress.take_reply(reply(held=2, ready=0), view)
    progress.take_await(pb.AwaitEvent(ended=pb.LeaseEnded(num_blocks=0, miss=pb.MISS_REASON_TIMEOUT)), view)
    assert (progress.num_blocks, progress.miss, progress.lease_id) == (0, MissReason.TIMEOUT, 7)


def test_where_nothing_is_held_there_is_nothing_to_release():
    progress = LeaseProgress()
    progress.take_reply(reply(held=0, ready=0), view)
    assert progress.lease_id is None
