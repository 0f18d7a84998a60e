"""`tierkv explain`: what it takes for a key, and the form of what it prints."""

import json

import pytest
from typer.testing import CliRunner

from tierkv.answers import ExplainedEvent, Explanation
from tierkv.cli.explain import ago, parse_subject, read_token_ids
from tierkv.cli.main import app
from tierkv.client import observer
from tierkv.errors import InvalidRequestError
from tierkv.model.outcomes import MissReason, TierName


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("00" * 32, bytes(32)),
        ("ABCDEF01", bytes.fromhex("abcdef01")),
        ("abcdef0", "abcdef0"),
        ("ab" * 33, "ab" * 33),
        ("chat-17", "chat-17"),
        ("request:abcdef01", "abcdef01"),
        ("request:request:x", "request:x"),
    ],
)
def test_keys_and_requests_are_told_apart(text, subject):
    assert parse_subject(text) == subject


@pytest.mark.parametrize("text", ["abcdef012", "request:", ""])
def test_what_is_neither_is_refused(text):
    with pytest.raises(InvalidRequestError):
        parse_subject(text)


@pytest.mark.parametrize("text", ["1 2 3", "[1, 2, 3]", "1,2,3\n", "1\n2\n3\n"])
def test_token_ids_in_every_form(tmp_path, text):
    path = tmp_path / "tokens"
    path.write_text(text)
    assert read_token_ids(path) == [1, 2, 3]


@pytest.mark.parametrize(("content", "named"), [(b"1 -2", "'-2'"), (b"one", "'one'"), (b"", "no token"), (b"\xff", "tokens=")])
def test_what_is_no_token_id_is_named(tmp_path, content, named):
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=named):
        read_token_ids(path)
    with pytest.raises(InvalidRequestError, match="missing"):
        read_token_ids(tmp_path / "missing")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s ago"), (3.21, "3.2 s ago"), (720, "12 min ago"), (18_000, "5.0 h ago"), (260_000, "3 days ago")],
)
def test_spans_of_time(seconds, text):
    assert ago(seconds) == text


@pytest.fixture
def answered(monkeypatch):
    """Makes the command's daemon answer with an explanation; returns what it was asked."""
    asked = []

    def answer(explanation):
        class Daemon:
            def __init__(self, address):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def explain(self, subject, token_ids):
                asked.append((subject, token_ids))
                return explanation

        monkeypatch.setattr(observer, "Observer", Daemon)
        return asked

    return answer


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *arguments], catch_exceptions=False)


def test_a_block_as_json(answered, tmp_path):
    explanation = Explanation(bytes(32), "", True, TierName.HOST, None, "held", (ExplainedEvent(1.5, "saved", "2 blocks"),))
    asked = answered(explanation)
    (tmp_path / "tokens").write_text("5 6")
    result = run("00" * 32, "--json", "--tokens", str(tmp_path / "tokens"))
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "key": "00" * 32,
        "found": True,
        "tier": "host",
        "reason": None,
        "sentence": "held",
        "events": [{"at": 1.5, "what": "saved", "why": "2 blocks"}],
    }
    assert asked == [(bytes(32), [5, 6])]


def test_a_missed_request_as_json_is_done(answered):
    answered(Explanation(None, "r", False, None, MissReason.EVICTED, "gone"))
    result = run("r", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "request": "r",
        "found": False,
        "tier": None,
        "reason": "evicted",
        "sentence": "gone",
        "events": [],
    }


def test_for_people_a_sentence_and_a_table(answered):
    events = (ExplainedEvent(1.5, "passed_by", "arc-age [w=1]: cap"),)
    answered(Explanation(b"\xab\xcd\xef\x01", "", False, None, MissReason.CAPACITY, "passed by [/] at noon", events))
    result = run("abcdef01")
    assert result.exit_code == 0
    assert "block abcdef01: capacity: passed by [/] at noon" in result.stdout
    assert "passed by" in result.stdout
    assert "arc-age [w=1]: cap" in result.stdout
    assert "days ago" in result.stdout
