"""`tierkv verify --data` reads a folder that nobody serves, finds damage and changes nothing."""

import json

import pytest
from typer.testing import CliRunner

import tierkv
from tierkv.cli.main import app
from tierkv.cli.output import ExitCode
from tierkv.model.outcomes import Durability
from tierkv_bench import workload

BLOCK_BYTES = 4096
BLOCKS = 3


def content(number):
    return bytes([number + 1]) * BLOCK_BYTES


@pytest.fixture
def data(tmp_path):
    """A data folder with three blocks, whose store is closed."""
    with tierkv.open_store(tmp_path / "data", host_memory="8MiB", disk="16MiB") as store:
        namespace = workload.register(store, "verify", BLOCK_BYTES, durability=Durability.INTERVAL)
        keys = workload.sequence(namespace, BLOCKS)
        store.put(namespace.namespace_id, keys, [memoryview(content(number)) for number in range(BLOCKS)])
        assert store.flush() == BLOCKS
    return tmp_path / "data"


def verify(data):
    result = CliRunner().invoke(app, ["verify", "--data", str(data), "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout)


def test_a_sound_folder_is_done(data):
    exit_code, report = verify(data)
    assert exit_code == ExitCode.DONE
    assert report["frames"] == BLOCKS
    assert report["bytes"] >= BLOCKS * BLOCK_BYTES
    assert report["damaged"] == []


def test_a_flipped_byte_fails_the_check_each_time_it_is_asked(data):
    (segment,) = (data / "segments").iterdir()
    held = bytearray(segment.read_bytes())
    held[held.index(content(1)) + 100] ^= 0xFF
    segment.write_bytes(held)
    for _ in range(2):
        exit_code, report = verify(data)
        assert exit_code == ExitCode.CHECK_FAILED
        assert report["frames"] == BLOCKS
        (damaged,) = report["damaged"]
        assert damaged.keys() >= {"key", "where", "what"}
    assert segment.read_bytes() == held
