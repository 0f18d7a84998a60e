"""The frame: the fixed header that stands before a payload at rest. `docs/format.md`, "Frame", gives every byte.

The header repeats what the index says of the block, so that a stale or torn extent is found out; it carries its own checksum, so that
none of its lengths is believed before that agreed.
"""

from __future__ import annotations

import struct

from tierkv.codecs.checksum import CHECKSUM_BYTES, checksum
from tierkv.errors import DataError
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import BLOCK_BYTES_LIMIT
from tierkv.model.outcomes import BlockRecord

FRAME_VERSION = 1
HEADER_BYTES = 256
_MAGIC = b"TIERKVF\n"
_FIELDS = struct.Struct("<8sHHII32s32s32sQQ16sQ16s")
_HAS_PARENT = 1
_NO_PARENT = bytes(32)
_CHECKED_BYTES = HEADER_BYTES - CHECKSUM_BYTES


class FrameCodec:
    """Makes and checks frame headers; `tierkv.tiers.base.Framer` is the role."""

    header_bytes = HEADER_BYTES

    def seal(self, record: BlockRecord) -> bytes:
        """The 256-byte header of `record`."""
        fields = _FIELDS.pack(
            _MAGIC,
            FRAME_VERSION,
            HEADER_BYTES,
            record.codec,
            0 if record.parent is None else _HAS_PARENT,
            record.key,
            record.namespace_id,
            _NO_PARENT if record.parent is None else record.parent,
            record.generation,
            record.block_bytes,
            record.checksum,
            record.payload_bytes,
            record.payload_checksum,
        )
        body = fields.ljust(_CHECKED_BYTES, b"\0")
        return body + checksum(body)

    def open(self, header: memoryview) -> BlockRecord:
        """The record of a header. Raises DataError for a wrong magic, version, length, checksum or bound."""
        if len(header) != HEADER_BYTES:
            raise DataError("a frame header has 256 bytes", length=len(header))
        (
            magic,
            version,
            length,
            codec,
            flags,
            key,
            namespace,
            parent,
            generation,
            block_bytes,
            digest,
            payload_bytes,
            payload_digest,
        ) = _FIELDS.unpack_from(header)
        if magic != _MAGIC:
            raise DataError("no frame begins here", found=bytes(magic))
        if version > FRAME_VERSION:
            raise DataError("the frame has a newer version; upgrade tierkv to read it", version=version, supported=FRAME_VERSION)
        if bytes(header[_CHECKED_BYTES:]) != checksum(header[:_CHECKED_BYTES]):
            raise DataError("the checksum of a frame header does not agree", key=key)
        if version != FRAME_VERSION or length != HEADER_BYTES or flags & ~_HAS_PARENT or any(header[_FIELDS.size : _CHECKED_BYTES]):
            raise DataError(
                "a frame header has a version, length or flags that do not exist", version=version, length=length, flags=flags
            )
        if not 0 < block_bytes <= BLOCK_BYTES_LIMIT or not 0 < payload_bytes <= 2 * BLOCK_BYTES_LIMIT:
            raise DataError("a frame header states impossible lengths", block_bytes=block_bytes, payload_bytes=payload_bytes)
        return BlockRecord(
            key=BlockKey(key),
            namespace_id=NamespaceId(namespace),
            parent=BlockKey(parent) if flags & _HAS_PARENT else None,
            generation=generation,
            block_bytes=block_bytes,
            checksum=digest,
            codec=codec,
            payload_bytes=payload_bytes,
            payload_checksum=payload_digest,
        )

    def check(self, record: BlockRecord, header: memoryview, payload: memoryview) -> None:
        """Raises DataError unless `header` is that of `record` and `payload` has its checksum."""
        found = self.open(header)
        if found != record:
            raise DataError("the frame belongs to another block or an earlier write", expected=record.key, found=found.key)
        if len(payload) != record.payload_bytes or checksum(payload) != record.payload_checksum:
            raise DataError("the checksum of a payload does not agree", key=record.key)
