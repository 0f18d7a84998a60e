"""`tierkv simulate`: the JSON that scripts read, and what each mistake gets."""

import json
from pathlib import Path

import pytest

from tierkv.cli.main import app
from tierkv.cli.output import ExitCode, run_command
from tierkv.simulator import replay

TRACE = str(Path(__file__).parents[1] / "data" / "chat_trace.jsonl")
ACCESSES, UNIQUE, REQUESTS = 8663, 1092, 198


@pytest.fixture
def simulate(capsys):
    """Runs the command; returns its exit code, standard output and standard error."""

    def running(*arguments):
        exit_code = run_command(lambda: app(["simulate", *map(str, arguments)]))
        out, err = capsys.readouterr()
        return exit_code, out, err

    return running


def test_the_contract_of_the_json(simulate):
    exit_code, out, err = simulate(TRACE, "--policy", "arc,arc-paper,lru,s3fifo,belady", "--capacity", "5%,200", "--json")
    assert (exit_code, err) == (ExitCode.DONE, "")
    report = json.loads(out)
    assert report["trace"] == TRACE
    assert (report["requests"], report["accesses"], report["unique_blocks"]) == (REQUESTS, ACCESSES, UNIQUE)
    assert (report["block_tokens"], report["block_tokens_from"], report["malformed_lines"]) == (64, "inferred", 0)
    runs = [(result["policy"], result["capacity"], result["capacity_blocks"]) for result in report["results"]]
    policies = ("arc", "arc-paper", "lru", "s3fifo", "belady")
    assert runs == [(policy, *size) for policy in policies for size in (("5%", 54), ("200", 200))]
    for result in report["results"]:
        assert 0 < result["prefix_hit"] <= result["block_hit"] < 1
        assert result["host_hit"] == result["prefix_hit"]
        assert result["accesses_per_s"] > 0
        assert result["belady_gap"] >= 0
        assert result["disk_writes"] == 0
    assert [result["orphans"] for result in report["results"][:2]] == [0, 0]


def test_defaults_are_the_five_policies_at_four_sizes(simulate):
    exit_code, out, _ = simulate(TRACE, "--json")
    assert exit_code == ExitCode.DONE
    results = json.loads(out)["results"]
    assert {result["policy"] for result in results} == {"arc", "arc-paper", "lru", "s3fifo", "belady"}
    assert [result["capacity"] for result in results[:4]] == ["1%", "5%", "10%", "20%"]


def test_several_traces_are_several_runs(simulate, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"timestamp": 0, "input_length": 32, "hash_ids": [1, 2]}\n' * 2)
    _, out, _ = simulate(TRACE, other, "--policy", "lru", "--capacity", "50%", "--json")
    runs = json.loads(out)["runs"]
    assert [run["trace"] for run in runs] == [TRACE, str(other)]
    assert [run["results"][0]["capacity_blocks"] for run in runs] == [546, 1]


def test_a_disk_and_hints_show_in_the_results(simulate):
    _, out, _ = simulate(TRACE, "--policy", "arc", "--capacity", "5%", "--disk", "50%", "--hints", "all", "--json")
    plain, hinted = json.loads(out)["results"]
    assert (plain["policy"], plain["hints"], hinted["policy"], hinted["hints"]) == ("arc", None, "arc+hints", "all")
    assert plain["disk_capacity_blocks"] == UNIQUE // 2
    assert plain["disk_hit"] > 0
    assert plain["disk_writes"] > 0


