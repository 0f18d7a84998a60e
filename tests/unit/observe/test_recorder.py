"""The recorder: which calls are requests, what of them is told, and what a slow reader costs."""

import threading

import pytest
from blake3 import blake3

from tierkv.errors import CapacityError
from tierkv.index.block_index import BlockIndex
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import SessionId
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import ReserveOutcome
from tierkv.observe import recorder as recorder_module
from tierkv.observe.recorder import RECORDINGS_LIMIT, Recorder
from tierkv.testing.clock import ManualClock

GRANTED, PRESENT, REFUSED = ReserveOutcome.GRANTED, ReserveOutcome.PRESENT, ReserveOutcome.REFUSED
ANNA, BERT = SessionId(b"anna"), SessionId(b"bert")
KEYS = [BlockKey(bytes([number]) * 32) for number in range(1, 9)]


class Desk:
    """A recorder over an index that is filled by hand."""

    def __init__(self):
        self.clock = ManualClock()
        self.index = BlockIndex(history_limit=1)
        self.recorder = Recorder(clock=self.clock, lock=threading.RLock(), index=self.index)
        self.wakes = 0

    def wake(self):
        self.wakes += 1

    def subscribe(self):
        return self.recorder.subscribe(self.wake)

    def hold(self, keys):
        parent = None
        for key in keys:
            self.index.add(BlockEntry(key, NamespaceId(bytes(32)), parent, 64))
            parent = key


@pytest.fixture
def desk():
    return Desk()


def taken(recording):
    found = []
    while (request := recording.take()) is not None:
        found.append(request)
    return found


def test_nobody_records_at_first_and_after_the_last_ended(desk):
    assert not desk.recorder.is_active
    first, second = desk.subscribe(), desk.subscribe()
    desk.recorder.end(first)
    desk.recorder.end(first)
    assert desk.recorder.is_active
    desk.recorder.end(second)
    assert not desk.recorder.is_active


def test_an_acquire_is_a_request_with_lengths_and_times(desk):
    desk.clock.advance(10)
    recording = desk.subscribe()
    desk.clock.advance(1.5)
    desk.recorder.acquired(ANNA, KEYS[:3], 16)
    desk.recorder.acquired(BERT, KEYS[:2], 4)
    desk.recorder.acquired(ANNA, [], 4)
    first, second = taken(recording)
    assert (first.timestamp_ms, first.input_length, first.block_tokens, first.session, first.dropped) == (1500.0, 48, 16, 0, 0)
    assert (second.input_length, second.session) == (8, 1)
    assert second.hash_ids == first.hash_ids[:2]
    assert desk.wakes == 2


def test_ids_are_hashes_under_a_salt_of_the_recording_and_never_keys(desk):
    twin = ManualClock()
    salts = [twin.random_bytes(32), twin.random_bytes(32)]
    recordings = [desk.subscribe(), desk.subscribe()]
    desk.recorder.acquired(ANNA, KEYS[:2], 16)
    ids = [taken(recording)[0].hash_ids for recording in recordings]
    for salt, found in zip(salts, ids, strict=True):
        assert found == tuple(int.from_bytes(blake3(key, key=salt).digest()[:8], "little") for key in KEYS[:2])
    assert not set(ids[0]) & set(ids[1])
    assert not set(ids[0]) & {int.from_bytes(key[:8], order) for key in KEYS for order in ("little", "big")}


def test_saving_what_was_asked_for_is_the_same_request(desk):
    recording = desk.subscribe()
    desk.recorder.acquired(ANNA, KEYS[:4], 16)
    desk.hold(KEYS[:2])
    desk.recorder.reserved(ANNA, KEYS[2:4], [GRANTED, REFUSED], KEYS[1], 16)
    assert len(taken(recording)) == 1


def test_saving_what_was_not_asked_for_is_told_with_its_head_and_as_no_access(desk):
    recording = desk.subscribe()
    desk.hold(KEYS[:2])
    desk.recorder.acquired(ANNA, KEYS[:2], 16)
    desk.recorder.reserved(ANNA, KEYS[2:4], [GRANTED, GRANTED], KEYS[1], 16)
    desk.recorder.reserved(BERT, KEYS[:2], [PRESENT, GRANTED], None, 16)
    asked, saved, other = taken(recording)
    assert saved.hash_ids[:2] == asked.hash_ids
    assert (len(saved.hash_ids), saved.input_length, saved.session) == (4, 64, 0)
    assert (other.hash_ids, other.session) == (asked.hash_ids, 1)
    assert (asked.is_save, saved.is_save, other.is_save) == (False, True, True)


def test_a_save_that_finds_everything_there_is_no_request(desk):
    recording = desk.subscribe()
    desk.recorder.reserved(ANNA, KEYS[:2], [PRESENT, ReserveOutcome.PENDING], None, 16)
    assert taken(recording) == []


def test_a_save_behind_an_unknown_head_is_left_out_and_counted(desk):
    recording = desk.subscribe()
    desk.recorder.reserved(ANNA, KEYS[2:4], [REFUSED, REFUSED], KEYS[1], 16)
    desk.recorder.acquired(ANNA, KEYS[:1], 16)
    (request,) = taken(recording)
    assert (len(request.hash_ids), request.dropped) == (1, 1)


def test_a_slow_reader_loses_requests_and_is_told_how_many(desk, monkeypatch):
    monkeypatch.setattr(recorder_module, "QUEUE_EVENTS", 2)
    recording = desk.subscribe()
    for _ in range(5):
        desk.recorder.acquired(ANNA, KEYS[:1], 16)
    assert [request.dropped for request in taken(recording)] == [0, 0]
    desk.recorder.acquired(ANNA, KEYS[:1], 16)
    desk.recorder.acquired(ANNA, KEYS[:1], 16)
    assert [request.dropped for request in taken(recording)] == [3, 0]
    assert desk.wakes == 4


def test_the_queue_is_bounded_in_keys_too(desk, monkeypatch):
    monkeypatch.setattr(recorder_module, "QUEUE_KEYS", 5)
    recording = desk.subscribe()
    for _ in range(3):
        desk.recorder.acquired(ANNA, KEYS[:2], 16)
    assert len(taken(recording)) == 2
    desk.recorder.acquired(ANNA, KEYS[:5], 16)
    assert [request.dropped for request in taken(recording)] == [1]


def test_so_many_may_record_and_no_more(desk):
    recordings = [desk.subscribe() for _ in range(RECORDINGS_LIMIT)]
    with pytest.raises(CapacityError):
        desk.subscribe()
    desk.recorder.end(recordings[0])
    desk.subscribe()


def test_what_is_remembered_of_a_session_goes_with_it_and_with_the_recording(desk):
    recording = desk.subscribe()
    desk.recorder.acquired(ANNA, KEYS[:2], 16)
    desk.recorder.acquired(BERT, KEYS[:2], 16)
    desk.recorder.end_session(ANNA)
    assert set(desk.recorder._asked) == set(desk.recorder._sessions) == {BERT}
    desk.recorder.end(recording)
    assert not desk.recorder._asked
    assert not desk.recorder._sessions
    again = desk.subscribe()
    desk.recorder.acquired(BERT, KEYS[:2], 16)
    assert taken(again)[0].session == 0
