"""Opening an index where the disk is full, the lock cannot be named, or pages are damaged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tierkv.errors import ConflictError, DataError
from tierkv.tiers.environment import open_environment
from tierkv.tiers.lock import FolderLock


def test_the_lock_file_has_blocks_behind_all_of_it_before_it_is_mapped(tmp_path: Path) -> None:
    environment, _ = open_environment(tmp_path / "index", [b"blocks"], map_bytes=1 << 20, is_durable=False)
    environment.close()
    found = (tmp_path / "index" / "lock.mdb").stat()
    assert found.st_size == 8192  # LMDB neither lengthened nor shortened it
    assert found.st_blocks * 512 >= found.st_size


def test_a_disk_without_room_for_the_lock_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "lock.mdb").symlink_to("/dev/full")
    with pytest.raises(DataError, match="cannot be opened"):
        open_environment(tmp_path / "index", [b"blocks"], map_bytes=1 << 20, is_durable=False)


def test_a_folder_is_locked_even_where_the_holder_cannot_be_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = FolderLock(tmp_path)
    with pytest.raises(ConflictError):
        FolderLock(tmp_path)
    lock.close()
