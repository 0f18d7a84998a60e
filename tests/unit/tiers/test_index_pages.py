"""Damaged pages are found before LMDB meets them: it would end the process with an assertion or a wild read."""

from __future__ import annotations

import struct
from pathlib import Path

import lmdb
import pytest

from tierkv.errors import DataError
from tierkv.tiers.index_pages import check_pages

PAGE = 4096


@pytest.fixture
def index(tmp_path: Path) -> tuple[Path, int]:
    """A file with branches, leaves, overflow pages and free pages; and how many pages of the largest tree are in use."""
    with lmdb.open(str(tmp_path), max_dbs=2, sync=False) as environment:
        blocks, large = environment.open_db(b"blocks"), environment.open_db(b"large")
        for round_number in range(4):
            with environment.begin(write=True) as txn:
                for number in range(400):
                    txn.put(struct.pack("<IQ", number * 7919 % 1009, round_number), bytes(144), db=blocks)
                txn.put(b"long", bytes(3 * PAGE), db=large)
        with environment.begin() as txn:
            stat = txn.stat(blocks)
    return tmp_path / "data.mdb", stat["branch_pages"] + stat["leaf_pages"]


def test_a_sound_file_and_no_file_pass(index: tuple[Path, int], tmp_path: Path) -> None:
    check_pages(index[0])
    check_pages(tmp_path / "none")


@pytest.mark.parametrize("damage", ["number", "flags", "bounds", "pointers", "whole"])
def test_a_damaged_page_is_found(index: tuple[Path, int], damage: str) -> None:
    path, used_pages = index
    sound = path.read_bytes()
    start, stop = {"number": (0, 8), "flags": (10, 12), "bounds": (12, 16), "pointers": (16, 20), "whole": (0, PAGE)}[damage]
    found = 0
    for page in range(2 * PAGE, len(sound), PAGE):
        path.write_bytes(sound[: page + start] + b"\xff" * (stop - start) + sound[page + stop :])
        try:
            check_pages(path)
        except DataError:
            found += 1
    assert found >= used_pages > 20


def test_a_free_page_that_is_in_use_is_found(index: tuple[Path, int]) -> None:
    path, _ = index
    content = bytearray(path.read_bytes())
    metas = [struct.unpack_from("<Q", content, number * PAGE + 16 + 24 + 96 + 8)[0] for number in (0, 1)]
    database_at = metas.index(max(metas)) * PAGE + 16 + 24
    free_root, main_root = (struct.unpack_from("<Q", content, database_at + 48 * number + 40)[0] for number in (0, 1))
    node = free_root * PAGE + struct.unpack_from("<H", content, free_root * PAGE + 16)[0]
    struct.pack_into("<Q", content, node + 8 + 8 + 8, main_root)  # behind header, key and count: the first free page
    path.write_bytes(content)
    with pytest.raises(DataError, match="used twice"):
        check_pages(path)


def test_a_short_file_and_foreign_content_are_found(index: tuple[Path, int]) -> None:
    path, _ = index
    content = path.read_bytes()
    for wrong in (content[: PAGE + 100], content[: 5 * PAGE], b"x" * len(content)):
        path.write_bytes(wrong)
        with pytest.raises(DataError):
            check_pages(path)
