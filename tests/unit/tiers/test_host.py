"""The host tier in place, and what a next process finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tierkv.codecs.checksum import checksum
from tierkv.errors import ConflictError, DataError
from tierkv.testing.tier_suite import content_of, get, key_of, put, record_of
from tierkv.tiers.base import GetOutcome
from tierkv.tiers.host import HostTier

MIB = 1 << 20
STORE = bytes(range(16))
SIZE = 20_000


def open_host(folder: Path, store: bytes = STORE, memory_bytes: int = MIB) -> HostTier:
    return HostTier(folder, memory_bytes, store_id=store, checksum=checksum)


def save(host: HostTier, numbers: list[int]) -> list[int]:
    """Blocks put the way the store does it; their offsets."""
    extents = host.reserve(len(numbers), SIZE)
    for number, extent in zip(numbers, extents, strict=True):
        host.view(extent)[:SIZE] = content_of(number, SIZE)
    host.adopt([(record_of(number, SIZE), extent) for number, extent in zip(numbers, extents, strict=True)])
    return [extent.offset for extent in extents]


def test_blocks_saved_in_place_are_found_by_key_and_by_the_next_process(tmp_path: Path) -> None:
    host = open_host(tmp_path / "arena")
    assert save(host, [1, 2, 3]) == [0, 20_480, 40_960]
    assert (host.used_bytes, host.footprint_bytes(SIZE)) == (61_440, 20_480)
    assert get(host, [1, 2, 3], SIZE) == [GetOutcome.HIT] * 3
    host.check_integrity()
    host.close()
    host.close()

    host = open_host(tmp_path / "arena")
    assert [record.generation for record, _ in host.recovered()] == [1, 2, 3]
    assert host.used_bytes == 61_440
    assert get(host, [1, 2, 3], SIZE) == [GetOutcome.HIT] * 3
    assert [extent.offset for extent in host.reserve(1, SIZE)] == [61_440], "what was recovered is not given out"
    host.close()


def test_forgetting_a_block_and_freeing_its_extent_are_two_steps(tmp_path: Path) -> None:
    host = open_host(tmp_path / "arena")
    save(host, [1, 2])
    extent = host.recovered()[0][1]
    host.forget([key_of(1), key_of(9)])
    assert key_of(1) not in host
    assert host.used_bytes == 40_960
    assert bytes(host.view(extent)[:SIZE]) == content_of(1, SIZE), "somebody may still look at it"
    host.release_extents([extent])
    assert host.used_bytes == 20_480
    assert host.reserve(1, SIZE) == [extent]
    host.close()
    host = open_host(tmp_path / "arena")
    assert [record.generation for record, _ in host.recovered()] == [2]
    host.close()


def test_a_reservation_that_died_unadopted_returns(tmp_path: Path) -> None:
    host = open_host(tmp_path / "arena")
    host.reserve(5, SIZE)
    host.close()
    host = open_host(tmp_path / "arena")
    assert host.used_bytes == 0
    host.close()


def test_bytes_torn_by_a_kill_are_not_believed(tmp_path: Path) -> None:
    host = open_host(tmp_path / "arena")
    save(host, [1, 2])
    host.view(host.recovered()[1][1])[SIZE - 1] ^= 1
    host.close()
    host = open_host(tmp_path / "arena")
    assert get(host, [1, 2], SIZE) == [GetOutcome.HIT, GetOutcome.DAMAGED]
    assert get(host, [1, 2], SIZE) == [GetOutcome.HIT, GetOutcome.MISS]
    assert host.used_bytes == 20_480
    host.close()


@pytest.mark.parametrize(("store", "memory_bytes"), [(bytes(16), MIB), (STORE, 2 * MIB)], ids=["other store", "other length"])
def test_an_arena_of_something_else_starts_empty(tmp_path: Path, store: bytes, memory_bytes: int) -> None:
    host = open_host(tmp_path / "arena")
    save(host, [1])
    host.close()
    host = open_host(tmp_path / "arena", store, memory_bytes)
    assert (host.recovered(), host.used_bytes, len(host)) == ([], 0, 0)
    host.close()


def test_an_arena_file_that_was_lost_empties_the_index(tmp_path: Path) -> None:
    host = open_host(tmp_path / "arena")
    save(host, [1])
    host.close()
    (tmp_path / "arena" / "arena").unlink()
    host = open_host(tmp_path / "arena")
    assert host.recovered() == []
    host.close()


def test_one_process_holds_the_folder(tmp_path: Path) -> None:
    host = open_host(tmp_path / "arena")
    with pytest.raises(ConflictError, match=f"pid='{os.getpid()}'"):
        open_host(tmp_path / "arena")
    put(host, [1], SIZE)
    host.close()
    open_host(tmp_path / "arena").close()


def test_a_folder_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "arena"
    folder.mkdir(mode=0o755)
    with pytest.raises(DataError, match="this user alone"):
        open_host(folder)
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(DataError, match="this user alone"):
        open_host(tmp_path / "link")
    assert list(real.iterdir()) == []


def test_discarding_leaves_nothing(tmp_path: Path) -> None:
    host = open_host(tmp_path / "arena")
    save(host, [1])
    host.close(discard=True)
    assert not (tmp_path / "arena").exists()


def test_a_constructor_that_fails_lets_go_of_everything(tmp_path: Path) -> None:
    (tmp_path / "arena").mkdir(mode=0o700)
    (tmp_path / "arena" / "index").write_bytes(b"a file where a folder belongs")
    with pytest.raises(DataError):
        open_host(tmp_path / "arena")
    (tmp_path / "arena" / "index").unlink()
    open_host(tmp_path / "arena").close()
