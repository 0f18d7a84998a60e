"""The codec that changes nothing: codec 0. What is fastest wherever bytes move faster than they compress."""

from __future__ import annotations

import numpy as np

from tierkv.codecs.base import Buffer
from tierkv.errors import DataError
from tierkv.model.layout import Layout


class IdentityCodec:
    """The block itself; the contract is `tierkv.codecs.base.BlockCodec`."""

    codec_id = 0
    name = "identity"
    exact = True

    def encode(self, block: Buffer, layout: Layout) -> Buffer:
        """Returns `block` itself: no copy."""
        assert len(block) == layout.block_bytes
        return block

    def decode(self, payload: Buffer, target: Buffer, layout: Layout) -> None:
        """One copy, without the interpreter lock. Raises DataError for a payload that has not the length of a block."""
        assert len(target) == layout.block_bytes
        if len(payload) != len(target):
            raise DataError("an identity payload has the length of its block", payload=len(payload), block=len(target))
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(payload, np.uint8))
