"""zstd: bounded decoding, and levels."""

import pytest
import zstandard

from tierkv.codecs.zstd import ZstdCodec
from tierkv.errors import DataError, InvalidRequestError

TEXT = bytes(range(64)) * 4


def decode(encoded: bytes, length: int = len(TEXT)) -> bytes:
    target = bytearray(length)
    ZstdCodec().decode(memoryview(encoded), memoryview(target))
    return bytes(target)


def claiming(content_bytes: int) -> bytes:
    """A frame header that states a content size of 8 bytes' width, followed by an empty last block."""
    return b"\x28\xb5\x2f\xfd\xe0" + content_bytes.to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize("level", [1, 3, 19])
def test_frames_of_every_level_are_read(level: int) -> None:
    assert decode(bytes(ZstdCodec(level).encode(memoryview(TEXT)))) == TEXT


@pytest.mark.parametrize("level", [-1, 0, 20])
def test_a_level_out_of_range_is_refused(level: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"level='{level}'"):
        ZstdCodec(level)


@pytest.mark.parametrize("content_bytes", [1 << 40, (1 << 64) - 3, len(TEXT) + 1, len(TEXT) - 1, 0])
def test_a_stated_size_is_compared_before_anything_is_allocated(content_bytes: int) -> None:
    with pytest.raises(DataError, match="wrong content size"):
        decode(claiming(content_bytes))


def test_a_frame_shorter_than_it_states_is_refused() -> None:
    with pytest.raises(DataError):
        decode(claiming(len(TEXT)))


def test_a_bomb_behind_a_harmless_size_is_refused() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    assert bomb[4] == 0xA0  # A content size in four bytes, which follow.
    with pytest.raises(DataError):
        decode(bomb[:5] + len(TEXT).to_bytes(4, "little") + bomb[9:])


def test_a_frame_without_a_size_is_refused() -> None:
    with pytest.raises(DataError, match="content size"):
        decode(zstandard.ZstdCompressor(write_content_size=False).compress(TEXT))


def test_a_skippable_frame_is_refused() -> None:
    with pytest.raises(DataError):
        decode(b"\x50\x2a\x4d\x18" + len(TEXT).to_bytes(4, "little") + TEXT)


def test_two_frames_are_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(TEXT)
    with pytest.raises(DataError):
        decode(frame + frame)
    with pytest.raises(DataError):
        decode(frame + frame, 2 * len(TEXT))
