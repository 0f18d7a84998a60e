"""The arena's index forgets rather than lies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from tierkv.model.outcomes import Extent
from tierkv.testing.tier_suite import key_of, record_of
from tierkv.tiers.arena_index import ArenaIndex
from tierkv.tiers.records import Placed

STORE = bytes(range(16))
ARENA_BYTES = 1 << 20
PLACE_BYTES = 20_480


def placed(number: int, position: int) -> Placed:
    return record_of(number), Extent(position * PLACE_BYTES, PLACE_BYTES)


def fits(extent: Extent) -> bool:
    return extent.end <= ARENA_BYTES


def open_index(folder: Path, store: bytes = STORE, arena_bytes: int = ARENA_BYTES) -> ArenaIndex:
    return ArenaIndex(folder, store_id=store, arena_bytes=arena_bytes)


def fill(folder: Path) -> None:
    index = open_index(folder)
    index.update([placed(1, 1), placed(2, 2)], [])
    index.close()
    index.close()


def test_records_come_back_oldest_first(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    index.update([placed(3, 0), placed(1, 1), placed(2, 2)], [])
    index.update([placed(4, 3)], [key_of(1), key_of(9)])
    index.close()
    index = open_index(tmp_path)
    assert index.load(fits) == [placed(2, 2), placed(3, 0), placed(4, 3)]
    index.clear()
    assert index.keys() == set()
    index.close()


@pytest.mark.parametrize(("store", "arena_bytes"), [(bytes(16), ARENA_BYTES), (STORE, ARENA_BYTES * 2)], ids=["store", "length"])
def test_an_index_of_something_else_starts_empty(
    tmp_path: Path, store: bytes, arena_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path)
    index = open_index(tmp_path, store, arena_bytes)
    assert index.load(fits) == []
    assert f"another {'store' if store != STORE else 'arena_bytes'}" in caplog.text
    index.close()


def no_database(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def cut_short(path: Path) -> None:
    os.truncate(path, 3 * 4096)


def half_a_page(path: Path) -> None:
    os.truncate(path, 100)


@pytest.mark.parametrize("harm", [no_database, cut_short, half_a_page])
def test_a_damaged_index_starts_empty(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    fill(tmp_path)
    harm(tmp_path / "index" / "data.mdb")
    index = open_index(tmp_path)
    assert index.load(fits) == []
    index.update([placed(5, 0)], [])
    index.close()
    index = open_index(tmp_path)
    assert index.load(fits) == [placed(5, 0)]
    index.close()


def test_records_that_cannot_be_right_are_dropped_for_good(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    short = (record_of(7), Extent(10 * PLACE_BYTES, 4096))
    index.update([placed(1, 1), placed(2, 1), placed(3, 500), short, placed(4, 4)], [])
    with index._environment().begin(write=True, db=index._blocks) as txn:
        txn.put(b"x" * 32, b"no record")
    assert index.load(fits) == [placed(2, 1), placed(4, 4)]
    assert index.keys() == {key_of(2), key_of(4)}
    index.close()


def test_where_a_change_cannot_be_written_everything_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a deleted block would be back after a restart."""
    index = open_index(tmp_path)
    index.update([placed(1, 1), placed(2, 2)], [])
    real = index._environment()

    class Full:
        def begin(self, **options: object) -> None:
            raise lmdb.MapFullError("no room")

        def close(self) -> None:
            real.close()

    monkeypatch.setattr(index, "_env", Full())
    index.update([], [key_of(1)])
    assert "cannot be written" in str(index.degraded)
    assert index.keys() == set()
    index.update([placed(3, 3)], [])
    assert index.load(fits) == [placed(3, 3)]
    index.close()
