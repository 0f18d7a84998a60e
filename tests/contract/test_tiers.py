"""The tier contract on every tier: the memory twin, the arena, the disk (direct and buffered), and a wrapper."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path

from tierkv.codecs.checksum import checksum
from tierkv.codecs.frame import FrameCodec
from tierkv.errors import DataError
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import BlockRecord
from tierkv.settings import DiskSettings
from tierkv.testing.tier_suite import CAPACITY_BYTES, SEGMENT_BYTES, TierSuite
from tierkv.tiers.base import Tier
from tierkv.tiers.disk import DiskTier
from tierkv.tiers.host import HostTier
from tierkv.tiers.memory import MemoryTier
from tierkv.tiers.transform import TransformTier

STORE_ID = bytes(range(16))


class TestMemoryTier(TierSuite):
    def open_tier(self, folder: Path) -> Tier:
        return MemoryTier(CAPACITY_BYTES, checksum)

    def damage(self, tier: Tier, folder: Path, key: BlockKey) -> None:
        assert isinstance(tier, MemoryTier)
        tier._blocks[key][1][0] ^= 1


class TestHostTier(TierSuite):
    is_persistent = True

    def open_tier(self, folder: Path) -> Tier:
        return HostTier(folder / "arena", CAPACITY_BYTES, store_id=STORE_ID, checksum=checksum)

    def damage(self, tier: Tier, folder: Path, key: BlockKey) -> None:
        assert isinstance(tier, HostTier)
        tier.view(tier._table[key][1])[0] ^= 1


class TestDiskTier(TierSuite):
    is_persistent = True
    is_direct = True

    def open_tier(self, folder: Path) -> Tier:
        settings = DiskSettings(CAPACITY_BYTES, segment_bytes=SEGMENT_BYTES, direct_io=self.is_direct)
        return DiskTier(folder, settings, FrameCodec())

    def damage(self, tier: Tier, folder: Path, key: BlockKey) -> None:
        assert isinstance(tier, DiskTier)
        placed = tier._index.get([key])[0]
        assert placed is not None
        offset = placed[1].offset + 4096
        with (folder / "segments" / f"{offset // SEGMENT_BYTES:08d}.seg").open("r+b") as file:
            file.seek(offset % SEGMENT_BYTES)
            value = file.read(1)[0]
            file.seek(offset % SEGMENT_BYTES)
            file.write(bytes([value ^ 1]))


class TestBufferedDiskTier(TestDiskTier):
    is_direct = False


class TestTransformTier(TestDiskTier):
    """Blocks deflated on disk; `damage` flips a byte of the deflated payload."""

    def open_tier(self, folder: Path) -> Tier:
        return TransformTier(super().open_tier(folder), _deflate, _inflate)

    def damage(self, tier: Tier, folder: Path, key: BlockKey) -> None:
        assert isinstance(tier, TransformTier)
        super().damage(tier._inner, folder, key)


class TestTransformTierOverMemory(TierSuite):
    """A copy whose payload is intact but decodes to something else is damaged too."""

    def open_tier(self, folder: Path) -> Tier:
        return TransformTier(MemoryTier(CAPACITY_BYTES, checksum), _deflate, _inflate)

    def damage(self, tier: Tier, folder: Path, key: BlockKey) -> None:
        assert isinstance(tier, TransformTier)
        assert isinstance(tier._inner, MemoryTier)
        record, payload = tier._inner._blocks[key]
        block = bytearray(payload if record.codec == 0 else zlib.decompress(payload))
        block[0] ^= 1
        other = block if record.codec == 0 else bytearray(zlib.compress(block))
        digest = checksum(memoryview(other))
        tier._inner._blocks[key] = (dataclasses.replace(record, payload_bytes=len(other), payload_checksum=digest), other)
        tier._inner._used_bytes += len(other) - len(payload)


def _deflate(record: BlockRecord, block: memoryview) -> tuple[BlockRecord, memoryview]:
    payload = memoryview(zlib.compress(block))
    if len(payload) >= len(block):
        return record, block
    return dataclasses.replace(record, codec=9, payload_bytes=len(payload), payload_checksum=checksum(payload)), payload


def _inflate(record: BlockRecord, payload: memoryview, target: memoryview) -> None:
    try:
        block = bytes(payload) if record.codec == 0 else zlib.decompress(payload)
    except zlib.error as error:
        raise DataError("a payload does not inflate", key=record.key) from error
    if len(block) != len(target) or checksum(block) != record.checksum:
        raise DataError("a block does not have its checksum", key=record.key)
    target[:] = block
