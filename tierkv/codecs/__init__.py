"""The form of a block at rest: codecs, typed by what goes in and out, and the frame that names and guards them."""

from tierkv.codecs.checksum import checksum
from tierkv.codecs.frame import FrameCodec
from tierkv.codecs.registry import CODECS, codec_by_id, codec_by_name

__all__ = ["CODECS", "FrameCodec", "checksum", "codec_by_id", "codec_by_name"]
