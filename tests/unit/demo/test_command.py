"""`tierkv demo` around a story that is not told for real: form of the result and exit codes."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys

import pytest

from tierkv.cli.main import main
from tierkv.demo import story
from tierkv.demo.story import Run, Story

RUNS = (
    Run("cold", 4000.0, 3.0, 0, None, identical=True, faster=1.0),
    Run("same_process", 100.0, 15.0, 2000, "host", identical=True, faster=40.0),
)
TOLD = Story("tiny", 2106, 24, 16, "q?", "a.", RUNS, passed=True, folder=None)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def run_demo(monkeypatch, capsys):
    """Runs the command on arguments with `told` as its story; exit code, standard output, standard error."""

    def run(*arguments, told=TOLD):
        before = signal.getsignal(signal.SIGTERM)
        monkeypatch.setattr(story, "tell", lambda options, progress: progress.step("prefill") or told)
        monkeypatch.setattr(sys, "argv", ["tierkv", "demo", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        signal.signal(signal.SIGTERM, before)
        return stop.value.code, *capsys.readouterr()

    return run


def test_json_has_the_fields_of_the_contract_alone_on_standard_output(run_demo, model):
    code, output, errors = run_demo("--json", "--model", model)
    result = json.loads(output)
    assert code == 0
    assert {"model", "prompt_tokens", "runs"} <= result.keys()
    assert result["runs"][0] == {
        "name": "cold",
        "ttft_ms": 4000.0,
        "restore_ms": 3.0,
        "restored_tokens": 0,
        "tier": None,
        "identical": True,
        "faster": 1.0,
    }
    assert "prefill" in errors


def test_people_get_a_table(run_demo, model):
    code, output, _ = run_demo("--model", model)
    assert code == 0
    assert "same process" in output
    assert "40 x" in output


def test_a_story_that_failed_exits_with_3(run_demo, model):
    code, output, _ = run_demo("--json", "--model", model, told=dataclasses.replace(TOLD, passed=False))
    assert code == 3
    assert json.loads(output)["passed"] is False


def test_a_folder_without_a_model_is_the_callers_mistake(run_demo, tmp_path):
    code, output, errors = run_demo("--model", tmp_path / "nothing")
    assert (code, output) == (2, "")
    assert "config.json" in errors
