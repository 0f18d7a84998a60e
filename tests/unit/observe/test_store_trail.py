"""What a real store, without a daemon, leaves in its trail."""

from concurrent.futures import Future

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.embedded import EmbeddedStore
from tierkv.model.hints import Hints, Priority
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, MissReason, TierName
from tierkv.settings import MIB, DiskSettings, HostSettings, LimitSettings, StoreSettings
from tierkv.testing.clock import ManualClock

BLOCK_BYTES = 8_192
LAYOUT = Layout((BLOCK_BYTES,), "uint8", 4)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def open_store(tmp_path, clock):
    """Opens a store on one folder; the test closes it."""

    def open_with(**limits):
        settings = StoreSettings(
            data_folder=tmp_path / "data",
            host=HostSettings(MIB, folder=tmp_path / "arena", prefault=False),
            disk=DiskSettings(8 * MIB, segment_bytes=MIB, interval_s=0.0, direct_io=False),
            limits=LimitSettings(**limits),
        )
        return EmbeddedStore(open_tiered_store(settings, clock), clock=clock, discard_arena=True)

    return open_with


def saved(store, blocks=4):
    namespace_id = store.register(Identity(weights="w"), LAYOUT, durability=Durability.INTERVAL).namespace_id
    keys = chain_keys(namespace_id, range(4 * blocks), block_tokens=4)
    store.put(namespace_id, keys, [memoryview(key * 256) for key in keys])
    return namespace_id, keys


def names(explanation):
    return [event.what for event in explanation.events]


def test_a_restart_is_told_and_what_is_on_disk_is_found_there(open_store):
    with open_store() as store:
        namespace_id, keys = saved(store)
        store.flush()
    with open_store() as store:
        told = store.explain(keys[0])
        assert (told.found, told.tier, names(told)) == (True, TierName.DISK, ["recovered"])
        assert "since 1970-01-01T00:00:00Z (recovered)" in told.reason
        store.release(store.acquire(namespace_id, keys))
        hits = [event for event in store.tiered.trail.events() if event.what == "hit"]
        assert [(event.tier, len(event.keys), event.namespace) for event in hits] == [(TierName.DISK, len(keys), namespace_id)]


def test_a_block_pushed_out_of_the_arena_is_told_on_disk_with_the_rule(open_store):
    with open_store() as store:
        namespace_id, keys = saved(store, blocks=2)
        store.flush()
        for seed in range(1, 80):
            others = chain_keys(namespace_id, [seed * 1_000 + idx for idx in range(8)], block_tokens=4)
            store.put(namespace_id, others, [memoryview(key * 256) for key in others])
        told = store.explain(keys[0])
        assert (told.found, told.tier) == (True, TierName.DISK)
        assert "evicted from the host tier: arc-age" in told.reason
        store.flush()  # bytes that are still on their way down give no room
        lease = store.acquire(namespace_id, keys)
        lease.blocks()
        store.release(lease)
        store.release(store.acquire(namespace_id, keys))
        told = store.explain(keys[0])
        assert told.tier is TierName.HOST
        assert names(told)[-1] == "hit"
        assert "promoted" in names(told)
        assert "also on disk" in told.reason


def test_hits_of_two_tiers_are_two_events(open_store):
    with open_store() as store:
        _, keys = saved(store, blocks=6)
        store.flush()
    with open_store() as store:
        namespace_id = store.register(Identity(weights="w"), LAYOUT).namespace_id
        lease = store.acquire(namespace_id, keys[:2])
        lease.blocks()
        store.release(lease)
        store.release(store.acquire(namespace_id, keys))
        hits = [event for event in store.tiered.trail.events() if event.what == "hit"]
        assert [(event.tier, list(event.keys)) for event in hits] == [
            (TierName.DISK, keys[:2]),
            (TierName.HOST, keys[:2]),
            (TierName.DISK, keys[2:]),
        ]


def test_a_reader_that_gives_up_leaves_a_note(open_store, monkeypatch):
    with open_store() as store:
        _, keys = saved(store)
        store.flush()
    with open_store() as store:
        namespace_id = store.register(Identity(weights="w"), LAYOUT).namespace_id
        with monkeypatch.context() as patch:
            patch.setattr(Future, "result", lambda *_: (_ for _ in ()).throw(TimeoutError))
            lease = store.acquire(namespace_id, keys)
            assert lease.blocks() == ()
        assert lease.miss is MissReason.TIMEOUT
        store.release(lease)
        (missed,) = [event for event in store.tiered.trail.events() if event.what == "missed"]
        assert (list(missed.keys), missed.miss, missed.namespace) == (keys, MissReason.TIMEOUT, namespace_id)


