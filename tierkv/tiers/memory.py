"""The reference twin of every tier: a dict with a capacity. Tests compare the others with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import BlockRecord, TierName
from tierkv.tiers.base import Buffer, GetOutcome, PutOutcome


class MemoryTier:
    """Blocks in a dict. checksum — XXH3-128 of a buffer (`tierkv.codecs`), so that damage is found here as everywhere."""

    def __init__(self, capacity_bytes: int, checksum: Callable[[memoryview], bytes], *, name: TierName = TierName.HOST) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self._checksum = checksum
        self._lock = threading.Lock()
        self._blocks: dict[BlockKey, tuple[BlockRecord, bytearray]] = {}
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def degraded(self) -> str | None:
        return None

    def footprint_bytes(self, payload_bytes: int) -> int:
        return payload_bytes

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def record(self, key: BlockKey) -> BlockRecord | None:
        held = self._blocks.get(key)
        return None if held is None else held[0]

    def records(self) -> Iterator[BlockRecord]:
        with self._lock:
            held = [record for record, _ in self._blocks.values()]
        return iter(sorted(held, key=lambda record: record.generation))

    def put(self, items: Sequence[tuple[BlockRecord, Buffer]]) -> list[PutOutcome]:
        with self._lock:
            return [self._put_one(record, payload) for record, payload in items]

    def get(self, keys: Sequence[BlockKey], targets: Sequence[Buffer]) -> list[GetOutcome]:
        with self._lock:
            return [self._get_one(key, target) for key, target in zip(keys, targets, strict=True)]

    def delete(self, keys: Iterable[BlockKey]) -> int:
        with self._lock:
            return sum(self._forget(key) for key in keys)

    def check_integrity(self) -> None:
        with self._lock:
            assert self._used_bytes == sum(len(payload) for _, payload in self._blocks.values()) <= self.capacity_bytes
            assert all(key == record.key for key, (record, _) in self._blocks.items())

    def close(self) -> None:
        """Nothing to release."""

    def _put_one(self, record: BlockRecord, payload: Buffer) -> PutOutcome:
        if record.key in self._blocks:
            return PutOutcome.ALREADY
        if self._used_bytes + len(payload) > self.capacity_bytes:
            return PutOutcome.NO_SPACE
        self._blocks[record.key] = (record, bytearray(payload))
        self._used_bytes += len(payload)
        return PutOutcome.STORED

    def _get_one(self, key: BlockKey, target: Buffer) -> GetOutcome:
        held = self._blocks.get(key)
        if held is None:
            return GetOutcome.MISS
        record, payload = held
        if self._checksum(memoryview(payload)) != record.payload_checksum:
            self._forget(key)
            return GetOutcome.DAMAGED
        target[:] = payload
        return GetOutcome.HIT

    def _forget(self, key: BlockKey) -> bool:
        held = self._blocks.pop(key, None)
        if held is None:
            return False
        self._used_bytes -= len(held[1])
        return True
