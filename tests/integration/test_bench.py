"""The benchmarks run on the real store and the real daemon, tiny, and print the fields that people script against."""

import json

from typer.testing import CliRunner

from tierkv.cli.main import app

TRANSPORT_FIELDS = {
    *("blocks", "block_bytes", "memcpy_gbps", "put_gbps", "get_gbps", "put_ratio", "get_ratio"),
    *("acquire_ms_p50", "acquire_ms_p99", "empty_call_ms_p50"),
}
DISK_FIELDS = {"bytes", "file_read_gbps", "file_write_gbps", "read_gbps", "write_gbps", "read_ratio", "write_ratio"}
RESTART_FIELDS = {"blocks", "ready_s", "first_hit_s", "rss_beside_arena_bytes"}


def run_bench(name, *options):
    result = CliRunner().invoke(app, ["bench", name, "--json", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_transport():
    printed = run_bench("transport", "--blocks", "4", "--block-bytes", "65536", "--rounds", "2")
    assert printed.keys() >= TRANSPORT_FIELDS
    assert (printed["blocks"], printed["block_bytes"]) == (4, 65536)
    assert all(printed[field] > 0 for field in TRANSPORT_FIELDS)


def test_disk(tmp_path):
    printed = run_bench("disk", "--bytes", "1000000", "--block-bytes", "65536", "--rounds", "1", "--folder", str(tmp_path))
    assert printed.keys() >= DISK_FIELDS
    assert printed["bytes"] == 16 * 65536
    assert all(printed[field] > 0 for field in DISK_FIELDS)
    assert list(tmp_path.iterdir()) == []


def test_restart():
    printed = run_bench("restart", "--blocks", "64")
    assert printed.keys() >= RESTART_FIELDS
    assert printed["blocks"] == 64
    assert all(printed[field] > 0 for field in RESTART_FIELDS)
    # Interpreter and libraries take more than this; less would mean that the arena was taken for the rest.
    assert printed["rss_beside_arena_bytes"] > 10 << 20
