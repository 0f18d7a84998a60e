"""What a policy went through: one value for each call that changes it, and their bytes (`docs/format.md`, "Policy state", log).

Encoding and decoding both lead a lineage along; they agree as long as both started from the same one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tierkv.errors import DataError
from tierkv.model.keys import KEY_BYTES, BlockKey
from tierkv.policies.base import Admission, Cause, Shortfall
from tierkv.policy_state.lineage import Lineage

_ACCESS, _ADMIT, _LEAVE, _REMOVE = 1, 2, 3, 4
_CAUSES = (Cause.SAVE, Cause.LOAD, Cause.PREFETCH)
_SHORTFALLS = (None, Shortfall.CAP, Shortfall.PINNED)
_U32 = struct.Struct("<I")
_ADMISSION = struct.Struct("<BBI")


@dataclass(frozen=True, slots=True)
class Accessed:
    keys: Sequence[BlockKey]
    num_times: int = 1


@dataclass(frozen=True, slots=True)
class Admitted:
    keys: Sequence[BlockKey]
    weights: Sequence[int]
    outcome: Admission[BlockKey]
    cause: Cause
    head: Sequence[BlockKey]


@dataclass(frozen=True, slots=True)
class LetGo:
    keys: Sequence[BlockKey]


@dataclass(frozen=True, slots=True)
class Removed:
    keys: Sequence[BlockKey]


Event: TypeAlias = Accessed | Admitted | LetGo | Removed


def encode(event: Event, lineage: Lineage) -> bytes:
    """The bytes of one event; `lineage` moves on past it. Cost: short for an access, O(n) in keys that enter or leave."""
    match event:
        case Accessed(keys, num_times):
            return bytes([_ACCESS]) + _U32.pack(num_times) + _encode_list(keys, lineage)
        case Admitted():
            return bytes([_ADMIT]) + _encode_admission(event, lineage)
        case LetGo(keys):
            lineage.forget(keys)
            return bytes([_LEAVE]) + _encode_keys(keys)
        case Removed(keys):
            lineage.forget(keys)
            return bytes([_REMOVE]) + _encode_keys(keys)


def _encode_admission(event: Admitted, lineage: Lineage) -> bytes:
    outcome = event.outcome
    fixed = _ADMISSION.pack(_CAUSES.index(event.cause), _SHORTFALLS.index(outcome.shortfall), outcome.num_admitted) + _encode_list(
        event.head, lineage
    )
    _follow_admission(event, lineage)
    return fixed + _encode_keys(event.keys) + _encode_weights(event.weights) + _encode_keys(outcome.victims)


def _follow_admission(event: Admitted, lineage: Lineage) -> None:
    lineage.forget(event.outcome.victims)
    lineage.admit(event.keys[: event.outcome.num_admitted], event.head[-1] if event.head else None)


def _encode_keys(keys: Sequence[BlockKey]) -> bytes:
    return _U32.pack(len(keys)) + b"".join(keys)


def _encode_weights(weights: Sequence[int]) -> bytes:
    if len(set(weights)) == 1:
        return struct.pack("<BQ", 0, weights[0])
    return b"\1" + np.array(weights, "<u8").tobytes()


def _encode_list(keys: Sequence[BlockKey], lineage: Lineage) -> bytes:
    num_keys = _U32.pack(len(keys))
    if not keys:
        return num_keys
    if lineage.is_chain(keys):
        return num_keys + b"\0" + keys[-1]
    lineage.admit(keys, None)
    return num_keys + b"\1" + b"".join(keys)


def decode(payload: bytes, lineage: Lineage) -> Iterator[Event]:
    """The events of a record, each before `lineage` has moved past the next one. Raises DataError where they make no sense."""
    reader = _Reader(payload, lineage)
    while not reader.is_at_end:
        kind = reader.number("<B")
        match kind:
            case 1:
                num_times = reader.number("<I")
                yield Accessed(reader.chain_or_list(), num_times)
            case 2:
                yield reader.admission()
            case 3 | 4:
                keys = reader.keys()
                lineage.forget(keys)
                yield LetGo(keys) if kind == _LEAVE else Removed(keys)
            case _:
                raise DataError("an event of no known kind", kind=kind)


class _Reader:
    """Reads a payload from front to back. Everything raises DataError where the payload ends too early."""

    def __init__(self, payload: bytes, lineage: Lineage) -> None:
        self._payload = payload
        self._lineage = lineage
        self._offset = 0

    @property
    def is_at_end(self) -> bool:
        return self._offset == len(self._payload)

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(value)

    def keys(self) -> list[BlockKey]:
        return self._keys(self.number("<I"))

    def chain_or_list(self) -> list[BlockKey]:
        num_keys = self.number("<I")
        if not num_keys:
            return []
        if self.number("<B") == 0:
            return self._lineage.chain(BlockKey(self._take(KEY_BYTES)), num_keys)
        keys = self._keys(num_keys)
        self._lineage.admit(keys, None)
        return keys

    def admission(self) -> Admitted:
        cause, shortfall, num_admitted = _ADMISSION.unpack(self._take(_ADMISSION.size))
        if cause >= len(_CAUSES) or shortfall >= len(_SHORTFALLS):
            raise DataError("an admission of no known kind", cause=cause, shortfall=shortfall)
        head = self.chain_or_list()
        keys = self.keys()
        if num_admitted > len(keys):
            raise DataError("more entries were admitted than asked for", num_keys=len(keys), num_admitted=num_admitted)
        weights = self._weights(len(keys))
        outcome = Admission(num_admitted, tuple(self.keys()), _SHORTFALLS[shortfall])
        event = Admitted(keys, weights, outcome, _CAUSES[cause], head)
        _follow_admission(event, self._lineage)
        return event

    def _weights(self, num_keys: int) -> Sequence[int]:
        if self.number("<B") == 0:
            return [self.number("<Q")] * num_keys
        weights: list[int] = np.frombuffer(self._take(8 * num_keys), "<u8").tolist()
        return weights

    def _keys(self, num_keys: int) -> list[BlockKey]:
        joined = self._take(KEY_BYTES * num_keys)
        return [BlockKey(joined[start : start + KEY_BYTES]) for start in range(0, len(joined), KEY_BYTES)]

    def _take(self, size: int) -> bytes:
        part = self._payload[self._offset : self._offset + size]
        if len(part) < size:
            raise DataError("an event ends too early", missing=size - len(part))
        self._offset += size
        return part
