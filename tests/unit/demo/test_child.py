"""The parent's side of the engine's protocol, against small scripts that play the engine."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tierkv.demo.child import Answer, EngineProcess
from tierkv.errors import UnavailableError

ANSWER: dict[str, Any] = {
    "ttft_ms": 1.5,
    "restore_ms": 0.5,
    "prompt_tokens": 9,
    "restored_tokens": 8,
    "tier": "host",
    "saved_blocks": 0,
    "token_ids": [4, 5],
    "text": "x",
}
SPEAKS = f"""
import json, sys
print(json.dumps({{"event": "loading"}}), flush=True)
print(json.dumps({{"event": "ready", "load_s": 2.5, "refusal": None}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({{**{ANSWER!r}, "text": asked["question"] * asked["new_tokens"]}}), flush=True)
"""


@pytest.fixture
def engine_of(tmp_path):
    engines = []

    def make(script):
        engines.append(EngineProcess([sys.executable, "-c", script], log=tmp_path / "log"))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.kill()


def test_asks_and_is_answered_after_a_restart_too(engine_of):
    engine = engine_of(SPEAKS)
    for _ in range(2):
        assert engine.wait_ready() == 2.5
        assert engine.ask("doc", "why? ", 2) == Answer(**{**ANSWER, "text": "why? why? "})
        engine.kill()
        engine.kill()
        engine.start()


def test_an_engine_that_ends_is_told_with_its_last_words(engine_of):
    engine = engine_of("import sys; sys.stderr.write('no such model'); sys.exit(1)")
    with pytest.raises(UnavailableError, match="no such model"):
        engine.wait_ready()


def test_a_silent_engine_is_not_waited_for_without_end(engine_of):
    engine = engine_of("input()")
    with pytest.raises(UnavailableError, match="in time"):
        engine.wait_ready(timeout_s=0.05)


def test_a_model_that_cannot_be_cached_is_no_demo(engine_of):
    engine = engine_of('print(\'{"event": "ready", "load_s": 1, "refusal": "mamba"}\', flush=True); input()')
    with pytest.raises(UnavailableError, match="mamba"):
        engine.wait_ready()


def test_nothing_is_asked_before_the_start(tmp_path):
    with pytest.raises(UnavailableError, match="not started"):
        EngineProcess(["x"], log=tmp_path / "log").ask("", "", 1)
