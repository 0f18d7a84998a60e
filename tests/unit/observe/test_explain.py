"""Explanations from a real index, trail and table of namespaces, filled by hand."""

import threading

import pytest

from tierkv.errors import InvalidRequestError
from tierkv.index.block_index import BlockIndex
from tierkv.index.entry import BlockEntry
from tierkv.index.trail import Trail, What
from tierkv.model.keys import BlockKey, NamespaceId, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.lifecycle import BlockState
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, MissReason, TierName
from tierkv.namespaces import NamespaceTable
from tierkv.observe.explain import EVENTS_SHOWN, explain_key, explain_request
from tierkv.observe.recall import Recall
from tierkv.testing.clock import ManualClock

LAYOUT = Layout((64,), "uint8", 4)
TOKENS = list(range(12))
NAMELESS = NamespaceId(bytes(32))


class World:
    """What an explanation draws on, and short ways to change it."""

    def __init__(self):
        self.clock = ManualClock()
        lock = threading.RLock()
        self.trail = Trail(events=1_000, keys=10_000, clock=self.clock, lock=lock)
        self.index = BlockIndex(history_limit=100)
        self.table = NamespaceTable(limit=8, persist=None)
        self.recall = Recall(trail=self.trail, index=self.index, namespaces=self.table, lock=lock)

    def note(self, *arguments, **named):
        self.clock.advance(1)
        self.trail.note(*arguments, **named)

    def register(self, layout=LAYOUT, **identity):
        return self.table.register(Identity(**{"weights": "w", **identity}), layout, Durability.VOLATILE)

    def hold(self, keys, namespace_id=NAMELESS, *, state=BlockState.READY, is_on_disk=False):
        for key in keys:
            self.index.add(BlockEntry(key, namespace_id, None, 64, state=state, is_on_disk=is_on_disk))

    def lose(self, key, reason):
        entry = self.index.get(key)
        assert entry is not None
        self.index.remove(entry, reason)


@pytest.fixture
def world():
    return World()


def key(number):
    return BlockKey(number.to_bytes(4, "big") + bytes(28))


A, B, C, D = (key(number) for number in (0xA0000001, 0xA0000002, 0xC0000003, 0xD0000004))


# -- a block that is held


def test_a_block_in_the_arena_tells_where_since_when_and_by_what(world):
    world.hold([A])
    world.note(What.SAVED, [A, B], tier=TierName.HOST)
    world.note(What.HIT, [A], tier=TierName.HOST, request="r")
    told = explain_key(world.recall, A)
    assert (told.key, told.found, told.tier, told.miss) == (A, True, TierName.HOST, None)
    assert told.reason == "held in the host tier since 1970-01-01T00:00:01Z (saved)"
    assert [(event.at_s, event.what, event.why) for event in told.events] == [
        (1.0, "saved", "2 blocks, host"),
        (2.0, "hit", "1 block, host"),
    ]


def test_a_block_that_sank_and_rose_is_told_by_its_last_move(world):
    world.hold([A], is_on_disk=True)
    world.note(What.SAVED, [A])
    world.note(What.DEMOTED, [A])
    world.note(What.PROMOTED, [A], "a request found it")
    told = explain_key(world.recall, A)
    assert told.reason == "held in the host tier since 1970-01-01T00:00:03Z (promoted), also on disk"


def test_a_block_on_disk_only_and_one_without_a_trail(world):
    world.hold([A], state=BlockState.FREE, is_on_disk=True)
    told = explain_key(world.recall, A)
    assert (told.found, told.tier) == (True, TierName.DISK)
    assert told.reason == "held in the disk tier since before the trail begins"


def test_a_block_that_left_the_arena_is_on_disk_since_then(world):
    world.hold([A], state=BlockState.FREE, is_on_disk=True)
    world.note(What.SAVED, [A])
    world.note(What.EVICTED, [A], "rule; the disk has a copy", tier=TierName.HOST)
    told = explain_key(world.recall, A)
    assert (told.found, told.tier) == (True, TierName.DISK)
    assert told.reason == (
        "held in the disk tier since 1970-01-01T00:00:02Z (evicted from the host tier: rule; the disk has a copy)"
    )
    world.note(What.PROMOTED, [A], "read from disk")
    assert explain_key(world.recall, A).reason == "held in the disk tier since 1970-01-01T00:00:03Z (promoted)"


