"""Block records at rest in an index: 144 bytes, `docs/format.md`, "Disk index"; and what to do when two claim one place.

The arena index and the disk index share them. Nothing here is believed about payloads: checksums decide that elsewhere.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from tierkv.errors import DataError, InternalError
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import BlockRecord, Extent

Placed: TypeAlias = tuple[BlockRecord, Extent]
"""A block and its place."""

_RECORD = struct.Struct("<QQQQQII32s32s16s16s")
_PLACE = struct.Struct("<QQQ")
RECORD_BYTES = _RECORD.size
_HAS_PARENT = 1
_NO_PARENT = bytes(32)


@contextmanager
def collector_paused() -> Iterator[None]:
    """For loading in bulk: it makes objects by the 100,000, none of them garbage, and the collector would walk them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def pack_record(record: BlockRecord, extent: Extent) -> bytes:
    """The 144 bytes of a record; its key is the key of the database entry."""
    if len(record.checksum) != 16 or len(record.payload_checksum) != 16:
        raise InternalError("a checksum has 16 bytes", key=record.key)
    return _RECORD.pack(
        extent.offset,
        extent.length,
        record.generation,
        record.block_bytes,
        record.payload_bytes,
        record.codec,
        0 if record.parent is None else _HAS_PARENT,
        record.namespace_id,
        record.parent if record.parent is not None else _NO_PARENT,
        record.checksum,
        record.payload_checksum,
    )


class RecordReader:
    """Unpacks records; equal namespace ids of one reader share memory, which halves what 100,000 records weigh."""

    def __init__(self) -> None:
        self._namespaces: dict[bytes, NamespaceId] = {}

    def unpack(self, key: bytes, value: bytes) -> Placed:
        """Raises DataError for a value that is no record."""
        if len(value) != RECORD_BYTES:
            raise DataError("an index record has another length", key=key, length=len(value))
        offset, length, generation, block_bytes, payload_bytes, codec, flags, namespace, parent, checksum, payload_checksum = (
            _RECORD.unpack(value)
        )
        record = BlockRecord(
            key=BlockKey(key),
            namespace_id=self._namespaces.setdefault(namespace, NamespaceId(namespace)),
            parent=BlockKey(parent) if flags & _HAS_PARENT else None,
            generation=generation,
            block_bytes=block_bytes,
            checksum=checksum,
            codec=codec,
            payload_bytes=payload_bytes,
            payload_checksum=checksum if checksum == payload_checksum else payload_checksum,
        )
        return record, Extent(offset, length)


def unpack_place(value: bytes) -> tuple[Extent, int]:
    """Extent and generation alone: five times cheaper than the whole record."""
    if len(value) != RECORD_BYTES:
        raise DataError("an index record has another length", length=len(value))
    offset, length, generation = _PLACE.unpack_from(value)
    return Extent(offset, length), generation


def resolve_overlaps(
    claims: Iterable[tuple[BlockKey, Extent, int]], fits: Callable[[Extent], bool]
) -> tuple[list[Extent], list[BlockKey]]:
    """Which claims (key, extent, generation) may stay: (extents kept, ascending; keys to forget).

    A claim goes when `fits` denies its extent, or when it overlaps one of a higher generation: the later writer got the place.
    """
    kept: list[tuple[BlockKey, Extent, int]] = []
    dropped: list[BlockKey] = []
    for claim in sorted(claims, key=lambda claim: (claim[1].offset, claim[2])):
        key, extent, generation = claim
        if not fits(extent):
            dropped.append(key)
            continue
        while kept and kept[-1][1].end > extent.offset and kept[-1][2] < generation:
            dropped.append(kept.pop()[0])
        if kept and kept[-1][1].end > extent.offset:
            dropped.append(key)
        else:
            kept.append(claim)
    return [extent for _, extent, _ in kept], dropped
