"""Codecs by name (settings) and by number (frames). A number is never given twice; `docs/format.md`, "Codecs"."""

from __future__ import annotations

from tierkv.codecs.base import BlockCodec
from tierkv.codecs.identity import IdentityCodec
from tierkv.codecs.pipeline import PipelineCodec
from tierkv.codecs.planes import BytePlanes
from tierkv.codecs.zstd import Zstd
from tierkv.errors import DataError, InvalidRequestError

CODECS: tuple[BlockCodec, ...] = (IdentityCodec(), PipelineCodec(1, "planes-zstd", BytePlanes(), Zstd()))


def codec_by_name(name: str) -> BlockCodec:
    """Raises InvalidRequestError that lists the names there are."""
    for codec in CODECS:
        if codec.name == name:
            return codec
    raise InvalidRequestError("unknown codec", codec=name, known=", ".join(codec.name for codec in CODECS))


def codec_by_id(codec_id: int) -> BlockCodec:
    """Raises DataError for a number that this version does not know."""
    for codec in CODECS:
        if codec.codec_id == codec_id:
            return codec
    raise DataError("a frame names a codec that this version does not know", codec=codec_id)
