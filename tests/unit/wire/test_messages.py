"""Values ⇄ messages: round trips, and what malformed input gets."""

import dataclasses

import pytest

from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.hints import NO_HINTS, Hints, Priority
from tierkv.model.keys import BlockKey
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, MissReason, PolicyStats, ReserveOutcome, StoreStats, TierName, TierStats
from tierkv.wire import messages
from tierkv.wire._generated import tierkv_pb2 as pb

KEYS = [BlockKey(bytes([number]) * 32) for number in range(3)]


def test_keys_are_one_field():
    packed = messages.pack_keys(KEYS)
    assert len(packed) == 96
    assert messages.unpack_keys(packed) == KEYS
    assert messages.unpack_keys(b"") == []


@pytest.mark.parametrize("keys", [[b"short"], [bytes(31), bytes(33)]])
def test_malformed_keys_are_not_sent(keys):
    with pytest.raises(InvalidRequestError):
        messages.pack_keys(keys)


@pytest.mark.parametrize("packed", [b"x", bytes(33), bytes(32 * 65_537)])
def test_malformed_lists_are_not_taken(packed):
    with pytest.raises(InvalidRequestError):
        messages.unpack_keys(packed)


def test_parents():
    assert messages.unpack_parent(b"") is None
    assert messages.unpack_parent(bytes(32)) == bytes(32)
    with pytest.raises(InvalidRequestError):
        messages.unpack_parent(bytes(5))


def test_enums_have_the_numbers_of_the_protocol():
    assert {tier.name: number for tier, number in zip(TierName, messages.tier_numbers(TierName), strict=True)} == {
        name.removeprefix("TIER_"): number for name, number in pb.Tier.items() if number
    }
    for durability in Durability:
        assert messages.durability_number(durability) == pb.Durability.Value(f"DURABILITY_{durability.name}")
        assert messages.durability_of(messages.durability_number(durability)) is durability
    for miss in MissReason:
        assert messages.miss_number(miss) == pb.MissReason.Value(f"MISS_REASON_{miss.name}")
        assert messages.miss_of(messages.miss_number(miss)) is miss
    for outcome in ReserveOutcome:
        assert messages.outcome_numbers([outcome]) == [pb.ReserveOutcome.Value(f"RESERVE_OUTCOME_{outcome.name}")]
    assert messages.tiers_of(messages.tier_numbers(TierName)) == tuple(TierName)
    assert messages.outcomes_of(messages.outcome_numbers(ReserveOutcome)) == tuple(ReserveOutcome)


def test_unspecified_and_unknown_numbers():
    assert messages.durability_of(0) is None
    assert messages.miss_of(0) is None
    assert messages.miss_of(99) is MissReason.UNAVAILABLE
    with pytest.raises(InvalidRequestError):
        messages.durability_of(9)
    for bad in (0, 9):
        with pytest.raises(DataError):
            messages.tiers_of([bad])
        with pytest.raises(DataError):
            messages.outcomes_of([bad])


def test_identity_layout_and_stats_come_back_equal():
    identity = Identity("w", config="c", kv_dtype="k", geometry="g", lora="l", tenant="t", salt="s")
    layout = Layout((2, 2, 4, 16, 64), "bfloat16", 16)
    stats = StoreStats("1", 2.0, (TierStats(TierName.HOST, 3, 2, 1),), {"host": 4}, {"evicted": 5}, 6, 7, 8, {"x": 9}, ("bad",))
    assert messages.identity_of(messages.identity_message(identity)) == identity
    assert messages.layout_of(messages.layout_message(layout)) == layout
    assert messages.stats_of(messages.stats_message(stats)) == stats
    policy = PolicyStats(TierName.DISK, "arc-age", 1, 2, 3, 4, 5, 6, 7.5, -1.25)
    for budget in (None, 0, 9):
        told = dataclasses.replace(stats, policies=(policy,), write_budget_left_bytes=budget)
        assert messages.stats_of(messages.stats_message(told)) == told


@pytest.mark.parametrize(
    "hints",
    [
        Hints("r", session_closed=True, expected_idle_s=2.5, priority=Priority.LOW, pin_until_s=4e9),
        Hints(priority=Priority.HIGH),
        Hints(request_id="é" * 32),
        Hints(expected_idle_s=0.0, session_closed=True),
    ],
)
def test_hints_come_back_equal(hints):
    assert messages.hints_of(pb.PutHeader(hints=messages.hints_message(hints)).hints) == hints


def test_hints_that_say_nothing_are_not_sent():
    assert messages.hints_message(NO_HINTS) is None
    assert messages.hints_message(Hints(pin_until_s=0.0)) is None
    assert not pb.AcquireRequest(hints=messages.hints_message(Hints())).HasField("hints")
    assert messages.hints_of(pb.AcquireRequest().hints) == NO_HINTS
    assert messages.hints_of(pb.Hints(priority=pb.PRIORITY_NORMAL)) == NO_HINTS


def test_priorities_have_the_numbers_of_the_protocol():
    for priority in Priority:
        assert messages.hints_of(pb.Hints(priority=f"PRIORITY_{priority.name}")).priority is priority


@pytest.mark.parametrize(
    "message",
    [
        pb.Hints(priority=9),  # type: ignore[arg-type]  # no number of the enum
        pb.Hints(request_id="r" * 65),
        pb.Hints(expected_idle_s=-1),
        pb.Hints(expected_idle_s=float("nan")),
        pb.Hints(pin_until_s=float("inf")),
    ],
)
def test_hints_that_cannot_be_are_refused(message):
    with pytest.raises(InvalidRequestError):
        messages.hints_of(message)
