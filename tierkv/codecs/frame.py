"""The frame: the 256-byte header before a payload at rest. `docs/format.md`, "Frame", has it field by field; nobody else knows it.

A header is believed only after its checksum; a length in it only after it was compared with its bound. The tiers decide where a
frame lies; the codec it names is for whoever decodes the payload.
"""

from __future__ import annotations

import struct

from tierkv.codecs.base import Buffer
from tierkv.codecs.checksum import CHECKSUM_BYTES, checksum
from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.keys import KEY_BYTES, BlockKey, NamespaceId
from tierkv.model.layout import BLOCK_BYTES_LIMIT
from tierkv.model.outcomes import BlockRecord

MAGIC = b"TKVFRAME"
VERSION = 1
HEADER_BYTES = 256
# A payload may outgrow its block: a codec adds its tables and checksums to what it cannot compress.
PAYLOAD_BYTES_LIMIT = BLOCK_BYTES_LIMIT + (1 << 23)

_PREFIX = struct.Struct("<8sHH")
_BODY = struct.Struct("<8sHHHH32s32s32sQQ16sQ16s72s")
_CHECKED_BYTES = HEADER_BYTES - CHECKSUM_BYTES
_HAS_PARENT = 1
_NO_PARENT = bytes(KEY_BYTES)
_RESERVED = bytes(72)
_U16 = range(1 << 16)
_U64 = range(1 << 64)

assert _BODY.size == _CHECKED_BYTES


class FrameCodec:
    """Makes and checks frame headers; implements `tierkv.tiers.base.Framer`. Stateless; calls may come from several threads."""

    header_bytes = HEADER_BYTES

    def seal(self, record: BlockRecord) -> bytes:
        """The header of `record`, 256 bytes; about 1 µs. Raises InvalidRequestError, naming fields that do not fit."""
        _require_sealable(record)
        body = _BODY.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            record.codec,
            0 if record.parent is None else _HAS_PARENT,
            record.key,
            record.namespace_id,
            record.parent or _NO_PARENT,
            record.generation,
            record.block_bytes,
            record.checksum,
            record.payload_bytes,
            record.payload_checksum,
            _RESERVED,
        )
        return body + checksum(body)

    def open(self, header: Buffer) -> BlockRecord:
        """The record of a header of 256 bytes; about 2 µs. Raises DataError, saying what is wrong, for any other bytes."""
        _require_prefix(header)
        if checksum(header[:_CHECKED_BYTES]) != header[_CHECKED_BYTES:]:
            raise DataError("a frame header does not match its checksum", header=header[: _PREFIX.size])
        (
            _,
            _,
            header_bytes,
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
            reserved,
        ) = _BODY.unpack_from(header)
        if header_bytes != HEADER_BYTES:
            raise DataError("a frame states a wrong header length", stated=header_bytes, expected=HEADER_BYTES)
        if flags & ~_HAS_PARENT or reserved != _RESERVED or (not flags and parent != _NO_PARENT):
            raise DataError("a frame header uses fields that this version does not know", flags=flags)
        if not (1 <= block_bytes <= BLOCK_BYTES_LIMIT and 1 <= payload_bytes <= PAYLOAD_BYTES_LIMIT):
            raise DataError("a frame states lengths out of bounds", block_bytes=block_bytes, payload_bytes=payload_bytes)
        return BlockRecord(
            key=BlockKey(key),
            namespace_id=NamespaceId(namespace),
            parent=BlockKey(parent) if flags else None,
            generation=generation,
            block_bytes=block_bytes,
            checksum=digest,
            codec=codec,
            payload_bytes=payload_bytes,
            payload_checksum=payload_digest,
        )

    def check(self, record: BlockRecord, header: Buffer, payload: Buffer) -> None:
        """Raises DataError unless `header` is that of `record` and `payload` has the length and the checksum it states.

        Reads all of `payload`, at memory speed and without the interpreter lock.
        """
        found = self.open(header)
        if found != record:
            raise DataError("a frame is not the one expected here", **_differences(record, found))
        if len(payload) != record.payload_bytes:
            raise DataError("a payload has a wrong length", length=len(payload), expected=record.payload_bytes, key=record.key)
        if checksum(payload) != record.payload_checksum:
            raise DataError("a payload does not match its checksum", key=record.key, payload_bytes=record.payload_bytes)


def _require_prefix(header: Buffer) -> None:
    """What can be said of a header of any version."""
    if len(header) != HEADER_BYTES:
        raise DataError("a frame header has 256 bytes", length=len(header))
    magic, version, _ = _PREFIX.unpack_from(header)
    if magic != MAGIC:
        raise DataError("no frame begins here", magic=magic, expected=MAGIC)
    if version > VERSION:
        raise DataError("a frame was written by a newer version of TierKV", version=version, newest_known=VERSION)
    if version < 1:
        raise DataError("a frame has an unknown version", version=version)


def _require_sealable(record: BlockRecord) -> None:
    fits = {
        "key": len(record.key) == KEY_BYTES,
        "namespace_id": len(record.namespace_id) == KEY_BYTES,
        "parent": record.parent is None or len(record.parent) == KEY_BYTES,
        "generation": record.generation in _U64,
        "block_bytes": 1 <= record.block_bytes <= BLOCK_BYTES_LIMIT,
        "checksum": len(record.checksum) == CHECKSUM_BYTES,
        "codec": record.codec in _U16,
        "payload_bytes": 1 <= record.payload_bytes <= PAYLOAD_BYTES_LIMIT,
        "payload_checksum": len(record.payload_checksum) == CHECKSUM_BYTES,
    }
    if not all(fits.values()):
        wrong = {name: getattr(record, name) for name, is_fit in fits.items() if not is_fit}
        raise InvalidRequestError("no frame header can hold this record", **wrong)


def _differences(record: BlockRecord, found: BlockRecord) -> dict[str, object]:
    shown: dict[str, object] = {"key": record.key}
    for name in BlockRecord.__dataclass_fields__:
        expected, actual = getattr(record, name), getattr(found, name)
        if expected != actual:
            shown[name] = expected
            shown[f"found_{name}"] = actual
    return shown
