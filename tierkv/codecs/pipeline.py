"""Codecs composed: array → array, then bytes → bytes, as one block codec with a number in the frame."""

from __future__ import annotations

from tierkv.codecs.base import ArrayCodec, Buffer, BytesCodec
from tierkv.model.layout import DTYPE_BYTES, Layout


class PipelineCodec:
    """`array` arranges a block's elements, `packer` compresses the result. Exact where both are."""

    exact = True

    def __init__(self, codec_id: int, name: str, array: ArrayCodec, packer: BytesCodec) -> None:
        self.codec_id = codec_id
        self.name = name
        self._array = array
        self._packer = packer

    def encode(self, block: Buffer, layout: Layout) -> Buffer:
        return self._packer.encode(self._array.encode(block, DTYPE_BYTES[layout.dtype]))

    def decode(self, payload: Buffer, target: Buffer, layout: Layout) -> None:
        """Raises DataError for a payload that `encode` did not make."""
        arranged = memoryview(bytearray(len(target)))
        self._packer.decode(payload, arranged)
        self._array.decode(arranged, target, DTYPE_BYTES[layout.dtype])