def test_a_block_that_is_being_written_is_not_found_yet(world):
    world.hold([A], state=BlockState.RESERVED)
    told = explain_key(world.recall, A)
    assert (told.found, told.tier) == (False, None)
    assert "commit" in told.reason


def test_of_a_block_that_everybody_uses_the_latest_events_are_told(world):
    world.hold([A])
    for _ in range(EVENTS_SHOWN + 10):
        world.note(What.HIT, [A])
    told = explain_key(world.recall, A)
    assert [told.events[0].at_s, told.events[-1].at_s, len(told.events)] == [11.0, EVENTS_SHOWN + 10, EVENTS_SHOWN]


# -- a block that is not held


def test_a_key_of_which_nothing_is_remembered(world):
    told = explain_key(world.recall, A)
    assert (told.key, told.found, told.tier, told.miss, told.events) == (A, False, None, MissReason.NEVER_SEEN, ())
    assert told.reason == (
        "nothing is remembered of this key; it was never seen, or longer ago than the trail reaches (it is empty)"
    )
    world.note(What.SAVED, [B])
    assert "(oldest event at 1970-01-01T00:00:01Z)" in explain_key(world.recall, A).reason


@pytest.mark.parametrize(
    ("what", "named", "miss", "sentence"),
    [
        (What.EVICTED, {"tier": TierName.DISK}, MissReason.EVICTED, "evicted from the disk tier at 1970-01-01T00:00:02Z: rule"),
        (What.DELETED, {}, MissReason.EVICTED, "deleted at 1970-01-01T00:00:02Z: rule"),
        (What.LOST, {"tier": TierName.HOST}, MissReason.CHECKSUM, "lost from the host tier at 1970-01-01T00:00:02Z: rule"),
        (What.REFUSED, {}, MissReason.CAPACITY, "refused at 1970-01-01T00:00:02Z: rule"),
        (What.PASSED_BY, {}, MissReason.CAPACITY, "passed by at 1970-01-01T00:00:02Z: rule"),
        (What.EXPIRED, {"miss": MissReason.TIMEOUT}, MissReason.TIMEOUT, "expired at 1970-01-01T00:00:02Z: rule"),
    ],
)
def test_what_took_a_block_is_named_with_time_tier_and_rule(world, what, named, miss, sentence):
    world.note(What.SAVED, [A])
    world.note(what, [A], "rule", **named)
    world.note(What.MISSED, [A], miss=MissReason.EVICTED)
    told = explain_key(world.recall, A)
    assert (told.found, told.miss, told.reason) == (False, miss, sentence)


def test_what_became_of_an_earlier_life_does_not_count(world):
    world.note(What.SAVED, [A])
    world.note(What.LOST, [A])
    world.note(What.SAVED, [A])
    world.hold([A])
    world.lose(A, MissReason.EVICTED)
    told = explain_key(world.recall, A)
    assert told.miss is MissReason.EVICTED
    assert told.reason.startswith("it was here at 1970-01-01T00:00:03Z (saved), but reached no other tier")


def test_a_block_gone_since_before_the_trail(world):
    world.hold([A])
    world.lose(A, MissReason.EVICTED)
    told = explain_key(world.recall, A)
    assert (told.miss, told.reason) == (MissReason.EVICTED, "evicted; the trail does not reach back to when and why")


def test_a_block_that_was_passed_by_and_therefore_refused_is_told_the_rule(world):
    world.note(What.PASSED_BY, [A], "its share", tier=TierName.HOST)
    world.note(What.REFUSED, [A], "no room")
    told = explain_key(world.recall, A)
    assert (told.miss, told.reason) == (MissReason.CAPACITY, "passed by at 1970-01-01T00:00:01Z: its share")
    world.note(What.REFUSED, [A], "no room")
    assert explain_key(world.recall, A).reason == "refused at 1970-01-01T00:00:03Z: no room"


