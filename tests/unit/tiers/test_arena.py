"""The arena and its map: memory behind every extent, also where there is not enough."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tierkv.errors import ClosedError, InternalError
from tierkv.mapping import ArenaMap
from tierkv.model.outcomes import Extent
from tierkv.tiers.arena import Arena

MIB = 1 << 20


def test_content_waits_for_the_next_process_and_another_length_starts_anew(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 2 * MIB + 5)
    assert (arena.is_new, arena.size_bytes) == (True, 2 * MIB)
    (extent,) = arena.reserve(1, 5000)
    assert extent == Extent(0, 8192)
    arena.view(extent)[:5] = b"hello"
    arena.close()
    arena.close()

    arena = Arena(tmp_path, 2 * MIB)
    assert not arena.is_new
    assert arena.used_bytes == 0
    arena.claim([extent])
    assert bytes(arena.view(extent)[:5]) == b"hello"
    assert arena.used_bytes == 8192
    held = arena.view(extent)
    arena.close()

    other = Arena(tmp_path, MIB)
    assert other.is_new
    assert bytes(held[:5]) == b"hello", "whoever mapped the old arena keeps it"
    assert bytes(other.view(extent)[:5]) == bytes(5)
    del held
    other.close(discard=True)
    assert not (tmp_path / "arena").exists()


def test_prefault_goes_from_low_to_high_until_it_is_told_to_stop(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 40 * MIB)
    answers = iter([False, False, True])
    arena.prefault(lambda: next(answers))
    assert arena.prefaulted_bytes == 32 * MIB
    assert (tmp_path / "arena").stat().st_blocks * 512 == 32 * MIB
    arena.prefault(lambda: False)
    assert arena.prefaulted_bytes == 40 * MIB
    assert arena.degraded is None
    arena.close()


class Memory:
    """posix_fallocate on a machine with `room_bytes` of memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self.calls: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "posix_fallocate", self.fallocate)

    def fallocate(self, fd: int, offset: int, length: int) -> None:
        if length > self.room_bytes:
            raise OSError(errno.ENOSPC, "no space left on device")
        self.room_bytes -= length
        self.calls.append((offset, length))


def test_an_extent_has_memory_behind_it_before_it_is_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch, 100 * MIB)
    arena = Arena(tmp_path, 20 * MIB + 4096)
    arena.reserve(3, MIB // 2)
    assert memory.calls == [(0, MIB), (MIB, MIB)], "grain by grain, each once"
    arena.prefault(lambda: False)
    memory.calls.clear()
    assert len(arena.reserve(40, MIB)) == 18
    assert memory.calls == [], "what was prefaulted is there"
    arena.close()


def test_memory_that_runs_out_makes_the_arena_smaller_and_kills_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch, 3 * MIB)
    arena = Arena(tmp_path, 8 * MIB)
    first = arena.reserve(2, MIB)
    assert arena.reserve(4, MIB) == [Extent(2 * MIB, MIB)], "what has memory is still to be had"
    assert arena.reserve(1, MIB) == []
    assert "give less host memory" in str(arena.degraded)
    assert arena.used_bytes == 3 * MIB
    arena.release(first)
    assert arena.used_bytes == MIB
    assert arena.reserve(3, MIB) == [Extent(0, MIB), Extent(MIB, MIB)], "and used again"
    assert memory.room_bytes == 0
    arena.check_integrity()
    arena.close()


def test_prefault_survives_a_machine_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(monkeypatch, 20 * MIB)
    arena = Arena(tmp_path, 64 * MIB)
    arena.prefault(lambda: False)
    assert arena.prefaulted_bytes == 16 * MIB
    assert "16777216 of 67108864 bytes" in str(arena.degraded)
    assert len(arena.reserve(64, MIB)) == 16
    arena.close()


def test_other_failures_are_not_taken_for_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    arena = Arena(tmp_path, MIB)
    with pytest.raises(OSError, match="input/output"):
        arena.prefault(lambda: False)
    arena.close()


def test_a_map_shows_ranges_and_outlives_its_close_for_who_holds_them(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    fd = os.open(path, os.O_RDWR)
    mapping = ArenaMap(fd, 8192)
    os.close(fd)
    view = mapping.view(4096, 100)
    view[0] = 7
    mapping.populate(4000, 200)
    for wrong in ((-1, 10), (8000, 193), (0, -1)):
        with pytest.raises(InternalError, match="outside"):
            mapping.view(*wrong)
    mapping.close()
    mapping.close()
    mapping.populate(0, 4096)
    with pytest.raises(ClosedError):
        mapping.view(0, 1)
    assert view[0] == 7
    assert path.read_bytes()[4096] == 7


def test_a_map_is_never_longer_than_its_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, pytest.raises(InternalError, match="shorter"):
        ArenaMap(file.fileno(), 8192)


def test_a_read_only_map_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)
    with path.open("rb") as file:
        mapping = ArenaMap(file.fileno(), 4096, writable=False)
    mapping.populate(0, 4096)
    assert mapping.view(0, 1).readonly
    mapping.close()
