"""Values ⇄ protobuf messages, for both sides. Pure; nothing that came over the wire is believed before it is checked here.

A list of keys is one bytes field of 32·n, so that a call of a thousand blocks makes no thousand objects of protobuf's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.hints import NO_HINTS, Hints, Priority
from tierkv.model.keys import KEY_BYTES, BlockKey, NamespaceId, namespace_id
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, MissReason, PolicyStats, ReserveOutcome, StoreStats, TierName, TierStats
from tierkv.pages import PageOutcome
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import KEYS_PER_CALL

V = TypeVar("V")
_TIERS: tuple[TierName, ...] = (TierName.DEVICE, TierName.HOST, TierName.DISK, TierName.REMOTE)
_DURABILITIES: tuple[Durability, ...] = (Durability.VOLATILE, Durability.INTERVAL, Durability.STRICT)
_MISSES: tuple[MissReason, ...] = tuple(MissReason)
_OUTCOMES: tuple[ReserveOutcome, ...] = tuple(ReserveOutcome)
_PAGE_OUTCOMES: tuple[PageOutcome, ...] = tuple(PageOutcome)
_PRIORITIES: tuple[Priority, ...] = (Priority.LOW, Priority.NORMAL, Priority.HIGH)
# Every enum of the protocol starts with "unspecified" = 0 and then lists the values in the order of the enums above.
_TIER_NUMBERS = {tier: number for number, tier in enumerate(_TIERS, 1)}
_DURABILITY_NUMBERS = {durability: number for number, durability in enumerate(_DURABILITIES, 1)}
_MISS_NUMBERS = {miss: number for number, miss in enumerate(_MISSES, 1)}
_OUTCOME_NUMBERS = {outcome: number for number, outcome in enumerate(_OUTCOMES, 1)}
_PAGE_OUTCOME_NUMBERS = {outcome: number for number, outcome in enumerate(_PAGE_OUTCOMES, 1)}
_PRIORITY_NUMBERS = {priority: number for number, priority in enumerate(_PRIORITIES, 1)}


def pack_keys(keys: Sequence[BlockKey]) -> bytes:
    """32·n bytes. Raises InvalidRequestError for a key that has not 32 bytes."""
    packed = b"".join(keys)
    if len(packed) != KEY_BYTES * len(keys) or any(len(key) != KEY_BYTES for key in keys):
        wrong = next(key for key in keys if len(key) != KEY_BYTES)
        raise InvalidRequestError("a block key has 32 bytes", length=len(wrong), key=wrong)
    return packed


def unpack_keys(packed: bytes) -> list[BlockKey]:
    """Raises InvalidRequestError for a length that is no multiple of 32, or more keys than a call may have."""
    if len(packed) % KEY_BYTES:
        raise InvalidRequestError("a list of keys has 32 bytes a key", length=len(packed))
    if len(packed) > KEY_BYTES * KEYS_PER_CALL:
        raise InvalidRequestError("too many keys in one call", keys=len(packed) // KEY_BYTES, limit=KEYS_PER_CALL)
    return [BlockKey(packed[start : start + KEY_BYTES]) for start in range(0, len(packed), KEY_BYTES)]


def unpack_namespace_id(value: bytes) -> NamespaceId:
    """Raises InvalidRequestError unless it has 32 bytes."""
    return namespace_id(value)


def unpack_parent(value: bytes) -> BlockKey | None:
    """None for an empty field. Raises InvalidRequestError unless it has 32 bytes."""
    if not value:
        return None
    if len(value) != KEY_BYTES:
        raise InvalidRequestError("a parent key has 32 bytes", length=len(value), parent=value)
    return BlockKey(value)


def tier_numbers(tiers: Iterable[TierName]) -> list[int]:
    return [_TIER_NUMBERS[tier] for tier in tiers]


def tiers_of(numbers: Iterable[int]) -> tuple[TierName, ...]:
    """Raises DataError for a tier that this version does not know."""
    return tuple(_known(_TIERS, number, "tier") for number in numbers)


def tier_number(tier: TierName | None) -> int:
    return 0 if tier is None else _TIER_NUMBERS[tier]


def tier_of(number: int) -> TierName | None:
    """None for "unspecified". Raises DataError for a tier that this version does not know."""
    return None if number == 0 else _known(_TIERS, number, "tier")


def miss_number(miss: MissReason | None) -> int:
    return 0 if miss is None else _MISS_NUMBERS[miss]


def miss_of(number: int) -> MissReason | None:
    """None where nothing is missing; a reason that this version does not know counts as `unavailable`."""
    if number == 0:
        return None
    return _MISSES[number - 1] if 1 <= number <= len(_MISSES) else MissReason.UNAVAILABLE


def outcome_numbers(outcomes: Iterable[ReserveOutcome]) -> list[int]:
    return [_OUTCOME_NUMBERS[outcome] for outcome in outcomes]


def outcomes_of(numbers: Iterable[int]) -> tuple[ReserveOutcome, ...]:
    """Raises DataError for an outcome that this version does not know."""
    return tuple(_known(_OUTCOMES, number, "outcome") for number in numbers)


def page_outcome_numbers(outcomes: Iterable[PageOutcome]) -> list[int]:
    return [_PAGE_OUTCOME_NUMBERS[outcome] for outcome in outcomes]


def page_outcomes_of(numbers: Iterable[int]) -> tuple[PageOutcome, ...]:
    """Raises DataError for an outcome that this version does not know."""
    return tuple(_known(_PAGE_OUTCOMES, number, "page outcome") for number in numbers)


def durability_number(durability: Durability | None) -> int:
    return 0 if durability is None else _DURABILITY_NUMBERS[Durability(durability)]


def durability_of(number: int) -> Durability | None:
    """None for "unspecified". Raises InvalidRequestError for one that does not exist."""
    if number == 0:
        return None
    if not 1 <= number <= len(_DURABILITIES):
        raise InvalidRequestError("unknown durability", number=number)
    return _DURABILITIES[number - 1]


def _known(values: tuple[V, ...], number: int, noun: str) -> V:
    if not 1 <= number <= len(values):
        raise DataError(f"the daemon answered with a {noun} that this version does not know", number=number)
    return values[number - 1]


def hints_message(hints: Hints) -> pb.Hints | None:
    """None where there is nothing to say, so that nothing is sent."""
    if hints is NO_HINTS or hints == NO_HINTS:
        return None
    return pb.Hints(
        request_id=hints.request_id,
        session_closed=hints.session_closed,
        expected_idle_s=hints.expected_idle_s or 0.0,
        priority=0 if hints.priority is Priority.NORMAL else _PRIORITY_NUMBERS[hints.priority],  # type: ignore[arg-type]
        pin_until_s=hints.pin_until_s or 0.0,
    )


def hints_of(message: pb.Hints) -> Hints:
    """An empty message says nothing. Raises InvalidRequestError for a value that cannot be."""
    number = message.priority
    if not 0 <= number <= len(_PRIORITIES):
        raise InvalidRequestError("unknown priority", number=number)
    return Hints(
        request_id=message.request_id,
        session_closed=message.session_closed,
        expected_idle_s=message.expected_idle_s,
        priority=_PRIORITIES[number - 1] if number else Priority.NORMAL,
        pin_until_s=message.pin_until_s,
    )


def layout_message(layout: Layout) -> pb.Layout:
    return pb.Layout(shape=layout.shape, dtype=layout.dtype, block_tokens=layout.block_tokens)


def layout_of(message: pb.Layout) -> Layout:
    """Raises InvalidRequestError for an impossible layout."""
    return Layout(tuple(message.shape), message.dtype, message.block_tokens)


def identity_message(identity: Identity) -> pb.Identity:
    return pb.Identity(
        weights=identity.weights,
        config=identity.config,
        kv_dtype=identity.kv_dtype,
        geometry=identity.geometry,
        lora=identity.lora,
        tenant=identity.tenant,
        salt=identity.salt,
    )


def identity_of(message: pb.Identity) -> Identity:
    """Raises InvalidRequestError where the weights are missing."""
    return Identity(
        weights=message.weights,
        config=message.config,
        kv_dtype=message.kv_dtype,
        geometry=message.geometry,
        lora=message.lora,
        tenant=message.tenant,
        salt=message.salt,
    )


def stats_message(stats: StoreStats) -> pb.StatsReply:
    return pb.StatsReply(
        version=stats.version,
        uptime_s=stats.uptime_s,
        tiers=[
            pb.TierStats(name=tier.name, capacity_bytes=tier.capacity_bytes, used_bytes=tier.used_bytes, blocks=tier.blocks)
            for tier in stats.tiers
        ],
        hits=stats.hits,
        misses=stats.misses,
        sessions=stats.sessions,
        leases=stats.leases,
        reservations=stats.reservations,
        counters=stats.counters,
        degraded=stats.degraded,
        policies=[
            pb.PolicyStats(
                tier=policy.tier,
                name=policy.name,
                t1_bytes=policy.t1_bytes,
                t2_bytes=policy.t2_bytes,
                waiting_bytes=policy.waiting_bytes,
                b1_keys=policy.b1_keys,
                b2_keys=policy.b2_keys,
                ghost_hits_b1=policy.ghost_hits_b1,
                ghost_hits_b2=policy.ghost_hits_b2,
                p=policy.p,
                w=policy.w,
            )
            for policy in stats.policies
        ],
        write_budget_left_bytes=stats.write_budget_left_bytes,
    )


def stats_of(message: pb.StatsReply) -> StoreStats:
    return StoreStats(
        version=message.version,
        uptime_s=message.uptime_s,
        tiers=tuple(TierStats(TierName(tier.name), tier.capacity_bytes, tier.used_bytes, tier.blocks) for tier in message.tiers),
        hits=dict(message.hits),
        misses=dict(message.misses),
        sessions=message.sessions,
        leases=message.leases,
        reservations=message.reservations,
        counters=dict(message.counters),
        degraded=tuple(message.degraded),
        policies=tuple(_policy_of(policy) for policy in message.policies),
        write_budget_left_bytes=message.write_budget_left_bytes if message.HasField("write_budget_left_bytes") else None,
    )


def _policy_of(message: pb.PolicyStats) -> PolicyStats:
    return PolicyStats(
        tier=TierName(message.tier),
        name=message.name,
        t1_bytes=message.t1_bytes,
        t2_bytes=message.t2_bytes,
        waiting_bytes=message.waiting_bytes,
        b1_keys=message.b1_keys,
        b2_keys=message.b2_keys,
        ghost_hits_b1=message.ghost_hits_b1,
        ghost_hits_b2=message.ghost_hits_b2,
        p=message.p,
        w=message.w,
    )