def test_an_expired_lease_takes_no_block_away(world):
    world.note(What.SAVED, [A])
    world.note(What.EVICTED, [A], "rule", tier=TierName.HOST)
    world.note(What.EXPIRED, [A], "a lease")
    assert explain_key(world.recall, A).reason.startswith("evicted from the host tier")


def test_a_damaged_block_is_told_by_the_index_where_the_trail_is_silent(world):
    world.hold([A])
    world.lose(A, MissReason.CHECKSUM)
    told = explain_key(world.recall, A)
    assert told.miss is MissReason.CHECKSUM
    assert "checksum" in told.reason


def test_a_block_that_was_only_asked_for(world):
    world.note(What.MISSED, [A], miss=MissReason.NEVER_SEEN)
    world.note(What.MISSED, [A], miss=MissReason.NEVER_SEEN)
    told = explain_key(world.recall, A)
    assert (told.miss, len(told.events)) == (MissReason.NEVER_SEEN, 2)
    assert "2 calls, first at 1970-01-01T00:00:01Z" in told.reason


# -- abbreviations


def test_a_unique_abbreviation_finds_held_gone_and_noted_blocks(world):
    world.hold([A, C])
    world.lose(C, MissReason.EVICTED)
    world.note(What.MISSED, [D], miss=MissReason.NEVER_SEEN)
    assert [explain_key(world.recall, wanted[:4]).key for wanted in (A, C, D)] == [A, C, D]
    unknown = explain_key(world.recall, b"\xff\xff\xff\xff")
    assert (unknown.key, unknown.found, unknown.miss) == (b"\xff\xff\xff\xff", False, MissReason.NEVER_SEEN)


def test_an_ambiguous_abbreviation_lists_the_candidates(world):
    twins = [BlockKey(b"\xa0\0\0\1" + bytes([number]) * 28) for number in (1, 2)]
    world.hold(twins[:1])
    world.note(What.EVICTED, twins[1:])
    with pytest.raises(InvalidRequestError, match="a000000101010101, a000000102020202"):
        explain_key(world.recall, b"\xa0\0\0\1")
    assert explain_key(world.recall, twins[0][:5]).key == twins[0]


@pytest.mark.parametrize("prefix", [b"", b"abc", bytes(33)])
def test_what_cannot_be_a_key_is_refused(world, prefix):
    with pytest.raises(InvalidRequestError, match="at least 4"):
        explain_key(world.recall, prefix)


# -- requests


def test_a_request_that_found_everything(world):
    world.note(What.HIT, [A], tier=TierName.HOST, request="r")
    world.note(What.HIT, [B, C], tier=TierName.DISK, request="r")
    told = explain_request(world.recall, "r")
    assert (told.key, told.request_id, told.found, told.tier, told.miss) == (None, "r", True, TierName.DISK, None)
    assert told.reason == "found all of its 3 blocks (1 host, 2 disk)"


def test_a_request_is_told_its_first_miss_by_what_came_before(world):
    world.note(What.SAVED, [A, B, C])
    world.note(What.EVICTED, [B, C], "oldest of T1", tier=TierName.HOST)
    world.note(What.HIT, [A], tier=TierName.HOST, request="r")
    world.note(What.MISSED, [B, C], request="r", miss=MissReason.EVICTED)
    world.note(What.SAVED, [B, C], request="r")  # by the request itself: no reason for its miss
    world.hold([A, B, C])
    told = explain_request(world.recall, "r")
    assert (told.found, told.tier, told.miss) == (False, TierName.HOST, MissReason.EVICTED)
    assert told.reason == (
        "found 1 block (1 host) of 3; the first that missed, block a000000200000000…, was not held: "
        "evicted from the host tier at 1970-01-01T00:00:02Z: oldest of T1"
    )
    assert [(event.at_s, event.what) for event in told.events] == [
        (1.0, "saved"),
        (2.0, "evicted"),
        (3.0, "hit"),
        (4.0, "missed"),
        (5.0, "saved"),
    ]


