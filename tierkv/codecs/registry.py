"""Every block codec by name (settings) and by number (frames). A codec is built when first asked for: identity needs no zstd."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tierkv.codecs.base import BlockCodec
from tierkv.errors import DataError, InvalidRequestError


def identity() -> BlockCodec:
    """Codec 0: the block itself."""
    from tierkv.codecs.identity import IdentityCodec

    return IdentityCodec()


def planes_zstd(level: int | None = None) -> BlockCodec:
    """Codec 1: byte planes, each zstd-compressed. level — 1 to 19, None for the default; InvalidRequestError otherwise."""
    from tierkv.codecs.pipeline import PipelineCodec
    from tierkv.codecs.planes import BytePlanes
    from tierkv.codecs.zstd import DEFAULT_LEVEL, ZstdCodec

    bytes_codec = ZstdCodec(DEFAULT_LEVEL if level is None else level)
    return PipelineCodec(codec_id=1, name="planes+zstd", array_codec=BytePlanes(), bytes_codec=bytes_codec)


# The place in this list is the number in the frame: entries are appended, never moved.
_FACTORIES: list[tuple[str, Callable[[], BlockCodec]]] = [("identity", identity), ("planes+zstd", planes_zstd)]

CODEC_NAMES = tuple(name for name, _ in _FACTORIES)


def codec_by_name(name: str) -> BlockCodec:
    """The codec that settings name. Raises InvalidRequestError, listing the known names, for any other."""
    if name not in CODEC_NAMES:
        raise InvalidRequestError("unknown codec", codec=name, known=", ".join(CODEC_NAMES))
    return _built(CODEC_NAMES.index(name))


def codec_by_id(codec_id: int) -> BlockCodec:
    """The codec that a frame names. Raises DataError, listing the known ones, for any other: this version cannot read the block."""
    if not 0 <= codec_id < len(_FACTORIES):
        known = ", ".join(f"{number} {name}" for number, name in enumerate(CODEC_NAMES))
        raise DataError("a frame names a codec that this version does not know", codec=codec_id, known=known)
    return _built(codec_id)


@cache
def _built(codec_id: int) -> BlockCodec:
    return _FACTORIES[codec_id][1]()
