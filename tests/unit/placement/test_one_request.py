"""Calls of one request are one access to each block, and share one part of a full tier; seen in the lists of ARC."""

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.model.hints import Hints
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, ReserveOutcome
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings
from tierkv.testing.clock import ManualClock
from tierkv.testing.deadline import wait_until

BLOCK_BYTES = 16 * 1024
ROOM_BLOCKS = MIB // BLOCK_BYTES
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=1)
IDENTITY = Identity(weights="one request")
NAMESPACE = IDENTITY.fingerprint(LAYOUT)
R, Q = Hints(request_id="r"), Hints(request_id="q")


@pytest.fixture
def store(tmp_path):
    settings = StoreSettings(
        data_folder=tmp_path / "data",
        host=HostSettings(memory_bytes=MIB, folder=tmp_path / "arena", prefault=False, headroom_ratio=0.0),
        disk=DiskSettings(capacity_bytes=0),
        durability=Durability.VOLATILE,
    )
    store = open_tiered_store(settings, ManualClock())
    store.register(IDENTITY, LAYOUT)
    yield store
    store.check_integrity()
    store.close(discard_arena=True)


@pytest.fixture
def session(store):
    return store.open_session("unit")


def keys_of(*token_ids):
    return chain_keys(NAMESPACE, token_ids, block_tokens=1)


def save(store, session, keys, hints, parent=None):
    """How many blocks are granted; they are committed."""
    result = store.reserve(session, NAMESPACE, keys, parent, hints)
    granted = result.outcomes.count(ReserveOutcome.GRANTED)
    if granted:
        store.commit(session, result.reservation_id)
        wait_until(lambda: is_sealed(store), timeout_s=5, what="the scribe: what it looks at cannot leave")
    return granted


def is_sealed(store):
    return all(entry.moves == 0 for entry in store._books.index)


def load(store, session, keys, hints):
    store.release(session, [store.acquire(session, NAMESPACE, keys, hints).lease_id])


def t2_of(store):
    """Keys that were seen again, most recent first. The policy of a store is wrapped, so that it survives a restart."""
    return store._books.host_policy.inner.snapshot().t2


def seen_again(store, keys):
    """How many of the keys are in T2."""
    t2 = set(t2_of(store))
    return sum(key in t2 for key in keys)


def test_a_request_that_reads_what_it_saved_has_used_it_once(store, session):
    keys = keys_of(1, 2, 3)
    assert save(store, session, keys, R) == 3
    load(store, session, keys, R)
    load(store, session, keys[:2], R)
    assert seen_again(store, keys) == 0
    load(store, session, keys[:2], Q)
    assert seen_again(store, keys) == 2
    load(store, session, keys, R)
    assert seen_again(store, keys) == 2


def test_a_second_call_of_a_request_does_not_make_its_blocks_recent_again(store, session):
    first, second = keys_of(1), keys_of(2)
    for keys in (first, second):
        save(store, session, keys, Hints())
        load(store, session, keys, R)
    assert t2_of(store) == (*second, *first)
    load(store, session, first, R)
    assert t2_of(store) == (*second, *first)
    load(store, session, first, Q)
    assert t2_of(store) == (*first, *second)


def test_calls_without_a_request_id_are_accesses_of_their_own(store, session):
    keys = keys_of(1, 2)
    save(store, session, keys, Hints())
    load(store, session, keys, Hints())
    assert seen_again(store, keys) == 2


def test_a_name_means_another_request_in_another_session_and_after_its_end(store, session):
    keys = keys_of(1, 2)
    other = store.open_session("other")
    save(store, other, keys, R)
    load(store, session, keys, R)
    assert seen_again(store, keys) == 2
    store.close_session(other)
    assert len(store._requests) == 1


def test_the_parts_of_a_request_share_its_part_of_a_full_tier(store, session):
    policy = store._books.host_policy
    save(store, session, keys_of(*range(100, 100 + policy.capacity // BLOCK_BYTES)), Hints())
    for number in range(8):  # each call a request of its own, and the tier is full now
        assert save(store, session, keys_of(number, 1), Hints()) == 2
    share = policy.capacity // 8 // BLOCK_BYTES
    chain = keys_of(*range(200, 200 + 2 * share))
    granted = save(store, session, chain[: share - 1], R)
    assert granted == share - 1
    assert save(store, session, chain[share - 1 :], R, parent=chain[share - 2]) == 1
    assert save(store, session, chain[share:], R, parent=chain[share - 1]) == 0
    assert save(store, session, chain[share:], Q, parent=chain[share - 1]) == share


def test_a_block_of_another_writer_between_a_requests_own_is_not_taken_for_one_of_them(store, session):
    keys, other = keys_of(1, 2, 3), store.open_session("other")
    theirs = store.reserve(other, NAMESPACE, keys)
    store.abort(other, theirs.reservation_id, [keys[0], keys[2]])
    ours = store.reserve(session, NAMESPACE, keys, None, R)
    assert ours.outcomes == (ReserveOutcome.GRANTED, ReserveOutcome.PENDING, ReserveOutcome.GRANTED)
    store.commit(other, theirs.reservation_id, [keys[1]])
    store.commit(session, ours.reservation_id)
    load(store, session, keys, R)
    assert t2_of(store) == (keys[1],)