def test_people_get_a_table_and_a_picture(simulate, tmp_path):
    picture = tmp_path / "curve.png"
    exit_code, out, _ = simulate(TRACE, "--policy", "arc,belady", "--plot", picture, "--disk", "30%")
    assert exit_code == ExitCode.DONE
    for expected in ("chat_trace.jsonl", "198 requests", "prefix %", "to Belady", "disk %", "arc", "20%"):
        assert expected in out
    assert "…" not in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_capacity_that_holds_everything_is_a_warning(simulate):
    exit_code, out, err = simulate(TRACE, "--policy", "lru", "--capacity", "200%", "--disk", "5000", "--json")
    assert exit_code == ExitCode.DONE
    assert "200% holds everything" in err
    assert json.loads(out)["results"][0]["capacity_blocks"] == 2 * UNIQUE


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--capacity", "0"], "capacity='0'"),
        (["--capacity", "0%"], "capacity='0%'"),
        (["--capacity", "5%%"], "capacity='5%%'"),
        (["--capacity", "1%,,5%"], "capacity=''"),
        (["--capacity", "-5"], "capacity='-5'"),
        (["--capacity", "0.01%"], "smallest="),
        (["--disk", "0"], "capacity='0'"),
        (["--disk", "0.01%"], "capacity='0.01%'"),
        (["--policy", "arc,lrru"], "did_you_mean='lru'"),
        (["--policy", ""], "known='arc, "),
        (["--write-back"], "--disk"),
        (["--hints", "some"], "hints='some'"),
        (["--on-error", "ignore"], "stop, skip"),
        (["--plot", "curve.jpg"], ".png, .svg, .pdf"),
        (["--plot", "/no/such/folder/curve.png"], "folder"),
        (["--block-tokens", "0"], "--block-tokens"),
    ],
)
def test_mistakes_are_named_before_anything_runs(simulate, arguments, named):
    exit_code, out, err = simulate(TRACE, *arguments)
    assert (exit_code, out) == (ExitCode.CALLER_MISTAKE, "")
    assert named in err


def test_traces_that_cannot_be_read_are_named(simulate, tmp_path):
    for path in (tmp_path / "missing.jsonl", tmp_path):
        exit_code, _, err = simulate(path)
        assert exit_code == ExitCode.CALLER_MISTAKE
        assert f"path='{path}'" in err
    assert simulate()[0] == ExitCode.CALLER_MISTAKE


def test_hints_need_sessions(simulate, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 32, "hash_ids": [1, 2]}\n')
    exit_code, _, err = simulate(path, "--hints", "all", "--capacity", "1")
    assert exit_code == ExitCode.CALLER_MISTAKE
    assert "names none" in err


def test_a_malformed_line_stops_or_is_skipped_and_counted(simulate, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 32, "hash_ids": [1, 2]}\noops\n')
    exit_code, _, err = simulate(path, "--capacity", "1")
    assert exit_code == ExitCode.CALLER_MISTAKE
    for expected in (f"path='{path}'", "line='2'", "not JSON", "hash_ids", "--on-error skip"):
        assert expected in err
    exit_code, out, err = simulate(path, "--capacity", "1", "--on-error", "skip", "--json")
    assert exit_code == ExitCode.DONE
    assert json.loads(out)["malformed_lines"] == 1
    assert "1 malformed" in err


def test_prompts_that_no_block_size_fits_are_a_warning(simulate, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"timestamp": 0, "input_length": 9, "hash_ids": {ids}}}\n' for ids in ([1, 2], [1, 2, 3, 4, 5])))
    exit_code, out, err = simulate(path, "--capacity", "1", "--json")
    assert (exit_code, json.loads(out)["block_tokens"]) == (ExitCode.DONE, None)
    assert "--block-tokens" in err


def test_an_orphan_fails_the_check(simulate, monkeypatch):
    monkeypatch.setattr(replay, "num_orphans", lambda cache, trace: 3)
    arguments = (TRACE, "--capacity", "500", "--json", "--policy")
    exit_code, out, _ = simulate(*arguments, "arc")
    assert exit_code == ExitCode.CHECK_FAILED
    assert json.loads(out)["results"][0]["orphans"] == 3
    assert simulate(*arguments, "lru,s3fifo")[0] == ExitCode.DONE, "references promise nothing"