def test_what_a_request_finds_or_misses_later_does_not_change_its_first_miss(world):
    world.note(What.HIT, [A], tier=TierName.HOST, request="r")
    world.note(What.MISSED, [B, C], request="r", miss=MissReason.NEVER_SEEN)
    world.note(What.HIT, [A, B, D], tier=TierName.DISK, request="r")
    world.note(What.MISSED, [C], request="r", miss=MissReason.EVICTED)
    told = explain_request(world.recall, "r")
    assert (told.tier, told.miss) == (TierName.HOST, MissReason.NEVER_SEEN)
    assert told.reason.startswith("found 1 block (1 host) of 3; the first that missed, block a000000200000000…")


def test_of_an_id_that_several_sessions_have_used_the_latest_is_told(world):
    for session, found in ((b"one", 1), (b"two", 2)):
        world.note(What.HIT, [A, B, C][:found], tier=TierName.HOST, request="r", session=session)
        world.note(What.MISSED, [A, B, C][found:], "why", request="r", miss=MissReason.NEVER_SEEN, session=session)
    explanation = explain_request(world.recall, "r")
    assert explanation.reason.startswith("found 2 blocks (2 host) of 3; the first that missed")
    assert explanation.reason.endswith("(2 sessions have used this id: this is the latest)")
    assert len(explanation.events) == 3  # its own two, and what the other session noted of the block


def test_blocks_whose_reading_failed_are_no_hits(world):
    world.note(What.HIT, [A, B], tier=TierName.DISK, request="r")
    world.note(What.LOST, [B], "damaged frame", tier=TierName.DISK)
    world.note(What.MISSED, [B], request="r", miss=MissReason.CHECKSUM)
    told = explain_request(world.recall, "r")
    assert (told.found, told.miss) == (False, MissReason.CHECKSUM)
    assert told.reason.startswith("found 1 block (1 disk) of 2;")
    assert told.reason.endswith("lost from the disk tier at 1970-01-01T00:00:02Z: damaged frame")


@pytest.mark.parametrize("miss", [MissReason.TIMEOUT, MissReason.CAPACITY])
def test_a_miss_of_a_held_block_is_told_by_the_call(world, miss):
    world.hold([A])
    world.note(What.SAVED, [A])
    world.note(What.MISSED, [A], "too slow or too full", request="r", miss=miss)
    told = explain_request(world.recall, "r")
    assert told.miss is miss
    assert told.reason.endswith("too slow or too full")


def test_an_unknown_request_and_one_that_only_saved(world):
    told = explain_request(world.recall, "r")
    assert (told.found, told.miss) == (False, MissReason.NEVER_SEEN)
    assert "nothing is remembered of this request" in told.reason
    world.note(What.SAVED, [A, B], request="r")
    told = explain_request(world.recall, "r")
    assert (told.found, told.miss) == (False, None)
    assert told.reason == "asked for no block; saved 2 blocks"


@pytest.mark.parametrize("request_id", ["", "x" * 65, "é" * 33, "\udcff"])
def test_what_cannot_be_a_request_id_is_refused(world, request_id):
    with pytest.raises(InvalidRequestError, match="request id"):
        explain_request(world.recall, request_id)


# -- namespaces


def first_key(namespace):
    return chain_keys(namespace.namespace_id, TOKENS, block_tokens=namespace.layout.block_tokens)[0]


def test_an_empty_namespace_beside_a_full_one_of_equal_layout_is_the_reason(world):
    other = world.register(tenant="them", salt="their secret")
    farther = world.register(tenant="them", lora="l", weights="v")
    own = world.register(tenant="us", salt="our secret")
    world.hold([first_key(other), C], other.namespace_id)
    world.hold([D], farther.namespace_id)
    world.note(What.MISSED, [first_key(own)], request="r", namespace=own.namespace_id, miss=MissReason.NEVER_SEEN)
    told = explain_request(world.recall, "r")
    assert told.miss is MissReason.NAMESPACE
    assert "2 blocks of another one of the same layout are held" in told.reason
    assert "tenant ('us' here, 'them' there), salt (values are not shown)" in told.reason
    assert "secret" not in told.reason
    assert "lora" not in told.reason


