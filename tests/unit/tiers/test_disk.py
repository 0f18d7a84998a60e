"""The disk tier beyond the contract: its layout, recovery, quarantine, scrub and namespaces."""

from __future__ import annotations

import dataclasses
import logging
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tierkv.codecs.frame import FrameCodec
from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.keys import NamespaceId
from tierkv.model.outcomes import Extent
from tierkv.settings import DiskSettings
from tierkv.testing.faulty_io import FailingIO
from tierkv.testing.tier_suite import content_of, get, key_of, put, record_of
from tierkv.tiers.base import GetOutcome, PutOutcome
from tierkv.tiers.disk import DiskTier
from tierkv.tiers.disk.io import FileIO, SegmentFile, SegmentIO

KIB = 1024
SIZE = 8192
FRAME = 12 * KIB
SETTINGS = DiskSettings(96 * KIB, segment_bytes=48 * KIB, quarantine_entries=2)
"""Two segments of four frames."""
HIT, MISS, DAMAGED = GetOutcome.HIT, GetOutcome.MISS, GetOutcome.DAMAGED
STORED, NO_SPACE = PutOutcome.STORED, PutOutcome.NO_SPACE


def open_disk(folder: Path, settings: DiskSettings = SETTINGS, io: SegmentIO | None = None) -> DiskTier:
    return DiskTier(folder, settings, FrameCodec(), io=io)


def place_of(tier: DiskTier, number: int) -> Extent:
    placed = tier._index.get([key_of(number)])[0]
    assert placed is not None
    return placed[1]


def flip(folder: Path, address: int) -> None:
    """Flips a bit of the segment space."""
    path = folder / "segments" / f"{address // SETTINGS.segment_bytes:08d}.seg"
    data = bytearray(path.read_bytes())
    data[address % SETTINGS.segment_bytes] ^= 1
    path.write_bytes(data)


