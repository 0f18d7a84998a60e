"""Byte planes: all first bytes of the elements, then all second bytes, and so on.

Sign and exponent of neighbouring values are alike, mantissas are noise: apart, the first compress and the second cost nothing.
Lossless, same length.
"""

from __future__ import annotations

import numpy as np

from tierkv.codecs.base import Buffer
from tierkv.errors import DataError


class BytePlanes:
    """array → array of the same number of bytes."""

    def encode(self, source: Buffer, itemsize: int) -> Buffer:
        """The planes, lowest byte first; the source itself for one-byte elements."""
        if itemsize == 1:
            return source
        elements = np.frombuffer(source, np.uint8).reshape(-1, itemsize)
        return memoryview(np.ascontiguousarray(elements.T).reshape(-1))

    def decode(self, encoded: Buffer, target: Buffer, itemsize: int) -> None:
        """Back into elements. Raises DataError unless the lengths agree and are whole elements."""
        if len(encoded) != len(target) or len(target) % itemsize:
            raise DataError("byte planes have the block's length", planes=len(encoded), block=len(target), itemsize=itemsize)
        planes = np.frombuffer(encoded, np.uint8).reshape(itemsize, -1)
        np.copyto(np.frombuffer(target, np.uint8).reshape(-1, itemsize), planes.T)
