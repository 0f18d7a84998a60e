"""A real daemon and two clients: what became of their blocks, as `tierkv explain` tells it, and their requests, as `record` writes them."""

import gzip
import json
import signal
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from tierkv.cli.main import app
from tierkv.client import connect
from tierkv.client.observer import Observer
from tierkv.errors import CapacityError, UnavailableError
from tierkv.model.hints import Hints
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.observe.recorder import RECORDINGS_LIMIT
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv.testing.deadline import wait_until

LAYOUT = Layout(shape=(65_536,), dtype="uint8", block_tokens=4)
ANNA, BERT = Identity(weights="explained", tenant="anna"), Identity(weights="explained", tenant="bert")
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A daemon with room for some 60 blocks and no disk: what leaves the host tier is gone."""
    root = tmp_path_factory.mktemp("explained")
    options = DaemonOptions(root / "data", root / "run", "4MiB", "0", arena_folder=root / "arena")
    with start_daemon(options, log=root / "log"):
        yield options.run_dir


def sequence(namespace_id, blocks, *, seed):
    tokens = [seed * 100_000 + idx for idx in range(4 * blocks)]
    return tokens, chain_keys(namespace_id, tokens, block_tokens=4)


def put(client, namespace_id, keys):
    client.put(namespace_id, keys, [memoryview(key * 2_048) for key in keys])


def tierkv(*arguments):
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return result.exit_code, result.stdout


def explained(run_dir, *arguments):
    exit_code, out = tierkv("explain", *arguments, "--run-dir", str(run_dir), "--json")
    assert exit_code == 0
    told = json.loads(out)
    assert told.keys() >= {"found", "tier", "reason", "events"}
    assert ("key" in told) != ("request" in told)
    assert all(event.keys() == {"at", "what", "why"} for event in told["events"])
    return told


def test_a_block_that_others_pushed_out_is_evicted(run_dir):
    with connect(run_dir) as anna, connect(run_dir) as bert:
        first = anna.register(ANNA, LAYOUT).namespace_id
        second = bert.register(BERT, LAYOUT).namespace_id
        _, keys = sequence(first, 4, seed=1)
        put(anna, first, keys)
        held = explained(run_dir, keys[0].hex())
        assert (held["key"], held["found"], held["tier"], held["reason"]) == (keys[0].hex(), True, "host", None)
        for seed in range(2, 40):
            put(bert, second, sequence(second, 4, seed=seed)[1])
        assert anna.lookup(first, keys).num_blocks == 0
        gone = explained(run_dir, keys[0].hex()[:16])
        assert (gone["key"], gone["found"], gone["tier"], gone["reason"]) == (keys[0].hex(), False, None, "evicted")
        assert gone["events"][0]["what"] == "saved"
        (evicted,) = [event for event in gone["events"] if event["what"] == "evicted"]
        assert "host" in evicted["why"]
        assert "arc-age" in evicted["why"]
        assert gone["sentence"].startswith("evicted from the host tier at ")
        assert "arc-age" in gone["sentence"]
        assert anna.explain(keys[0]).miss == "evicted"


def test_the_same_tokens_under_another_tenant_are_named(run_dir, tmp_path):
    with connect(run_dir) as client:
        anna = client.register(ANNA, LAYOUT).namespace_id
        carl = client.register(Identity(weights="explained", tenant="carl"), LAYOUT).namespace_id
        tokens, keys = sequence(anna, 2, seed=50)
        put(client, anna, keys)
        _, wanted = sequence(carl, 2, seed=50)
        client.release(client.acquire(carl, wanted))
        (tmp_path / "tokens").write_text(json.dumps(tokens[:4]))
        told = explained(run_dir, wanted[0].hex(), "--tokens", str(tmp_path / "tokens"))
    assert (told["found"], told["reason"]) == (False, "namespace")
    assert "tenant ('carl' here, 'anna' there)" in told["sentence"]
    assert [event["what"] for event in told["events"]] == ["missed"]


def test_a_request_is_found_by_its_name_from_another_process(run_dir):
    with connect(run_dir) as client:
        namespace_id = client.register(ANNA, LAYOUT).namespace_id
        _, keys = sequence(namespace_id, 3, seed=55)
        put(client, namespace_id, keys[:2])
        client.release(client.acquire(namespace_id, keys, hints=Hints(request_id="deadbeef")))
    told = explained(run_dir, "request:deadbeef")
    assert (told["request"], told["found"], told["tier"], told["reason"]) == ("deadbeef", False, "host", "never_seen")
    assert told["sentence"].startswith("found 2 blocks (2 host) of 3")
    assert {event["what"] for event in told["events"]} == {"hit", "missed"}


def test_nobody_ever_saw_it(run_dir):
    assert explained(run_dir, "f" * 64)["reason"] == "never_seen"
    assert explained(run_dir, "request:nobody's")["reason"] == "never_seen"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["explain", "abcdef012"], "even number of digits"),
        (["explain", "x" * 65], "64 bytes"),
        (["explain", "f" * 64, "--tokens", "/nowhere"], "tokens='/nowhere'"),
        (["record", "/nowhere/out.jsonl"], "path='/nowhere/out.jsonl'"),
        (["record", "out.jsonl", "--requests", "0"], "--requests"),
    ],
)
def test_a_mistake_exits_with_2(run_dir, arguments, named):
    command = [sys.executable, "-m", "tierkv.cli.main", *arguments, "--run-dir", str(run_dir)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2, result.stderr
    assert named in result.stderr
    assert "Traceback" not in result.stderr


def test_requests_are_recorded_until_there_are_enough(run_dir, tmp_path):
    out = tmp_path / "trace.jsonl.gz"
    enough = threading.Event()

    def ask():
        with connect(run_dir) as client, connect(run_dir) as other:
            namespace_id = client.register(ANNA, LAYOUT).namespace_id
            other.register(ANNA, LAYOUT)
            _, keys = sequence(namespace_id, 5, seed=60)
            while not enough.is_set():
                client.release(client.acquire(namespace_id, keys[:3]))
                other.release(other.acquire(namespace_id, keys))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        exit_code, printed = tierkv("record", str(out), "--requests", "4", "--run-dir", str(run_dir), "--json")
    finally:
        enough.set()
        asking.join()
    assert exit_code == 0
    lines = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    assert len(lines) == 4
    for line in lines:
        assert line["hash_ids"] == list(range(len(line["hash_ids"])))
        assert line["input_length"] == 4 * len(line["hash_ids"])
        assert line["block_tokens"] == [4] * len(line["hash_ids"])
        assert line["output_length"] == 0
    assert {line["session"] for line in lines} == {0, 1}
    assert {len(line["hash_ids"]) for line in lines} == {3, 5}
    assert [line["timestamp"] for line in lines] == sorted(line["timestamp"] for line in lines)
    told = json.loads(printed)
    assert (told["requests"], told["unique_blocks"], told["dropped"]) == (4, 5, 0)
    assert told["accesses"] == sum(len(line["hash_ids"]) for line in lines)


def test_a_recording_ends_after_its_time_and_with_an_interrupt(run_dir, tmp_path):
    assert tierkv("record", str(tmp_path / "short.jsonl"), "--seconds", "0.1", "--run-dir", str(run_dir))[0] == 0
    out = tmp_path / "interrupted.jsonl"
    command = [sys.executable, "-m", "tierkv.cli.main", "record", str(out), "--run-dir", str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        wait_until(out.exists, timeout_s=TIMEOUT_S, what="the recording to begin")
        with connect(run_dir) as client:
            namespace_id = client.register(ANNA, LAYOUT).namespace_id
            client.release(client.acquire(namespace_id, sequence(namespace_id, 2, seed=70)[1]))
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert "requests" in printed
    assert len(out.read_text().splitlines()) <= 1


def test_too_many_recordings_and_a_missing_daemon_leave_an_old_file_alone(run_dir, tmp_path):
    out = tmp_path / "old.jsonl"
    out.write_text("precious")
    with Observer(run_dir) as daemon:
        recordings = [daemon.record() for _ in range(RECORDINGS_LIMIT)]
        with pytest.raises(CapacityError):
            tierkv("record", str(out), "--run-dir", str(run_dir))
        for recording in recordings:
            recording.stop()
            assert list(recording) == []
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    with pytest.raises(UnavailableError):
        tierkv("record", str(out), "--run-dir", str(folder))
    assert out.read_text() == "precious"


def test_a_daemon_that_stops_ends_its_recordings(tmp_path):
    options = DaemonOptions(tmp_path / "data", tmp_path / "run", "4MiB", "0", arena_folder=tmp_path / "arena")
    with start_daemon(options, log=tmp_path / "log") as daemon, Observer(options.run_dir) as observer:
        recording = observer.record()
        assert daemon.stop() == 0
        assert list(recording) == []