def test_a_namespace_that_had_blocks_is_not_the_reason(world):
    other, own = world.register(tenant="them"), world.register(tenant="us")
    world.hold([first_key(other)], other.namespace_id)
    world.note(What.SAVED, [D], namespace=own.namespace_id)
    world.note(What.MISSED, [first_key(own)], request="r", namespace=own.namespace_id, miss=MissReason.NEVER_SEEN)
    assert explain_request(world.recall, "r").miss is MissReason.NEVER_SEEN


def test_what_the_request_saved_afterwards_hides_no_namespace(world):
    other, own = world.register(tenant="them"), world.register(tenant="us")
    world.hold([first_key(other)], other.namespace_id)
    world.note(What.MISSED, [first_key(own)], request="r", namespace=own.namespace_id, miss=MissReason.NEVER_SEEN)
    world.note(What.SAVED, [first_key(own)], request="r", namespace=own.namespace_id)
    world.hold([first_key(own)], own.namespace_id)
    assert explain_request(world.recall, "r").miss is MissReason.NAMESPACE


def test_blocks_from_before_the_trail_hide_a_namespace(world):
    other, own = world.register(tenant="them"), world.register(tenant="us")
    world.hold([first_key(other)], other.namespace_id)
    world.hold([D], own.namespace_id)
    world.note(What.MISSED, [first_key(own)], request="r", namespace=own.namespace_id, miss=MissReason.NEVER_SEEN)
    assert explain_request(world.recall, "r").miss is MissReason.NEVER_SEEN


def test_another_layout_is_no_suspect_without_the_tokens(world):
    other = world.register(layout=Layout((32,), "uint8", 2), tenant="them")
    own = world.register(tenant="us")
    world.hold([C], other.namespace_id)
    world.note(What.MISSED, [first_key(own)], request="r", namespace=own.namespace_id, miss=MissReason.NEVER_SEEN)
    assert explain_request(world.recall, "r").miss is MissReason.NEVER_SEEN


def test_with_the_tokens_it_is_certain_which_namespace_holds_them(world):
    suspect, holder, own = world.register(tenant="suspect"), world.register(kv_dtype="fp8"), world.register(kv_dtype="bf16")
    world.hold([C], suspect.namespace_id)
    world.hold([first_key(holder)], holder.namespace_id)
    world.note(What.MISSED, [first_key(own)], request="r", namespace=own.namespace_id, miss=MissReason.NEVER_SEEN)
    for told in (explain_request(world.recall, "r", TOKENS), explain_key(world.recall, first_key(own), TOKENS)):
        assert told.miss is MissReason.NAMESPACE
        assert "kv_dtype ('bf16' here, 'fp8' there)" in told.reason
        assert first_key(holder).hex()[:16] in told.reason
        assert "suspect" not in told.reason


def test_with_the_tokens_a_different_layout_is_found_too(world):
    other = world.register(layout=Layout((32,), "uint8", 2))
    own = world.register()
    world.hold([first_key(other)], other.namespace_id)
    told = explain_key(world.recall, first_key(own)[:8], TOKENS)
    assert (told.key, told.miss) == (first_key(own), MissReason.NAMESPACE)
    assert "layout (64 uint8 of 4 tokens here, 32 uint8 of 2 tokens there)" in told.reason


def test_tokens_that_nobody_holds_leave_the_reason_to_the_trail(world):
    world.register(tenant="them")
    own = world.register(tenant="us")
    world.note(What.EVICTED, [first_key(own)], "rule", tier=TierName.HOST)
    assert explain_key(world.recall, first_key(own), TOKENS).miss is MissReason.EVICTED
    with pytest.raises(InvalidRequestError, match="token ids"):
        explain_key(world.recall, first_key(own), [-1] * 4)
