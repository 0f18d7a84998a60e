"""The inference boundary over the fake store: what goes in comes out, and nothing the store does raises."""

from __future__ import annotations

import pytest

from tierkv.errors import UnavailableError
from tierkv.integrations.prefix import PrefixCache
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import TierName
from tierkv.testing.fake_store import FakeBlockStore

LAYOUT = Layout(shape=(8,), dtype="uint8", block_tokens=4)
TOKENS = list(range(100, 114))  # three full blocks and two tokens


@pytest.fixture
def store():
    return FakeBlockStore()


@pytest.fixture
def prefix(store):
    return PrefixCache(store, Identity(weights="w"), LAYOUT)


def fill(block_idx, buffer):
    buffer[:] = bytes([block_idx + 1]) * 8


def blocks_of(loaded):
    return [bytes(block) for run in loaded.runs() for block in run.blocks]


def test_saved_blocks_come_back_in_order(prefix, store):
    assert prefix.save(TOKENS, 0, fill) == 3
    with prefix.load(TOKENS) as loaded:
        assert loaded.num_blocks == 3
        assert loaded.tiers == (TierName.HOST,) * 3
        assert blocks_of(loaded) == [b"\1" * 8, b"\2" * 8, b"\3" * 8]
        assert loaded.is_valid()
    assert not loaded.is_valid()
    assert not store.backend.leases
    assert prefix.counters.hits == 1
    assert prefix.counters.loaded_blocks == 3
    assert prefix.counters.saved_blocks == 3


def test_only_the_common_prefix_is_loaded(prefix):
    prefix.save(TOKENS, 0, fill)
    with prefix.load([*TOKENS[:8], 1, 2, 3, 4]) as loaded:
        assert loaded.num_blocks == 2
    assert prefix.load([1, *TOKENS]) is None
    assert prefix.load(TOKENS[:3]) is None
    assert prefix.counters.misses == 2


def test_only_missing_blocks_are_filled(prefix, store):
    prefix.save(TOKENS[:8], 0, fill)
    filled = []
    assert prefix.save(TOKENS, 0, lambda idx, buffer: filled.append(idx)) == 1
    assert filled == [2]
    assert prefix.counters.present_blocks == 2
    assert prefix.save(TOKENS, 3, fill) == 0
    store.check_integrity()


def test_other_identities_share_nothing(prefix, store):
    prefix.save(TOKENS, 0, fill)
    assert PrefixCache(store, Identity(weights="other"), LAYOUT).load(TOKENS) is None
    assert PrefixCache(store, Identity(weights="w", salt="s"), LAYOUT).load(TOKENS) is None


def test_a_store_that_is_away_is_a_counted_miss(prefix, store):
    store.unavailable = True
    assert prefix.load(TOKENS) is None
    assert prefix.save(TOKENS, 0, fill) == 0
    assert (prefix.counters.load_errors, prefix.counters.save_errors, prefix.counters.misses) == (1, 1, 1)
    store.unavailable = False
    assert prefix.save(TOKENS, 0, fill) == 3
    with prefix.load(TOKENS) as loaded:
        store.unavailable = True
        assert loaded.num_blocks == 3


def test_a_store_that_forgot_the_namespace_is_told_again(prefix, store, caplog):
    prefix.save(TOKENS, 0, fill)
    store.backend.namespaces.clear()
    store.backend.blocks.clear()
    assert prefix.load(TOKENS) is None
    assert prefix.counters.invalid_requests == 1
    assert "unknown namespace" in caplog.text
    assert prefix.save(TOKENS, 0, fill) == 3


def test_our_own_mistakes_are_logged_once(prefix, store, caplog):
    for _ in range(5):  # registered, unknown, registered, unknown, registered
        prefix.load(TOKENS)
        store.backend.namespaces.clear()
    assert prefix.counters.invalid_requests == 2
    assert caplog.text.count("unknown namespace") == 1


def test_refused_blocks_are_counted_and_the_rest_is_saved():
    store = FakeBlockStore(capacity_blocks=2)
    prefix = PrefixCache(store, Identity(weights="w"), LAYOUT)
    assert prefix.save(TOKENS, 0, fill) == 2
    assert prefix.counters.refused_blocks == 1


def test_a_fill_that_fails_gives_its_reservation_back(prefix, store):
    def fails(block_idx, buffer):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        prefix.save(TOKENS, 0, fails)
    assert not store.backend.reservations
    assert prefix.load(TOKENS) is None


def test_a_commit_that_fails_is_a_skipped_save(prefix, store, monkeypatch):
    def away(*args, **kwargs):
        raise UnavailableError("away")

    monkeypatch.setattr(store, "commit", away)
    assert prefix.save(TOKENS, 0, fill) == 0
    assert prefix.counters.save_errors == 1
    assert prefix.counters.saved_blocks == 0
    assert not store.backend.reservations


def test_damage_ends_the_prefix(prefix, store):
    prefix.save(TOKENS, 0, fill)
    store.damage(prefix.keys(TOKENS)[1])
    with prefix.load(TOKENS) as loaded:
        assert blocks_of(loaded) == [b"\1" * 8]
