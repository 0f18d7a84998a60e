"""What the bytes of one block are: shape, dtype and tokens. Every block of a namespace has the namespace's layout."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tierkv.errors import InvalidRequestError

LAYOUT_VERSION = 1
BLOCK_BYTES_LIMIT = 1 << 30
DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and dtype of one block.

    shape — of the block's array, C order; for dense attention (num_layers, 2, num_kv_heads, block_tokens, head_dim), K before V.
    Engines whose blocks are opaque bytes use a flat shape and dtype `uint8`.
    dtype — a key of DTYPE_BYTES; block_tokens — tokens that one block covers.
    """

    shape: tuple[int, ...]
    dtype: str
    block_tokens: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise InvalidRequestError("unknown dtype", dtype=self.dtype, known=", ".join(DTYPE_BYTES))
        if self.block_tokens < 1:
            raise InvalidRequestError("block_tokens must be at least 1", block_tokens=self.block_tokens)
        if not self.shape or len(self.shape) > 8 or any(extent < 1 for extent in self.shape):
            raise InvalidRequestError("a layout has 1 to 8 positive extents", shape=self.shape)
        if self.block_bytes > BLOCK_BYTES_LIMIT:
            raise InvalidRequestError("a block has at most 1 GiB", block_bytes=self.block_bytes, shape=self.shape)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def dense_layout(*, num_layers: int, num_kv_heads: int, block_tokens: int, head_dim: int, dtype: str) -> Layout:
    """Layout of dense attention: (num_layers, 2, num_kv_heads, block_tokens, head_dim), K before V."""
    return Layout(shape=(num_layers, 2, num_kv_heads, block_tokens, head_dim), dtype=dtype, block_tokens=block_tokens)
