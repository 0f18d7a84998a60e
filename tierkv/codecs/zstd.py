"""zstd, the one place where it is used. bytes → bytes, lossless; one frame with its content size and no dictionary.

Contexts are kept per thread: making one costs more than compressing a small block.
"""

from __future__ import annotations

import threading

import zstandard

from tierkv.codecs.base import Buffer
from tierkv.errors import DataError


class Zstd:
    """level — 1 (fast) to 19 (small); 3 is the library's default."""

    def __init__(self, *, level: int = 3) -> None:
        self._level = level
        self._local = threading.local()

    def encode(self, source: Buffer) -> Buffer:
        if not hasattr(self._local, "compressor"):
            self._local.compressor = zstandard.ZstdCompressor(level=self._level)
        return memoryview(self._local.compressor.compress(source))

    def decode(self, encoded: Buffer, target: Buffer) -> None:
        """Raises DataError for anything but one frame of exactly `len(target)` bytes, before it allocates more than that."""
        if not hasattr(self._local, "decompressor"):
            self._local.decompressor = zstandard.ZstdDecompressor()
        try:
            size = zstandard.frame_content_size(encoded)
            if size != len(target):
                raise DataError("a zstd payload states another length than the block's", stated=size, block=len(target))
            content = self._local.decompressor.decompress(encoded, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise DataError("a zstd payload cannot be decoded", length=len(encoded), error=error) from error
        target[:] = content
