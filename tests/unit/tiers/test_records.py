"""Index records: their bytes, and who wins where two claim one place."""

from __future__ import annotations

import dataclasses

import pytest

from tierkv.errors import DataError, InternalError
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import Extent
from tierkv.testing.tier_suite import record_of
from tierkv.tiers.records import RECORD_BYTES, RecordReader, pack_record, resolve_overlaps, unpack_place

PLACE = Extent(8192, 24576)


@pytest.mark.parametrize("number", [0, 7])
def test_a_record_comes_back_with_its_place(number: int) -> None:
    record = dataclasses.replace(record_of(number), codec=2, payload_bytes=17, payload_checksum=bytes(range(16)))
    packed = pack_record(record, PLACE)
    assert len(packed) == RECORD_BYTES == 144
    assert RecordReader().unpack(record.key, packed) == (record, PLACE)
    assert unpack_place(packed) == (PLACE, number)


def test_the_bytes_are_those_of_the_format() -> None:
    packed = pack_record(record_of(1), PLACE)
    fields = [int.from_bytes(packed[start : start + 8], "little") for start in range(0, 40, 8)]
    assert fields == [8192, 24576, 1, 20_000, 20_000]
    assert packed[40:48] == (0).to_bytes(4, "little") + (1).to_bytes(4, "little")
    assert packed[48:80] == record_of(1).namespace_id
    assert packed[80:112] == record_of(1).parent
    assert packed[112:128] == packed[128:144] == record_of(1).checksum


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(DataError):
        RecordReader().unpack(bytes(32), bytes(143))
    with pytest.raises(DataError):
        unpack_place(bytes(145))
    with pytest.raises(InternalError):
        pack_record(dataclasses.replace(record_of(1), checksum=b"short"), PLACE)


def test_equal_namespaces_share_memory() -> None:
    reader = RecordReader()
    packed = pack_record(record_of(1), PLACE)
    first, _ = reader.unpack(bytes(32), packed)
    second, _ = reader.unpack(bytes(32), bytes(bytearray(packed)))
    assert first.namespace_id is second.namespace_id


def claim(name: str, offset: int, length: int, generation: int) -> tuple[BlockKey, Extent, int]:
    return BlockKey(name.encode()), Extent(offset, length), generation


@pytest.mark.parametrize(
    ("claims", "kept", "dropped"),
    [
        ([claim("a", 0, 4, 1), claim("b", 4, 4, 2)], [0, 4], ""),
        ([claim("a", 0, 4, 1), claim("b", 0, 4, 2)], [0], "a"),
        ([claim("a", 0, 4, 2), claim("b", 2, 4, 1)], [0], "b"),
        ([claim("a", 0, 4, 1), claim("b", 2, 4, 2)], [2], "a"),
        ([claim("a", 0, 2, 1), claim("b", 2, 2, 1), claim("c", 0, 4, 3)], [0], "ab"),
        ([claim("a", 0, 8, 3), claim("b", 2, 2, 1), claim("c", 5, 2, 2)], [0], "bc"),
        ([claim("a", 96, 8, 9), claim("b", 92, 8, 1)], [92], "a"),
    ],
    ids=["apart", "same place", "earlier loses", "later wins", "one beats two", "two lose to one", "outside"],
)
def test_the_later_generation_keeps_the_place(claims: list[tuple[BlockKey, Extent, int]], kept: list[int], dropped: str) -> None:
    for order in (claims, claims[::-1]):
        extents, gone = resolve_overlaps(order, lambda extent: extent.end <= 100)
        assert [extent.offset for extent in extents] == kept
        assert sorted(gone) == [name.encode() for name in dropped]
