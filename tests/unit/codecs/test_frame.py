"""The frame: golden bytes, every field out and in, every flipped bit, and every way in which a header can be disbelieved."""

import dataclasses
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierkv.codecs.checksum import checksum
from tierkv.codecs.frame import HEADER_BYTES, PAYLOAD_BYTES_LIMIT, FrameCodec
from tierkv.codecs.registry import codec_by_id
from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import BLOCK_BYTES_LIMIT, Layout
from tierkv.model.outcomes import BlockRecord

GOLDEN = Path(__file__).parents[2] / "golden"
LAYOUT = Layout(shape=(2, 8), dtype="bfloat16", block_tokens=1)
BLOCK = bytes(value % 7 for value in range(LAYOUT.block_bytes))
FRAMES = FrameCodec()


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / name).read_text())


def record_of(payload: bytes, codec: int, *, parent: BlockKey | None) -> BlockRecord:
    return BlockRecord(
        key=BlockKey(bytes(range(32))),
        namespace_id=NamespaceId(bytes(range(32, 64))),
        parent=parent,
        generation=0x0102030405060708,
        block_bytes=len(BLOCK),
        checksum=checksum(BLOCK),
        codec=codec,
        payload_bytes=len(payload),
        payload_checksum=checksum(payload),
    )


ROOT = record_of(BLOCK, 0, parent=None)
CHILD = record_of(BLOCK, 0, parent=BlockKey(bytes(range(64, 96))))


def resealed(header: bytes, offset: int, replacement: bytes) -> memoryview:
    """A header with some bytes replaced and the checksum made right again, as a confused writer would leave it."""
    changed = header[:offset] + replacement + header[offset + len(replacement) :]
    return memoryview(changed[:240] + checksum(changed[:240]))


def test_golden_frame_of_a_first_block() -> None:
    frame = golden("frame_v1_identity.hex")
    assert FRAMES.seal(ROOT) + BLOCK == frame
    FRAMES.check(ROOT, memoryview(frame)[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:])


def test_golden_frame_of_a_compressed_block_with_a_parent() -> None:
    """The header is reproduced; the payload is only read, since a later zstd may compress otherwise."""
    frame = golden("frame_v1_planes_zstd.hex")
    header, payload = memoryview(frame)[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:]
    record = record_of(bytes(payload), 1, parent=CHILD.parent)
    assert FRAMES.open(header) == record
    assert FRAMES.seal(record) == header
    FRAMES.check(record, header, payload)
    target = bytearray(len(BLOCK))
    codec_by_id(record.codec).decode(payload, memoryview(target), LAYOUT)
    assert bytes(target) == BLOCK


def test_fields_lie_where_the_format_says() -> None:
    header = FRAMES.seal(CHILD)
    assert len(header) == HEADER_BYTES == FRAMES.header_bytes == 256
    assert header[:16] == b"TKVFRAME" + struct.pack("<HHHH", 1, 256, 0, 1)
    assert (header[16:48], header[48:80], header[80:112]) == (CHILD.key, CHILD.namespace_id, CHILD.parent)
    assert header[112:128] == struct.pack("<QQ", CHILD.generation, CHILD.block_bytes)
    assert (header[128:144], header[152:168]) == (CHILD.checksum, CHILD.payload_checksum)
    assert header[144:152] == struct.pack("<Q", CHILD.payload_bytes)
    assert header[168:240] == bytes(72)
    assert header[240:] == checksum(header[:240])


digests = st.binary(min_size=16, max_size=16)
keys = st.binary(min_size=32, max_size=32)
records = st.builds(
    BlockRecord,
    key=keys.map(BlockKey),
    namespace_id=keys.map(NamespaceId),
    parent=st.none() | keys.map(BlockKey),
    generation=st.integers(0, 2**64 - 1),
    block_bytes=st.integers(1, BLOCK_BYTES_LIMIT),
    checksum=digests,
    codec=st.integers(0, 2**16 - 1),
    payload_bytes=st.integers(1, PAYLOAD_BYTES_LIMIT),
    payload_checksum=digests,
)