def test_damage_is_told_as_a_miss_with_its_blocks(open_store, tmp_path):
    with open_store() as store:
        _, keys = saved(store)
        store.flush()
    (segment,) = (tmp_path / "data" / "segments").iterdir()
    held = bytearray(segment.read_bytes())
    held[held.index(keys[2] * 256) + 5] ^= 0xFF
    segment.write_bytes(held)
    with open_store() as store:
        namespace_id = store.register(Identity(weights="w"), LAYOUT).namespace_id
        lease = store.acquire(namespace_id, keys)
        assert len(lease.blocks()) == 2
        store.release(lease)
        told = store.explain(keys[2])
        assert (told.found, told.miss) == (False, MissReason.CHECKSUM)
        assert "missed" in names(told)


def test_a_request_is_followed_by_its_name_through_load_and_save(open_store):
    with open_store() as store:
        namespace_id, keys = saved(store, blocks=3)
        whole = chain_keys(namespace_id, range(4 * 5), block_tokens=4)
        store.delete(namespace_id, keys[2:])
        named = Hints(request_id="chat-17")
        store.release(store.acquire(namespace_id, whole, hints=named))
        store.put(namespace_id, whole[2:], [memoryview(key * 256) for key in whole[2:]], parent=whole[1], hints=named)
        told = store.explain("chat-17")
        assert (told.key, told.request_id, told.found, told.tier) == (None, "chat-17", False, TierName.HOST)
        assert told.miss is MissReason.EVICTED
        assert told.reason.startswith("found 2 blocks (2 host) of 5; the first that missed")
        assert told.reason.endswith("a client deleted them")
        assert [what for what in names(told) if what in {"hit", "missed", "saved", "deleted"}] == [
            "saved",
            "deleted",
            "hit",
            "missed",
            "saved",
        ]
        store.release(store.acquire(namespace_id, whole, hints=Hints(request_id="chat-18")))
        told = store.explain("chat-18")
        assert (told.found, told.reason) == (True, "found all of its 5 blocks (5 host)")


def test_advice_is_told_with_what_was_said(open_store):
    with open_store() as store:
        namespace_id, keys = saved(store)
        store.advise(namespace_id, keys[:2], Hints(session_closed=True, expected_idle_s=1.5, priority=Priority.LOW))
        store.advise(namespace_id, keys[2:], Hints(pin_until_s=60.0))
        store.release(store.acquire(namespace_id, keys, hints=Hints(request_id="r")))
        advised = [event for event in store.explain(keys[0]).events if event.what == "advised"]
        assert [event.why for event in advised] == ["2 blocks: session closed, wanted again in 1.5 s, priority low"]
        pinned = [event for event in store.explain(keys[3]).events if event.what in {"pinned", "advised"}]
        assert [(event.what, event.why) for event in pinned] == [("pinned", "2 blocks: pinned until 60 s since 1970")]


def test_a_cleared_namespace_is_told(open_store):
    with open_store() as store:
        namespace_id, keys = saved(store)
        store.clear(namespace_id)
        told = store.explain(keys[1])
        assert (told.found, told.miss, names(told)[0], names(told)[-1]) == (False, MissReason.EVICTED, "saved", "deleted")
        assert "cleared their namespace" in told.reason


def test_a_store_without_a_trail_still_says_where_blocks_are(open_store):
    with open_store(trail_events=0) as store:
        namespace_id, keys = saved(store)
        store.release(store.acquire(namespace_id, keys))
        told = store.explain(keys[0][:6])
        assert (told.key, told.found, told.events) == (keys[0], True, ())
        assert store.tiered.trail.size() == (0, 0)


def test_the_store_tells_what_its_policies_do(open_store):
    with open_store() as store:
        saved(store)
        policies = store.stats().policies
        assert [(policy.tier, policy.name) for policy in policies] == [(TierName.HOST, "arc-age"), (TierName.DISK, "arc-age")]
        assert policies[0].t1_bytes == 4 * BLOCK_BYTES
        assert store.stats().write_budget_left_bytes is None


def test_one_attribute_is_all_that_a_silent_recorder_costs(open_store, monkeypatch):
    with open_store() as store:
        for verb in ("acquired", "reserved"):
            monkeypatch.setattr(store.tiered.recorder, verb, lambda *_, **__: pytest.fail("nobody records"))
        namespace_id, keys = saved(store)
        store.release(store.acquire(namespace_id, keys))
