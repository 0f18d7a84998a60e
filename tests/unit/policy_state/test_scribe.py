"""Writing on a medium that fills up, fails or goes away: never an exception, and what is there is some moment of the past."""

import errno
import os
import threading
from collections import Counter

import pytest
import xxhash

from tierkv.model.chains import Chains
from tierkv.policies import ArcPolicy, Cause, LruPolicy, Survivor
from tierkv.policy_state import log as log_module
from tierkv.policy_state import recording, scribe
from tierkv.policy_state.files import FolderFiles
from tierkv.policy_state.keeper import PolicyKeeper
from tierkv.policy_state.log import encode_log_header
from tierkv.policy_state.replaying import restore
from tierkv.policy_state.scribe import RETRY_TICKS, PolicyScribe
from tierkv.testing.policy_traffic import MemoryFiles, key_of

K = [key_of(number) for number in range(100)]


def nobody(_key):
    return False


def scribe_on(files, policy=None):
    policy = ArcPolicy(16, Chains()) if policy is None else policy
    made = PolicyScribe("disk", policy, files, threading.RLock(), xxhash.xxh3_128_digest, Counter())
    made.restore()
    return made


def back_from(files):
    """The image that the next process would find."""
    policy = ArcPolicy(16, Chains())
    restore(policy, files.snapshot, files.log, xxhash.xxh3_128_digest)
    return policy.export_image()


def save(writer, *numbers):
    writer.policy.admit([K[number] for number in numbers], [1] * len(numbers), nobody, cause=Cause.SAVE)


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def writer(files):
    writer = scribe_on(files)
    writer.write()
    return writer


def known(writer):
    return writer.policy.inner.export_image()


def test_an_idle_policy_writes_nothing(writer, files):
    before = files.log
    writer.write()
    assert files.log == before
    assert files.num_appends == 1  # the header


def test_a_write_is_one_append(writer, files):
    save(writer, 1, 2, 3)
    writer.policy.on_access(K[1:3])
    writer.write()
    assert files.num_appends == 2
    assert back_from(files).is_same(known(writer))


def test_an_access_to_many_blocks_is_a_short_record(files):
    writer = scribe_on(files, ArcPolicy(1000, Chains()))
    keys = [key_of(number) for number in range(1000)]
    writer.policy.admit(keys, [1] * 1000, nobody, cause=Cause.SAVE)
    writer.write()
    before = len(files.log)
    for _ in range(50):
        writer.policy.on_access(list(keys))
    writer.policy.on_access(keys[:900])
    writer.write()
    assert len(files.log) - before < 24 + 2 * 50


def test_a_long_log_makes_way_for_a_snapshot(writer, files, monkeypatch):
    monkeypatch.setattr(scribe, "LOG_BYTES_MIN", 300)
    longest = 0
    for number in range(60):
        save(writer, number)
        writer.write()
        longest = max(longest, len(files.log))
        assert back_from(files).is_same(known(writer))
    assert longest < 2 * len(files.snapshot) + 400
    assert writer._counters["policy_state_snapshots"] > 2


def test_a_log_that_is_long_to_replay_makes_way_too(writer, files, monkeypatch):
    save(writer, 1, 2, 3)
    monkeypatch.setattr(scribe, "REPLAY_KEYS_MIN", 10)
    monkeypatch.setattr(scribe, "REPLAY_KEYS_PER_ENTRY", 1)
    writer._needs_snapshot = True
    for _ in range(40):
        writer.policy.on_access(K[1:4])
        writer.policy.on_access(K[1:3])
        writer.write()
    assert writer._counters["policy_state_snapshots"] > 5
    assert back_from(files).is_same(known(writer))


def test_a_full_disk_stops_the_log_and_is_told_and_tried_again(writer, files, caplog):
    save(writer, 1, 2, 3)
    writer.write()
    before = known(writer)
    files.room_bytes = 10
    save(writer, 4)
    writer.write()
    assert back_from(files).is_same(before)
    assert writer._counters["policy_state_write_errors"] == 1
    (problem,) = writer.problems
    assert problem.startswith("the policy of the disk tier cannot be written down for now")
    files.room_bytes = 1 << 30
    for number in range(5, 5 + RETRY_TICKS):
        save(writer, number)
        writer.write()
        assert back_from(files).is_same(before), "nothing may follow a gap"
    writer.write()
    assert back_from(files).is_same(known(writer))
    assert writer.problems == []
    assert len(caplog.records) == 1


