"""The vector check: it passes the published vectors, and notices every kind of mistake in them."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tierkv.testing.arc_vectors import main

VECTORS = Path(__file__).parents[2] / "data" / "arc_vectors.json"
Document = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Document:
    loaded: Document = json.loads(VECTORS.read_text())
    return loaded


def test_the_policy_reproduces_the_published_vectors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(VECTORS)]) == 0
    assert "14 vectors" in capsys.readouterr().out


def test_json_shows_what_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(VECTORS), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"vectors": 14, "accesses": 3550, "difference": None}


def _flip_hit(vector: Document) -> None:
    vector["hits"] = vector["hits"][:-1] + ("0" if vector["hits"][-1] == "1" else "1")


MUTATIONS: dict[str, Callable[[Document], None]] = {
    "hit": _flip_hit,
    "hits too short": lambda vector: vector.update(hits=vector["hits"][:-1]),
    "victim": lambda vector: vector["victims"][-1].__setitem__(1, -1),
    "victim's ghost list": lambda vector: vector["victims"][-1].__setitem__(2, "B3"),
    "victim missing": lambda vector: vector["victims"].pop(),
    "victim of no access": lambda vector: vector["victims"].append([len(vector["accesses"]), 1, "B1"]),
    "T1": lambda vector: vector["states"][-1]["T1"].append(-1),
    "T2": lambda vector: vector["states"][-1]["T2"].append(-1),
    "B1": lambda vector: vector["states"][-1]["B1"].append(-1),
    "B2": lambda vector: vector["states"][-1]["B2"].append(-1),
    "order of T2": lambda vector: vector["states"][-1]["T2"].reverse(),
    "p": lambda vector: vector["states"][-1].update(p=vector["states"][-1]["p"] + 1e-5),
    "p is not a number": lambda vector: vector["states"][-1].update(p=float("nan")),
    "state of no access": lambda vector: vector["states"][-1].update(i=-1),
    "capacity": lambda vector: vector.update(capacity=vector["capacity"] + 1),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_changed_vector_fails(name: str, document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = copy.deepcopy(document)
    vector = next(vector for vector in changed["vectors"] if vector["name"] == "v chat 0")
    MUTATIONS[name](vector)
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(changed))
    assert main([str(path)]) == 1
    assert "vector 'v chat 0'" in capsys.readouterr().out
    assert main([str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["difference"]["vector"] == "v chat 0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"vectors": []}',
        '{"vectors": [1]}',
        '{"vectors": [{"name": "v"}]}',
        '{"vectors": [{"name": "v", "capacity": 0, "accesses": [], "hits": "", "victims": [], "states": []}]}',
        '{"vectors": [{"name": "v", "capacity": 1, "accesses": [1.5], "hits": "0", "victims": [], "states": []}]}',
        '{"vectors": [{"name": "v", "capacity": 1, "accesses": [1], "hits": "0", "victims": [[0, 1]], "states": []}]}',
        '{"vectors": [{"name": "v", "capacity": 1, "accesses": [1], "hits": "0", "victims": [], "states": [{"i": 0}]}]}',
    ],
)
def test_a_malformed_file_is_the_callers_mistake(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vectors.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    captured = capsys.readouterr()
    assert str(path) in captured.err and not captured.out


def test_a_missing_file_is_the_callers_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent.json")]) == 2
    assert "absent.json" in capsys.readouterr().err
