"""A block codec composed of an array codec and a bytes codec: `docs/format.md`, "Codecs", planes+zstd.

The array codec makes one part for each byte of an element; each part is encoded on its own, behind a table of encoded lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from tierkv.codecs.base import ArrayCodec, Buffer, BytesCodec
from tierkv.errors import DataError
from tierkv.model.layout import DTYPE_BYTES, Layout


class PipelineCodec:
    """array → parts → bytes, and back; the contract is `tierkv.codecs.base.BlockCodec`."""

    exact = True

    def __init__(self, *, codec_id: int, name: str, array_codec: ArrayCodec, bytes_codec: BytesCodec) -> None:
        """Both codecs are lossless and may be called from several threads."""
        self.codec_id = codec_id
        self.name = name
        self._array_codec = array_codec
        self._bytes_codec = bytes_codec

    def encode(self, block: Buffer, layout: Layout) -> Buffer:
        assert len(block) == layout.block_bytes
        itemsize = DTYPE_BYTES[layout.dtype]
        parts = self._array_codec.encode(block, itemsize)
        encoded = [self._bytes_codec.encode(part) for part in _equal_parts(parts, itemsize)]
        table = struct.pack(f"<{itemsize}I", *map(len, encoded))
        return memoryview(b"".join([table, *encoded]))

    def decode(self, payload: Buffer, target: Buffer, layout: Layout) -> None:
        assert len(target) == layout.block_bytes
        itemsize = DTYPE_BYTES[layout.dtype]
        # Elements of one byte have one part, the block itself: it is decoded in place.
        parts = target if itemsize == 1 else np.empty(len(target), np.uint8).data
        for encoded, part in zip(_listed_parts(payload, itemsize), _equal_parts(parts, itemsize), strict=True):
            self._bytes_codec.decode(encoded, part)
        if itemsize > 1:
            self._array_codec.decode(parts, target, itemsize)


def _equal_parts(parts: Buffer, count: int) -> Iterator[Buffer]:
    length = len(parts) // count
    return (parts[start : start + length] for start in range(0, len(parts), length))


def _listed_parts(payload: Buffer, count: int) -> list[Buffer]:
    """The encoded parts of a payload. Raises DataError unless its table of lengths accounts for every byte."""
    table = struct.Struct(f"<{count}I")
    if len(payload) < table.size:
        raise DataError("a payload is shorter than its table of lengths", payload=len(payload), table=table.size)
    lengths = table.unpack_from(payload)
    if table.size + sum(lengths) != len(payload):
        raise DataError("the lengths in a payload do not add up", payload=len(payload), listed=table.size + sum(lengths))
    parts: list[Buffer] = []
    start = table.size
    for length in lengths:
        parts.append(payload[start : start + length])
        start += length
    return parts