def test_frames_lie_as_the_format_says(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    assert list((tmp_path / "segments").iterdir()) == [], "segments are made when they are needed"
    put(tier, [1, 2], SIZE)
    tier.close()
    data = (tmp_path / "segments" / "00000000.seg").read_bytes()
    assert len(data) == 48 * KIB
    for number, start in ((1, 0), (2, FRAME)):
        assert data[start : start + 256] == FrameCodec().seal(record_of(number, SIZE))
        assert data[start + 256 : start + 4096] == bytes(3840)
        assert data[start + 4096 : start + FRAME] == content_of(number, SIZE)
    assert not (tmp_path / "segments" / "00000001.seg").exists()


def test_memory_on_page_boundaries_is_used_as_it_is_and_other_memory_too(tmp_path: Path) -> None:
    memory = memoryview(mmap.mmap(-1, 64 * KIB))
    tier = open_disk(tmp_path)
    sources = [memory[:SIZE], memory[16 * KIB + 8 : 16 * KIB + 8 + SIZE], memory[32 * KIB : 32 * KIB + SIZE]]
    for number, source in enumerate(sources):
        source[:] = content_of(number, SIZE)
    assert tier.put([(record_of(number, SIZE), source) for number, source in enumerate(sources)]) == [STORED] * 3
    memory[:] = bytes(64 * KIB)
    assert tier.get([key_of(number) for number in range(3)], sources) == [HIT] * 3
    assert [bytes(source) for source in sources] == [bytes(content_of(number, SIZE)) for number in range(3)]
    tier.close()


def test_adjacent_frames_move_with_one_call(tmp_path: Path) -> None:
    medium = FailingIO(FileIO(direct=True))
    tier = open_disk(tmp_path, io=medium)
    put(tier, range(6), SIZE)
    assert [name for name in medium.operations if name in ("write", "sync")] == ["write", "write", "sync", "sync"]
    medium.operations.clear()
    assert get(tier, [5, 0, 2, 1, 4, 3], SIZE) == [HIT] * 6
    assert medium.operations == ["read", "read"], "in the order of the disk, one for each segment"
    tier.close()


def test_a_payload_longer_than_a_segment_is_refused(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    assert put(tier, [1], 48 * KIB) == [NO_SPACE]
    assert put(tier, [1], 44 * KIB) == [STORED]
    tier.close()


def test_buffers_of_the_wrong_length_are_the_callers_mistake(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    with pytest.raises(InvalidRequestError, match="payload"):
        tier.put([(record_of(1, SIZE), content_of(1, SIZE - 1))])
    put(tier, [1], SIZE)
    with pytest.raises(InvalidRequestError, match="target"):
        tier.get([key_of(1)], [memoryview(bytearray(SIZE + 1))])
    assert get(tier, [1], SIZE) == [HIT]
    tier.check_integrity()
    tier.close()


# -- damage


@pytest.mark.parametrize("where", [0, 40, 200, 4096, FRAME - 1], ids=["magic", "key", "header", "payload", "last byte"])
def test_a_flipped_bit_anywhere_in_a_frame_is_found(tmp_path: Path, where: int) -> None:
    tier = open_disk(tmp_path)
    put(tier, [1, 2, 3], SIZE)
    flip(tmp_path, place_of(tier, 2).offset + where)
    assert get(tier, [1, 2, 3], SIZE) == [HIT, DAMAGED, HIT]
    assert get(tier, [1, 2, 3], SIZE) == [HIT, MISS, HIT]
    assert [(item.placed[0], item.placed[1]) for item in tier.quarantined()] == [(record_of(2, SIZE), Extent(FRAME, FRAME))]
    tier.close()


def test_a_truncated_segment_costs_what_was_cut_off(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    put(tier, [1, 2, 3, 4], SIZE)
    os.truncate(tmp_path / "segments" / "00000000.seg", 2 * FRAME + 5000)
    assert get(tier, [1, 2, 3, 4], SIZE) == [HIT, HIT, DAMAGED, DAMAGED]
    assert {item.problem for item in tier.quarantined()} == {"the segment ends before the frame does"}
    tier.close()
    tier = open_disk(tmp_path)
    assert put(tier, range(10, 14), SIZE) == [STORED] * 4
    assert get(tier, [1, 2, 10, 11, 12, 13], SIZE) == [HIT] * 6
    tier.check_integrity()
    tier.close()


def test_a_lost_segment_file_costs_its_blocks_and_is_made_again(tmp_path: Path) -> None:
    tier = open_disk(tmp_path, dataclasses.replace(SETTINGS, quarantine_entries=0))
    put(tier, range(8), SIZE)
    tier.close()
    (tmp_path / "segments" / "00000000.seg").unlink()
    tier = open_disk(tmp_path, dataclasses.replace(SETTINGS, quarantine_entries=0))
    assert get(tier, range(8), SIZE) == [DAMAGED] * 4 + [HIT] * 4
    assert put(tier, range(10, 14), SIZE) == [STORED] * 4
    assert get(tier, range(10, 14), SIZE) == [HIT] * 4
    tier.check_integrity()
    tier.close()


def test_quarantine_keeps_the_newest_and_gives_way_to_new_blocks(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    put(tier, range(8), SIZE)
    for number in (0, 1, 2):
        flip(tmp_path, place_of(tier, number).offset)
        assert get(tier, [number], SIZE) == [DAMAGED]
        tier.check_integrity()
    assert [item.placed[0].generation for item in tier.quarantined()] == [1, 2]
    assert tier.used_bytes == 7 * FRAME
    tier.close()

    tier = open_disk(tmp_path)
    assert [item.placed[0].generation for item in tier.quarantined()] == [1, 2], "it lasts"
    assert tier.used_bytes == 7 * FRAME
    assert put(tier, [10], SIZE) == [STORED]
    assert len(tier.quarantined()) == 2
    assert put(tier, [11, 12, 13], SIZE) == [STORED, STORED, NO_SPACE]
    assert tier.quarantined() == []
    tier.check_integrity()
    tier.close()


def test_scrub_reads_everything_and_moves_nothing(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    put(tier, range(5), SIZE)
    flip(tmp_path, place_of(tier, 4).offset + 5000)
    found = list(tier.scrub())
    assert [record for record, _, _ in found] == [record_of(number, SIZE) for number in range(5)]
    assert [where for _, where, _ in found][-2:] == ["segments/00000000.seg at 36864", "segments/00000001.seg at 0"]
    assert [problem is None for _, _, problem in found] == [True] * 4 + [False]
    assert tier.quarantined() == []
    assert len(tier) == 5
    scrub = tier.scrub()
    next(scrub)
    tier.delete([key_of(1)])
    assert [record.generation for record, _, _ in scrub] == [2, 3, 4], "a block deleted meanwhile is left out"
    tier.check_integrity()
    tier.close()


# -- concurrency


class DeletingIO(FileIO):
    """Calls `on_read` between the look-up of a get and its read."""

    def __init__(self) -> None:
        super().__init__(direct=False)
        self.on_read = lambda: None

    def open(self, path: Path) -> SegmentFile:
        return _HookedFile(super().open(path), self)


class _HookedFile:
    def __init__(self, inner: SegmentFile, medium: DeletingIO) -> None:
        self._inner = inner
        self._medium = medium
        self.write, self.sync, self.close = inner.write, inner.sync, inner.close

    def read(self, buffers: Sequence[memoryview], offset: int) -> int:
        hook, self._medium.on_read = self._medium.on_read, lambda: None
        hook()
        return self._inner.read(buffers, offset)


def test_a_delete_that_overtakes_a_read_does_not_reuse_its_place(tmp_path: Path) -> None:
    medium = DeletingIO()
    tier = open_disk(tmp_path, io=medium)
    put(tier, range(8), SIZE)

    def overtake() -> None:
        assert tier.delete([key_of(3)]) == 1
        assert put(tier, [9], SIZE) == [NO_SPACE]
        tier.check_integrity()

    medium.on_read = overtake
    assert get(tier, [3], SIZE) == [HIT]
    assert get(tier, [3], SIZE) == [MISS]
    assert put(tier, [9], SIZE) == [STORED]
    tier.check_integrity()
    tier.close()


# -- opening


def test_records_that_cannot_be_right_are_forgotten(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    put(tier, [1, 2], SIZE)
    lies = [
        (record_of(5, SIZE), Extent(FRAME, FRAME)),
        (record_of(6, SIZE), Extent(96 * KIB, FRAME)),
        (record_of(7, SIZE), Extent(44 * KIB, FRAME)),
        (record_of(8, SIZE), Extent(100, FRAME)),
    ]
    tier._index.put(lies)
    tier.close()
    tier = open_disk(tmp_path)
    assert [record.generation for record in tier.records()] == [1, 5], "of two in one place the later stays"
    assert get(tier, [1, 2, 5, 6, 7, 8], SIZE) == [HIT, MISS, DAMAGED, MISS, MISS, MISS]
    tier.check_integrity()
    tier.close()


def test_an_index_that_lies_about_a_length_costs_that_block(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    put(tier, [1, 2], SIZE)
    tier._index.put([(dataclasses.replace(record_of(1, SIZE), payload_bytes=SIZE - 4096), place_of(tier, 1))])
    assert next(problem for _, _, problem in tier.scrub()) == "the index gives the payload another length than its extent"
    assert get(tier, [1, 2], SIZE) == [DAMAGED, HIT]
    tier.close()


def test_a_lower_capacity_forgets_what_lies_beyond_and_gives_the_space_back(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    put(tier, range(8), SIZE)
    tier.close()
    tier = open_disk(tmp_path, dataclasses.replace(SETTINGS, capacity_bytes=30 * KIB))
    assert tier.capacity_bytes == 28 * KIB
    assert get(tier, range(8), SIZE) == [HIT, HIT] + [MISS] * 6
    assert [(entry.name, entry.stat().st_size) for entry in (tmp_path / "segments").iterdir()] == [("00000000.seg", 28 * KIB)]
    tier.check_integrity()
    tier.close()
    tier = open_disk(tmp_path)
    assert put(tier, range(10, 16), SIZE) == [STORED] * 6
    assert get(tier, [0, 1, *range(10, 16)], SIZE) == [HIT] * 8
    tier.check_integrity()
    tier.close()


def test_the_segment_size_is_that_of_the_index(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    put(tier, range(4), SIZE)
    tier.close()
    tier = open_disk(tmp_path, dataclasses.replace(SETTINGS, segment_bytes=24 * KIB))
    assert get(tier, range(4), SIZE) == [HIT] * 4
    tier.close()
    with pytest.raises(InvalidRequestError, match="multiple of 4096"):
        open_disk(tmp_path, dataclasses.replace(SETTINGS, segment_bytes=5000))


def test_an_index_of_a_newer_format_is_refused_and_untouched(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    put(tier, [1], SIZE)
    with tier._index._env.begin(write=True, db=tier._index._meta) as txn:
        txn.put(b"format", (2).to_bytes(4, "little"))
    tier.close()
    before = (tmp_path / "index" / "data.mdb").read_bytes()
    for _ in range(2):  # and nothing stays open: the second attempt says the same
        with pytest.raises(DataError, match="newer format"):
            open_disk(tmp_path)
    assert (tmp_path / "index" / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("length", [0, 100, 3 * 4096])
def test_an_index_that_was_cut_short_is_refused(tmp_path: Path, length: int) -> None:
    tier = open_disk(tmp_path)
    put(tier, range(8), SIZE)
    tier.close()
    os.truncate(tmp_path / "index" / "data.mdb", length)
    if length == 0:
        tier = open_disk(tmp_path)  # LMDB takes an empty file for a new one
        assert len(tier) == 0
        assert put(tier, range(8), SIZE) == [STORED] * 8
        tier.close()
    else:
        with pytest.raises(DataError, match="index"):
            open_disk(tmp_path)


def test_without_its_index_everything_is_forgotten_and_nothing_else_breaks(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    put(tier, range(8), SIZE)
    tier.close()
    for name in ("data.mdb", "lock.mdb"):
        (tmp_path / "index" / name).unlink()
    tier = open_disk(tmp_path)
    assert get(tier, range(8), SIZE) == [MISS] * 8
    assert put(tier, range(20, 28), SIZE) == [STORED] * 8
    tier.close()


def test_namespaces_are_kept(tmp_path: Path) -> None:
    tier = open_disk(tmp_path)
    namespace = NamespaceId(key_of(1))
    canonical = '{"a":"ä","layout":{"shape":[1,2]},"z":""}'.encode()
    tier.put_namespace(namespace, canonical, "strict")
    tier.put_namespace(namespace, canonical, "interval")
    tier.close()
    tier = open_disk(tmp_path)
    assert tier.namespaces() == [(namespace, canonical, "interval")]
    tier.close()


def test_a_file_system_without_direct_io_is_served_buffered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse_direct(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "invalid argument")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse_direct)
    tier = open_disk(tmp_path)
    assert put(tier, [1], SIZE) == [STORED]
    assert get(tier, [1], SIZE) == [HIT]
    tier.close()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