@given(records)
def test_open_gives_back_what_was_sealed(record: BlockRecord) -> None:
    assert FRAMES.open(memoryview(FRAMES.seal(record))) == record


@pytest.mark.parametrize("record", [ROOT, CHILD])
def test_any_flipped_bit_is_found(record: BlockRecord) -> None:
    frame = FRAMES.seal(record) + BLOCK
    for bit_idx in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit_idx // 8] ^= 1 << bit_idx % 8
        header, payload = memoryview(damaged)[:HEADER_BYTES], memoryview(damaged)[HEADER_BYTES:]
        with pytest.raises(DataError):
            FRAMES.check(record, header, payload)
        if bit_idx < 8 * HEADER_BYTES:
            with pytest.raises(DataError):
                FRAMES.open(header)


@given(st.binary(max_size=300))
def test_any_other_bytes_are_not_a_header(data: bytes) -> None:
    with pytest.raises(DataError):
        FRAMES.open(memoryview(data))


@pytest.mark.parametrize(
    ("offset", "replacement", "says"),
    [
        (0, b"TKVFRAMF", "no frame begins here"),
        (8, b"\x02\x00", "newer version"),
        (8, b"\x00\x00", "unknown version"),
        (10, b"\x00\x02", "wrong header length"),
        (14, b"\x02\x00", "does not know"),
        (80, b"\x01", "does not know"),
        (120, bytes(8), "out of bounds"),
        (120, (BLOCK_BYTES_LIMIT + 1).to_bytes(8, "little"), "out of bounds"),
        (144, bytes(8), "out of bounds"),
        (144, (PAYLOAD_BYTES_LIMIT + 1).to_bytes(8, "little"), "out of bounds"),
        (168, b"\x01", "does not know"),
        (239, b"\x01", "does not know"),
    ],
)
def test_a_header_that_is_whole_but_wrong_says_why(offset: int, replacement: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says):
        FRAMES.open(resealed(FRAMES.seal(ROOT), offset, replacement))


def test_a_newer_version_is_named_even_where_its_checksum_lies_elsewhere() -> None:
    header = bytearray(FRAMES.seal(ROOT))
    header[8] = 2
    with pytest.raises(DataError, match="newer version of TierKV: version='2', newest_known='1'"):
        FRAMES.open(memoryview(header))


@pytest.mark.parametrize("length", [0, 255, 257])
def test_a_header_has_its_length(length: int) -> None:
    with pytest.raises(DataError, match=f"length='{length}'"):
        FRAMES.open(memoryview((FRAMES.seal(ROOT) + b"\0")[:length]))


def test_a_whole_frame_of_another_record_is_not_the_one_expected() -> None:
    """A stale extent: the index names one block, an older frame lies there."""
    older = dataclasses.replace(ROOT, generation=1)
    with pytest.raises(DataError, match="found_generation='1'"):
        FRAMES.check(ROOT, memoryview(FRAMES.seal(older)), memoryview(BLOCK))


@pytest.mark.parametrize("payload", [b"", BLOCK[:-1], BLOCK + b"\0"])
def test_a_payload_has_its_length(payload: bytes) -> None:
    with pytest.raises(DataError, match="wrong length"):
        FRAMES.check(ROOT, memoryview(FRAMES.seal(ROOT)), memoryview(payload))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", b"short"),
        ("namespace_id", b""),
        ("parent", b""),
        ("generation", -1),
        ("generation", 2**64),
        ("block_bytes", 0),
        ("block_bytes", BLOCK_BYTES_LIMIT + 1),
        ("checksum", b""),
        ("codec", -1),
        ("codec", 2**16),
        ("payload_bytes", 0),
        ("payload_bytes", PAYLOAD_BYTES_LIMIT + 1),
        ("payload_checksum", bytes(17)),
    ],
)
def test_a_record_that_no_header_can_hold_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field}="):
        FRAMES.seal(dataclasses.replace(ROOT, **{field: value}))  # type: ignore[arg-type]  # wrong on purpose


def test_the_checksum_is_the_canonical_form() -> None:
    assert checksum(b"").hex() == "99aa06d3014798d86001c324468d497f"