def test_events_that_cannot_be_told_leave_no_gap_and_do_not_raise(writer, files, caplog, monkeypatch):
    save(writer, 1, 2, 3)
    writer.write()
    before = known(writer)
    with monkeypatch.context() as patch:
        patch.setattr(scribe, "encode", lambda event, lineage: 1 / 0)
        save(writer, 4)
        writer.write()
    for number in range(5, 5 + RETRY_TICKS):
        save(writer, number)
        writer.write()
        assert back_from(files).is_same(before), "nothing may follow a gap"
    writer.write()
    assert back_from(files).is_same(known(writer))
    assert "could not be told" in caplog.records[0].message


def test_a_disk_that_stays_full_is_not_asked_all_the_time(writer, files, caplog):
    files.room_bytes = 0
    for number in range(4 * RETRY_TICKS):
        save(writer, 20 + number % 70) if K[20 + number % 70] not in writer.policy else None
        writer.write()
    assert 3 <= writer._counters["policy_state_write_errors"] <= 5
    assert len(caplog.records) == 1


def test_what_was_dropped_for_want_of_room_is_in_the_next_snapshot(writer, files, monkeypatch):
    monkeypatch.setattr(recording, "PENDING_EVENTS_LIMIT", 3)
    for number in range(10):
        save(writer, number)
    writer.write()
    assert back_from(files).is_same(known(writer))
    writer.policy.on_access(K[1:4])
    writer.write()
    assert back_from(files).is_same(known(writer))


def test_a_record_too_large_becomes_a_snapshot(writer, files, monkeypatch):
    monkeypatch.setattr(scribe, "RECORD_BYTES_LIMIT", 200)
    save(writer, *range(10))
    writer.write()
    writer.write()
    assert back_from(files).is_same(known(writer))
    assert len(files.log) == log_module.HEADER_BYTES


def test_a_kill_between_snapshot_and_log_is_the_snapshot(writer, files):
    save(writer, 1, 2)
    writer.write()
    save(writer, 3)
    writer._needs_snapshot = True
    files.kills_before_log = True
    with pytest.raises(KeyboardInterrupt):
        writer.write()
    assert back_from(files).is_same(known(writer))


def test_an_old_log_never_belongs_to_a_snapshot_made_after_a_cold_start(writer, files):
    save(writer, 1, 2)
    writer.write()
    files.snapshot = b"damaged"
    files.kills_before_log = True
    second = scribe_on(files)
    save(second, 7)
    with pytest.raises(KeyboardInterrupt):
        second.write()
    assert back_from(files).is_same(known(second))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda content: content[:8] + b"\2\0" + content[10:], "another version"),
        (lambda content: b"", "no snapshot"),
        (lambda content: content[:-1], "another length"),
        (lambda content: content + b"\0", "another length"),
    ],
)
def test_a_snapshot_that_is_none_is_a_cold_start_that_says_why(writer, files, caplog, change, told):
    save(writer, 1, 2)
    writer._needs_snapshot = True
    writer.finish()
    files.snapshot = change(files.snapshot)
    cold = scribe_on(files)
    assert len(cold.policy) == 0
    assert cold._counters["policy_state_lost"] == 1
    assert told in cold.problems[0] and "starts cold" in cold.problems[0]
    assert told in caplog.text


def test_what_was_lost_at_the_start_is_told_for_a_while(files, monkeypatch):
    monkeypatch.setattr(scribe, "TELL_TICKS", 3)
    files.snapshot = b"damaged"
    cold = scribe_on(files)
    told = []
    for _ in range(4):
        told.append(len(cold.problems))
        cold.write()
    assert told == [1, 1, 1, 0]
    assert cold._counters["policy_state_lost"] == 1


def test_another_version_of_the_log_leaves_the_snapshot(writer, files):
    save(writer, 1, 2)
    writer.write()
    header = bytearray(encode_log_header(1, xxhash.xxh3_128_digest))
    assert files.log.startswith(header)
    files.log = files.log[:8] + b"\2" + files.log[9:]
    cold = scribe_on(files)
    assert len(cold.policy) == 0
    assert "has lost the end of its log" in cold.problems[0]


