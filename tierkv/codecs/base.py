"""What a codec is. Codecs are typed by what goes in and out, and composed into a `BlockCodec` that the frame names by number."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from tierkv.model.layout import Layout

Buffer: TypeAlias = memoryview


class BytesCodec(Protocol):
    """bytes → bytes, lossless (zstd)."""

    def encode(self, source: Buffer) -> Buffer:
        """The encoded bytes; may return `source` itself where nothing changes."""
        ...

    def decode(self, encoded: Buffer, target: Buffer) -> None:
        """Decodes into `target`, whose length is the exact decoded length. Raises DataError where it does not fit exactly."""
        ...


class ArrayCodec(Protocol):
    """array → array of the same number of bytes, given the width of an element (byte planes)."""

    def encode(self, source: Buffer, itemsize: int) -> Buffer: ...

    def decode(self, encoded: Buffer, target: Buffer, itemsize: int) -> None: ...


class BlockCodec(Protocol):
    """The form of a block in one tier.

    The caller guarantees: `block` has `layout.block_bytes` bytes.
    The implementation must: give `decode(encode(block)) == block` bit for bit when `exact`; read nothing past the given buffers;
    raise DataError for any encoded bytes that `encode` could not have made, within bounded memory.
    """

    codec_id: int
    """The number in the frame; `docs/format.md`, "Codecs"."""
    name: str
    exact: bool

    def encode(self, block: Buffer, layout: Layout) -> Buffer: ...

    def decode(self, payload: Buffer, target: Buffer, layout: Layout) -> None: ...
