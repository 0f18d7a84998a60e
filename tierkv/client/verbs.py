"""Requests out of values and values out of replies. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tierkv.errors import DataError, InvalidRequestError
from tierkv.interface import Grant
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, PrefixMatch, ReserveOutcome
from tierkv.wire import messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import KEYS_PER_CALL
from tierkv.wire.messages import durability_number, hints_message, pack_keys


@dataclass(frozen=True, slots=True)
class Registration:
    """What was registered, kept so that a fresh daemon can be told again."""

    identity: Identity
    layout: Layout
    durability: Durability | None


@dataclass(frozen=True, slots=True)
class PutCall:
    """What is put, and how."""

    namespace_id: NamespaceId
    keys: Sequence[BlockKey]
    sources: Sequence[memoryview]
    parent: BlockKey | None
    durability: Durability | None
    hints: Hints


def register_request(known: Registration) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        identity=messages.identity_message(known.identity),
        layout=messages.layout_message(known.layout),
        durability=durability_number(known.durability),  # type: ignore[arg-type]  # a number of the enum
    )


def namespace_of(known: Registration, reply: pb.RegisterReply) -> Namespace:
    """Raises DataError when the daemon hashes the identity differently: keys would never meet."""
    namespace_id = known.identity.fingerprint(known.layout)
    if reply.namespace_id != namespace_id:
        raise DataError("daemon and client disagree on the namespace id; are their versions compatible?", daemon=reply.namespace_id)
    durability = messages.durability_of(reply.durability)
    if durability is None:
        raise DataError("the daemon named no durability")
    return Namespace(namespace_id, known.identity, known.layout, durability)


def check_keys(keys: Sequence[BlockKey]) -> None:
    """Raises InvalidRequestError before a call that the daemon would refuse."""
    if len(keys) > KEYS_PER_CALL:
        raise InvalidRequestError("too many keys in one call", keys=len(keys), limit=KEYS_PER_CALL)


def lookup_request(namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> pb.LookupRequest:
    check_keys(keys)
    return pb.LookupRequest(namespace_id=namespace_id, keys=pack_keys(keys))


def match_of(reply: pb.LookupReply) -> PrefixMatch:
    return PrefixMatch(messages.tiers_of(reply.tiers), messages.miss_of(reply.miss))


def reserve_request(
    namespace_id: NamespaceId, keys: Sequence[BlockKey], parent: BlockKey | None, hints: Hints
) -> pb.ReserveRequest:
    check_keys(keys)
    return pb.ReserveRequest(namespace_id=namespace_id, keys=pack_keys(keys), parent=parent or b"", hints=hints_message(hints))


def outcomes_for(keys: Sequence[BlockKey], reply: pb.ReserveReply) -> tuple[ReserveOutcome, ...]:
    """One outcome per key. Raises DataError where outcomes and offsets do not add up."""
    outcomes = messages.outcomes_of(reply.outcomes)
    if len(outcomes) != len(keys) or len(reply.offsets) != outcomes.count(ReserveOutcome.GRANTED):
        raise DataError(
            "the daemon's answer does not fit the keys", keys=len(keys), outcomes=len(outcomes), offsets=len(reply.offsets)
        )
    return outcomes


def grants_of(keys: Sequence[BlockKey], reply: pb.ReserveReply, place: Callable[[int], memoryview]) -> tuple[Grant, ...]:
    """One grant per key; `place` turns an arena offset into the block's buffer. Raises DataError where offsets do not add up."""
    outcomes = outcomes_for(keys, reply)
    offsets = iter(reply.offsets)
    return tuple(
        Grant(key, outcome, place(next(offsets)) if outcome is ReserveOutcome.GRANTED else None)
        for key, outcome in zip(keys, outcomes, strict=True)
    )


def commit_request(reservation_id: int, keys: Sequence[BlockKey], durability: Durability | None) -> pb.CommitRequest:
    number = durability_number(durability)
    return pb.CommitRequest(reservation_id=reservation_id, keys=pack_keys(keys), durability=number)  # type: ignore[arg-type]


def abort_request(reservation_id: int, keys: Sequence[BlockKey]) -> pb.AbortRequest:
    return pb.AbortRequest(reservation_id=reservation_id, keys=pack_keys(keys))


def acquire_request(namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints) -> pb.AcquireRequest:
    check_keys(keys)
    return pb.AcquireRequest(namespace_id=namespace_id, keys=pack_keys(keys), hints=hints_message(hints))


def advise_request(namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints) -> pb.AdviseRequest:
    check_keys(keys)
    return pb.AdviseRequest(namespace_id=namespace_id, keys=pack_keys(keys), hints=hints_message(hints))


def prefetch_request(namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> pb.PrefetchRequest:
    check_keys(keys)
    return pb.PrefetchRequest(namespace_id=namespace_id, keys=pack_keys(keys))


def delete_request(namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> pb.DeleteRequest:
    check_keys(keys)
    return pb.DeleteRequest(namespace_id=namespace_id, keys=pack_keys(keys))


def get_request(namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints) -> pb.GetRequest:
    check_keys(keys)
    return pb.GetRequest(namespace_id=namespace_id, keys=pack_keys(keys), hints=hints_message(hints))


class ClientReservation:
    """What was granted and what is still open of it. epoch — which attachment it belongs to; hints — for a commit that streams."""

    def __init__(
        self,
        namespace_id: NamespaceId,
        grants: tuple[Grant, ...],
        *,
        reservation_id: int,
        epoch: int,
        parent: BlockKey | None,
        hints: Hints = NO_HINTS,
    ) -> None:
        self.namespace_id = namespace_id
        self.grants = grants
        self.reservation_id = reservation_id
        self.epoch = epoch
        self.parent = parent
        self.hints = hints
        self.open_keys = {grant.key: None for grant in grants if grant.outcome is ReserveOutcome.GRANTED}

    def choose(self, keys: Sequence[BlockKey] | None) -> list[BlockKey]:
        """Keys to commit. Raises InvalidRequestError for one that is not open, before anything is sent."""
        chosen = list(self.open_keys) if keys is None else list(keys)
        for key in chosen:
            if key not in self.open_keys:
                raise InvalidRequestError("this key was not granted here, or is committed or aborted already", key=key)
        if len(set(chosen)) != len(chosen):
            raise InvalidRequestError("a key stands twice in one commit", keys=len(chosen))
        return chosen

    def close(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self.open_keys.pop(key, None)

    def parent_of(self, key: BlockKey) -> BlockKey | None:
        """The key before `key` in the call that reserved it."""
        previous = self.parent
        for grant in self.grants:
            if grant.key == key:
                return previous
            previous = grant.key
        raise InvalidRequestError("this key is not of this reservation", key=key)


def own_reservation(reservation: object) -> ClientReservation:
    """Raises InvalidRequestError for a reservation of another store."""
    if not isinstance(reservation, ClientReservation):
        raise InvalidRequestError("this reservation was not given by this store", reservation=type(reservation).__name__)
    return reservation
