"""Calls of one request are one access to each block."""

import random

import pytest

from tierkv.index.holds import SessionId
from tierkv.model.keys import BlockKey
from tierkv.placement.requests import RequestTable

SESSION, OTHER = SessionId(b"s"), SessionId(b"o")


def chain(text):
    """a, ab, abc: a key names all before it."""
    return [BlockKey(text[: idx + 1].encode()) for idx in range(len(text))]


def parent_of(key):
    return key[:-1] or None


@pytest.fixture
def table():
    return RequestTable(limit=3, parent_of=parent_of)


def test_a_second_call_accesses_nothing_again(table):
    keys = chain("abcd")
    assert table.first_accesses(SESSION, "r", keys) == keys
    assert table.first_accesses(SESSION, "r", keys) == []
    assert table.first_accesses(SESSION, "r", keys[:2]) == []
    assert table.first_accesses(SESSION, "r", keys[1:3]) == []
    assert table.first_accesses(SESSION, "r", keys) == []


def test_a_longer_chain_accesses_its_end(table):
    keys = chain("abcdef")
    table.first_accesses(SESSION, "r", keys[:2])
    assert table.first_accesses(SESSION, "r", keys[:4]) == keys[2:4]
    assert table.first_accesses(SESSION, "r", keys[4:]) == keys[4:], "a save names what follows"
    assert table.first_accesses(SESSION, "r", keys) == []


def test_another_branch_accesses_what_is_its_own(table):
    table.first_accesses(SESSION, "r", chain("abcd"))
    assert table.first_accesses(SESSION, "r", chain("abxy")) == chain("abxy")[2:]
    assert table.first_accesses(SESSION, "r", chain("abcd")) == []
    assert table.first_accesses(SESSION, "r", chain("abxy")) == []


def test_requests_and_sessions_are_apart(table):
    keys = chain("abc")
    table.first_accesses(SESSION, "r", keys)
    assert table.first_accesses(SESSION, "q", keys) == keys
    assert table.first_accesses(OTHER, "r", keys) == keys


def test_calls_without_a_name_are_requests_of_their_own(table):
    keys = chain("abc")
    assert table.first_accesses(SESSION, "", keys) == keys
    assert table.first_accesses(SESSION, "", keys) == keys
    table.add_spent(SESSION, "", 5)
    assert table.spent(SESSION, "") == 0
    assert len(table) == 0


def test_what_was_not_heard_of_for_longest_is_forgotten(table):
    keys = chain("abc")
    for name in ("1", "2", "3"):
        table.first_accesses(SESSION, name, keys)
    table.first_accesses(SESSION, "1", keys)
    table.first_accesses(SESSION, "4", keys)
    assert len(table) == 3
    assert table.first_accesses(SESSION, "1", keys) == []
    assert table.first_accesses(SESSION, "2", keys) == keys


def test_spent_weight_adds_up_and_ends_with_the_session(table):
    table.add_spent(SESSION, "r", 5)
    table.add_spent(SESSION, "r", 2)
    table.add_spent(OTHER, "r", 1)
    assert (table.spent(SESSION, "r"), table.spent(SESSION, "q"), table.spent(OTHER, "r")) == (7, 0, 1)
    table.end_session(SESSION)
    assert (table.spent(SESSION, "r"), table.spent(OTHER, "r")) == (0, 1)


def test_a_request_with_many_chains_stays_small(table):
    for number in range(1_000):
        table.first_accesses(SESSION, "r", [BlockKey(number.to_bytes(4, "big"))])
    (request,) = table._requests.values()
    assert len(request.chains) <= 64


@pytest.mark.parametrize("seed", range(20))
def test_the_table_agrees_with_a_set(seed):
    rng, table, seen = random.Random(seed), RequestTable(limit=1, parent_of=parent_of), set()
    for _ in range(60):
        text = "".join(rng.choice("ab") for _ in range(rng.randint(1, 5)))
        keys = chain(text)[rng.randint(0, len(text) - 1) :]
        assert table.first_accesses(SESSION, "r", keys) == [key for key in keys if key not in seen]
        seen.update(keys)
