"""The disk writer's step, without its thread: what is written, what is refused, and that no block stays held by a job that is over."""

import threading

import pytest

from tests.unit.placement.test_residency import commit, entry_of, reserve
from tierkv.codecs.checksum import checksum
from tierkv.errors import UnavailableError
from tierkv.model.lifecycle import BlockState
from tierkv.model.outcomes import BlockRecord, MissReason
from tierkv.placement.disk_writer import DiskWriter
from tierkv.policies.base import Cause
from tierkv.settings import DiskSettings
from tierkv.testing.clock import ManualClock
from tierkv.tiers.base import PutOutcome


@pytest.fixture
def clock():
    return ManualClock()


class Lock:
    """A lock that `before`, once, somebody else had."""

    def __init__(self):
        self._lock = threading.RLock()
        self.before = None

    def __enter__(self):
        before, self.before = self.before, None
        if before is not None:
            before()
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


@pytest.fixture
def lock():
    return Lock()


@pytest.fixture
def writer(books, disk, clock, lock):
    return DiskWriter(
        lock=lock,
        residency=books,
        disk=disk,
        settings=DiskSettings(capacity_bytes=disk.capacity_bytes, interval_s=1.0, retry_s=10.0),
        clock=clock,
        checksum=checksum,
    )


@pytest.fixture
def sealed(books):
    """Four READY, sealed blocks."""
    entries = [entry_of(number) for number in range(4)]
    reserve(books, entries)
    commit(books, entries)
    for number, entry in enumerate(entries, 1):
        view = books.host.view(entry.placed_at())[: entry.block_bytes]
        view[:] = entry.key * (entry.block_bytes // 32)
        digest = checksum(view)
        size = entry.block_bytes
        entry.record = BlockRecord(entry.key, entry.namespace_id, None, number, size, digest, 0, size, digest)
    return entries


def enqueue(writer, entries):
    for entry in entries:
        entry.moves += 1
    writer.enqueue(entries)


def test_a_batch_waits_for_its_interval(books, disk, writer, clock, sealed):
    enqueue(writer, sealed)
    assert not writer._write_once()
    clock.advance(1.0)
    assert writer._write_once()
    assert len(disk) == 4
    assert [(entry.is_on_disk, entry.moves) for entry in sealed] == [(True, 0)] * 4
    books.check_integrity()


def test_what_somebody_waits_for_does_not_wait(writer, sealed):
    heard = []
    for entry in sealed:
        writer.notify(entry, heard.append)
    enqueue(writer, sealed)
    assert writer._write_once()
    assert heard == [True] * 4


def test_a_block_deleted_meanwhile_is_not_written(books, disk, writer, clock, sealed):
    enqueue(writer, sealed)
    books.lose_host(sealed[0], None)
    clock.advance(1.0)
    writer._write_once()
    assert len(disk) == 3
    assert (sealed[0].moves, sealed[0].extent) == (0, None)


def test_a_full_disk_is_reported_left_alone_for_a_while_and_tried_again(books, disk, writer, clock, sealed, monkeypatch):
    def refuse(items):
        disk_state["degraded"] = "full"
        return [PutOutcome.NO_SPACE] * len(items)

    disk_state = {"degraded": None}
    monkeypatch.setattr(type(disk), "degraded", property(lambda _: disk_state["degraded"]))
    with monkeypatch.context() as broken:
        broken.setattr(disk, "put", refuse)
        heard = []
        writer.notify(sealed[0], heard.append)
        enqueue(writer, sealed)
        writer._write_once()
    assert heard == [False]
    assert (writer.failure, writer.is_writable) == ("full", False)
    assert [(entry.is_on_disk, entry.moves) for entry in sealed] == [(False, 0)] * 4
    disk_state["degraded"] = None
    clock.advance(10.0)
    assert writer.is_writable
    enqueue(writer, sealed)
    clock.advance(1.0)
    writer._write_once()
    assert writer.failure is None
    assert len(disk) == 4
    books.check_integrity()


def test_blocks_that_come_while_the_disk_is_left_alone_do_not_prolong_the_pause(disk, writer, clock, sealed, monkeypatch):
    monkeypatch.setattr(type(disk), "degraded", property(lambda _: "full"))
    with monkeypatch.context() as broken:
        broken.setattr(disk, "put", lambda items: [PutOutcome.NO_SPACE] * len(items))
        enqueue(writer, sealed[:1])
        clock.advance(1.0)
        writer._write_once()
    for entry in sealed:
        enqueue(writer, [entry])
        clock.advance(2.5)
        assert not writer.is_writable or entry is sealed[3]
        writer._write_once()
    assert entry.is_on_disk


def refuse(keys):
    raise UnavailableError("the index refuses", keys=len(list(keys)))


def test_an_index_that_refuses_to_forget_holds_no_block(books, disk, writer, clock, sealed, monkeypatch):
    """Making room fails: the batch is not written, and nothing stays pinned by it."""
    victim = entry_of(99)
    victim.is_on_disk = True
    books.index.add(victim)
    books.disk_policy.admit([victim.key], [disk.capacity_bytes], lambda _: False, cause=Cause.LOAD)
    monkeypatch.setattr(disk, "delete", refuse)
    enqueue(writer, sealed)
    clock.advance(1.0)
    assert writer._write_once()
    assert [(entry.is_on_disk, entry.moves, entry.is_evictable) for entry in sealed] == [(False, 0, True)] * 4
    assert "refuses changes" in writer.failure


def test_what_the_index_refused_to_forget_is_forgotten_later(books, disk, writer, clock, sealed, monkeypatch):
    """The books have let it go: nobody else would take it off the disk, and the next start would find it."""
    enqueue(writer, sealed)
    clock.advance(1.0)
    writer._write_once()
    with monkeypatch.context() as broken:
        broken.setattr(disk, "delete", refuse)
        for entry in sealed[:2]:
            books.drop(entry, None)
        gone = writer.delete([sealed[2].key])
        books.drop(sealed[2], None)
        books.to_unwrite.clear()
        books.to_unwrite += [entry.key for entry in sealed[:2]]
        writer._write_once()
    assert gone.exception(0) is not None
    writer._write_once()
    assert len(disk) == 4, "a medium that refuses is left alone for a while"
    clock.advance(10.0)
    again = entry_of(0)
    again.is_on_disk = True
    books.index.add(again)
    writer._write_once()
    assert {key for key in (entry.key for entry in sealed) if key in disk} == {sealed[0].key, sealed[3].key}


def test_a_block_that_goes_with_a_damaged_one_is_not_admitted_to_the_disk(books, disk, writer, clock, sealed):
    """The tail stands before its head in the batch; the head's bytes, which survived a restart, do not match."""
    head, tail = sealed[0], sealed[1]
    tail.parent = head.key
    books.index.chains.link(head.key, tail.key)
    head.is_verified = False
    books.host.view(head.placed_at())[:1] = b"?"
    enqueue(writer, [tail, head])
    clock.advance(1.0)
    writer._write_once()
    assert tail.key not in books.disk_policy
    assert len(disk) == 0
    assert (tail.moves, tail.extent) == (0, None)
    books.check_integrity()


def test_deletions_keep_their_order_with_writes(disk, writer, clock, sealed):
    enqueue(writer, sealed)
    clock.advance(1.0)
    writer._write_once()
    gone = writer.delete([entry.key for entry in sealed[:2]])
    writer._write_once()
    assert gone.result(0) == 2
    assert len(disk) == 2


def test_a_block_that_is_queued_twice_is_written_once_and_costs_its_batch_nothing(books, disk, writer, clock, sealed):
    enqueue(writer, sealed)
    enqueue(writer, sealed[:1])
    clock.advance(1.0)
    writer._write_once()
    assert len(disk) == 4
    assert [(entry.is_on_disk, entry.moves) for entry in sealed] == [(True, 0)] * 4
    books.check_integrity()


def test_who_waits_for_a_block_that_came_again_does_not_hear_of_the_deleted_one(books, writer, clock, sealed):
    enqueue(writer, sealed[:1])
    books.lose_host(sealed[0], None)
    again = entry_of(0)
    reserve(books, [again])
    commit(books, [again])
    again.record = sealed[0].record
    heard = []
    writer.notify(again, heard.append)
    clock.advance(1.0)
    writer._write_once()
    assert heard == []
    enqueue(writer, [again])
    writer._write_once()
    assert heard == [True]


def test_a_block_deleted_and_committed_again_between_two_steps_stays_on_disk(books, disk, writer, clock, lock, sealed):
    enqueue(writer, sealed)
    clock.advance(1.0)
    writer._write_once()

    def delete_and_commit_again():
        books.lose_disk(sealed[0].key, None)
        books.lose_host(sealed[0], None)
        writer.delete([sealed[0].key])
        again = entry_of(0)
        reserve(books, [again])
        commit(books, [again])
        again.record = sealed[0].record
        enqueue(writer, [again])
        writer.hurry()

    lock.before = delete_and_commit_again
    writer._write_once()
    writer._write_once()
    assert books.index.get(sealed[0].key).is_on_disk
    assert sealed[0].key in disk


def test_what_is_to_be_forgotten_is_forgotten_at_a_stop(disk, writer, clock, sealed):
    enqueue(writer, sealed)
    clock.advance(1.0)
    writer._write_once()
    gone = writer.delete([entry.key for entry in sealed])
    writer.stop()
    assert gone.result(0) == 4
    assert len(disk) == 0


def test_a_chain_that_left_for_another_one_of_its_batch_is_not_admitted(books, disk, writer, sealed, monkeypatch):
    """A disk policy that took it in all the same would think for ever that somebody is writing it."""
    plan = writer.room.plan
    enqueue(writer, sealed)
    writer.hurry()

    def plan_and_lose_the_last(chain):
        if chain[0] is sealed[0]:
            books.drop(sealed[3], MissReason.EVICTED)
        return plan(chain)

    monkeypatch.setattr(writer.room, "plan", plan_and_lose_the_last)
    assert writer._write_once()
    assert [entry.key in books.disk_policy for entry in sealed] == [True, True, True, False]
    assert len(disk) == 3
    assert (sealed[3].state, sealed[3].extent) == (BlockState.FREE, None)
    books.check_integrity()
