"""A tier in another form: blocks are encoded on the way in and decoded on the way out (zict's Func). It knows no codec itself.

Outward every payload is a whole block; inward it is whatever `encode` makes of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import BlockRecord, TierName
from tierkv.tiers.base import Buffer, GetOutcome, PutOutcome, Tier

Encode = Callable[[BlockRecord, memoryview], tuple[BlockRecord, memoryview]]
Decode = Callable[[BlockRecord, memoryview, memoryview], None]
_BATCH_BYTES = 32 << 20
"""Blocks of so many bytes are read at a time, so that their payloads need no more memory beside the targets."""


class TransformTier:
    """Blocks in the form that `encode` gives them.

    encode(record, block) → (record of the payload, payload); decode(record, payload, target) raises DataError for what it cannot
    decode to exactly the block. The block's own checksum is decode's to check.
    """

    def __init__(self, inner: Tier, encode: Encode, decode: Decode) -> None:
        self.name: TierName = inner.name
        self.capacity_bytes = inner.capacity_bytes
        self._inner = inner
        self._encode = encode
        self._decode = decode

    @property
    def used_bytes(self) -> int:
        return self._inner.used_bytes

    @property
    def degraded(self) -> str | None:
        return self._inner.degraded

    def footprint_bytes(self, payload_bytes: int) -> int:
        """What the block takes at most: how well it compresses is known only afterwards."""
        return self._inner.footprint_bytes(payload_bytes)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._inner

    def __len__(self) -> int:
        return len(self._inner)

    def record(self, key: BlockKey) -> BlockRecord | None:
        inner = self._inner.record(key)
        return None if inner is None else _outward(inner)

    def records(self) -> Iterator[BlockRecord]:
        return (_outward(record) for record in self._inner.records())

    def put(self, items: Sequence[tuple[BlockRecord, Buffer]]) -> list[PutOutcome]:
        return self._inner.put([self._encode(record, block) for record, block in items])

    def get(self, keys: Sequence[BlockKey], targets: Sequence[Buffer]) -> list[GetOutcome]:
        records = [self._inner.record(key) for key in keys]
        outcomes = [GetOutcome.MISS] * len(keys)
        plain = [idx for idx, record in enumerate(records) if record is not None and _is_plain(record)]
        found = self._inner.get([keys[idx] for idx in plain], [targets[idx] for idx in plain])
        for idx, outcome in zip(plain, found, strict=True):
            outcomes[idx] = outcome
        coded = [(idx, record) for idx, record in enumerate(records) if record is not None and not _is_plain(record)]
        for batch in _batches(coded):
            payloads = [memoryview(bytearray(record.payload_bytes)) for _, record in batch]
            found = self._inner.get([record.key for _, record in batch], payloads)
            for (idx, record), payload, outcome in zip(batch, payloads, found, strict=True):
                is_there = outcome is GetOutcome.HIT
                outcomes[idx] = self._decode_one(record, payload, targets[idx]) if is_there else outcome
        return outcomes

    def _decode_one(self, record: BlockRecord, payload: Buffer, target: Buffer) -> GetOutcome:
        if len(target) != record.block_bytes:
            raise InvalidRequestError(
                "a target does not have the length of its block", length=len(target), block=record.block_bytes
            )
        try:
            self._decode(record, payload, target)
        except DataError:
            self._inner.delete([record.key])
            return GetOutcome.DAMAGED
        return GetOutcome.HIT

    def delete(self, keys: Iterable[BlockKey]) -> int:
        return self._inner.delete(keys)

    def check_integrity(self) -> None:
        self._inner.check_integrity()

    def close(self) -> None:
        self._inner.close()


def _outward(record: BlockRecord) -> BlockRecord:
    return dataclasses.replace(record, codec=0, payload_bytes=record.block_bytes, payload_checksum=record.checksum)


def _is_plain(record: BlockRecord) -> bool:
    """Whether the payload is the block itself: it then goes straight to its target."""
    return record.payload_bytes == record.block_bytes and record.payload_checksum == record.checksum


def _batches(coded: list[tuple[int, BlockRecord]]) -> Iterator[list[tuple[int, BlockRecord]]]:
    """Runs of at most `_BATCH_BYTES` of payload (one block at least), so that decoding needs bounded memory."""
    batch: list[tuple[int, BlockRecord]] = []
    num_bytes = 0
    for idx, record in coded:
        if batch and num_bytes + record.payload_bytes > _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append((idx, record))
        num_bytes += record.payload_bytes
    if batch:
        yield batch