@pytest.mark.parametrize(("first", "second"), [(ArcPolicy, LruPolicy), (LruPolicy, ArcPolicy)])
def test_the_state_of_another_kind_of_policy_is_a_cold_start(files, first, second):
    writer = scribe_on(files, first(16, Chains()))
    save(writer, 1, 2)
    writer.write()
    cold = scribe_on(files, second(16, Chains()))
    assert len(cold.policy) == 0
    assert "another policy" in cold.problems[0]
    assert cold.policy.inner.capacity == 16


class TestAFolder:
    def test_it_is_made_when_it_is_needed_and_is_private(self, tmp_path):
        files = FolderFiles(tmp_path / "policy", "host")
        assert (files.read_snapshot(), files.read_log()) == (None, None)
        files.replace_snapshot([b"one", b"two"])
        files.begin_log(b"log")
        files.append(b"more")
        files.close()
        files.close()
        assert (files.read_snapshot(), files.read_log()) == (b"onetwo", b"logmore")
        assert (tmp_path / "policy").stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "policy").iterdir()} == {0o600}

    def test_a_failing_write_leaves_the_snapshot_before_it(self, tmp_path, monkeypatch):
        files = FolderFiles(tmp_path, "host")
        files.replace_snapshot([b"before"])
        monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
        with pytest.raises(OSError, match="broken"):
            files.replace_snapshot([b"after"])
        assert files.read_snapshot() == b"before"
        assert os.listdir(tmp_path) == ["host.snapshot"]

    def test_a_short_write_is_an_error(self, tmp_path, monkeypatch):
        files = FolderFiles(tmp_path, "host")
        files.begin_log(b"log")
        monkeypatch.setattr(os, "write", lambda fd, content: len(content) - 1)
        with pytest.raises(OSError, match="only 2 of 3"):
            files.append(b"abc")
        files.close()


class TestTheKeeper:
    def kept(self, folder, policy=None):
        keeper = PolicyKeeper(folder, lock=threading.RLock(), checksum=xxhash.xxh3_128_digest)
        return keeper, keeper.keep("host", ArcPolicy(16, Chains()) if policy is None else policy)

    def test_a_stop_writes_the_rest_and_the_next_start_finds_it(self, tmp_path):
        keeper, policy = self.kept(tmp_path / "policy")
        keeper.settle("host", [])
        keeper.start()
        policy.admit(K[1:4], [1] * 3, nobody, cause=Cause.SAVE)
        keeper.stop()
        keeper.stop()
        _, found = self.kept(tmp_path / "policy")
        assert found.inner.export_image().is_same(policy.inner.export_image())

    def test_a_keeper_that_never_started_writes_nothing(self, tmp_path):
        keeper, _ = self.kept(tmp_path / "policy")
        keeper.stop()
        assert os.listdir(tmp_path) == []

    def test_a_folder_that_cannot_be_used_harms_nothing(self, tmp_path):
        (tmp_path / "policy").write_text("a file in its place")
        keeper, policy = self.kept(tmp_path / "policy")
        keeper.settle("host", [])
        keeper.start()
        policy.admit(K[1:4], [1] * 3, nobody, cause=Cause.SAVE)
        keeper.stop()
        assert len(policy) == 3
        assert keeper.counters["policy_state_lost"] == 1
        assert keeper.counters["policy_state_write_errors"] >= 1
        assert [problem.split(" (")[0] for problem in keeper.problems] == [
            "the policy of the host tier starts cold: its state cannot be read",
            "the policy of the host tier cannot be written down for now",
        ]

    def test_settling_brings_back_the_capacity_of_today(self, tmp_path):
        keeper, policy = self.kept(tmp_path / "policy")
        keeper.settle("host", [])
        keeper.start()
        policy.admit(K[1:9], [1] * 8, nobody, cause=Cause.SAVE)
        keeper.stop()
        keeper, policy = self.kept(tmp_path / "policy", ArcPolicy(5, Chains()))
        assert len(policy) == 8
        leaving = keeper.settle("host", [Survivor(key, 1, None) for key in K[1:9]])
        assert set(leaving) == {K[8], K[7], K[6]}
        assert (policy.capacity, policy.inner.capacity, policy.used) == (5, 5, 5)
        policy.check_integrity()
