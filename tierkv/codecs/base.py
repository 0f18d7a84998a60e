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
    """array → `itemsize` parts of equal length, together as long as the array (byte planes)."""

    def encode(self, source: Buffer, itemsize: int) -> Buffer:
        """The parts one after the other; may return `source` itself where nothing changes."""
        ...

    def decode(self, encoded: Buffer, target: Buffer, itemsize: int) -> None:
        """Puts the parts together in `target`, which has the length of `encoded`."""
        ...


class BlockCodec(Protocol):
    """The form of a block in one tier.

    The caller guarantees:
    1. `block` and `target` have `layout.block_bytes` bytes; buffers are contiguous and stay unchanged (or unshared) until return.

    The implementation must:
    1. Give `decode(encode(block)) == block` bit for bit when `exact`.
    2. Leave `block` and `payload` as they are, and read nothing past them.
    3. Raise DataError for a payload that is cut short, extended, or not of the codec's form; `target` is then undefined.
    4. Stay within memory bounded by a few times `layout.block_bytes`, whatever the payload claims.
    5. Allow calls from several threads.
    """

    codec_id: int
    """The number in the frame; `docs/format.md`, "Codecs"."""
    name: str
    exact: bool

    def encode(self, block: Buffer, layout: Layout) -> Buffer: ...

    def decode(self, payload: Buffer, target: Buffer, layout: Layout) -> None: ...
