"""The codec that changes nothing: the fastest for every medium that is faster than compression."""

from __future__ import annotations

from tierkv.codecs.base import Buffer
from tierkv.errors import DataError
from tierkv.model.layout import Layout


class IdentityCodec:
    """Codec 0: the payload is the block."""

    codec_id = 0
    name = "identity"
    exact = True

    def encode(self, block: Buffer, layout: Layout) -> Buffer:
        """The block itself, not copied."""
        del layout
        return block

    def decode(self, payload: Buffer, target: Buffer, layout: Layout) -> None:
        """Copies. Raises DataError unless the lengths agree."""
        del layout
        if len(payload) != len(target):
            raise DataError("a payload of the identity codec has the block's length", payload=len(payload), block=len(target))
        target[:] = payload
