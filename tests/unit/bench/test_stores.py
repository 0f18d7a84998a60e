"""Waiting for a warm arena looks at the memory behind the file, not at its length."""

import os
import threading

import pytest

from tierkv.errors import UnavailableError
from tierkv_bench import stores


def test_a_full_arena_is_warm_at_once(tmp_path):
    arena = tmp_path / "arena"
    with arena.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    stores.wait_for_arena(arena)


def test_a_sparse_arena_is_waited_for(tmp_path, monkeypatch):
    arena = tmp_path / "arena"
    with arena.open("wb") as file:
        file.truncate(1 << 20)
        monkeypatch.setattr(stores, "PREFAULT_TIMEOUT_S", 0.05)
        with pytest.raises(UnavailableError, match="did not become warm"):
            stores.wait_for_arena(arena)
        monkeypatch.setattr(stores, "PREFAULT_TIMEOUT_S", 30.0)
        prefault = threading.Thread(target=os.posix_fallocate, args=(file.fileno(), 0, 1 << 20))
        prefault.start()
        stores.wait_for_arena(arena)
        prefault.join()
