"""Data folders: whose they are, and who may open them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tierkv.errors import ConflictError, DataError, InvalidRequestError
from tierkv.tiers.disk import DataFolder


def test_a_new_folder_is_private_and_keeps_its_store_id(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    folder = DataFolder.open(path)
    assert path.stat().st_mode & 0o777 == 0o700
    assert len(folder.store_id) == 16
    assert (path / "FORMAT").read_text() == f"tierkv-data 1\nstore {folder.store_id.hex()}\n"
    folder.close()
    folder.close()
    again = DataFolder.open(path)
    assert again.store_id == folder.store_id
    again.close()
    other = DataFolder.open(tmp_path / "other")
    assert other.store_id != folder.store_id
    other.close()


def test_a_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path)
    script = "import sys, pathlib; from tierkv.tiers.disk import DataFolder; DataFolder.open(pathlib.Path(sys.argv[1]))"
    child = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert (
        f"ConflictError: another process holds the folder; stop it, or give this one a folder of its own: folder='{tmp_path}', pid='{os.getpid()}'"
        in child.stderr
    )
    folder.close()


def test_the_lock_of_a_dead_process_is_none(tmp_path: Path) -> None:
    script = (
        "import sys, os, pathlib; from tierkv.tiers.disk import DataFolder; DataFolder.open(pathlib.Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 9
    assert (tmp_path / "LOCK").read_text().strip().isdigit()
    DataFolder.open(tmp_path).close()


def test_a_conflict_within_one_process_is_one_too(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path)
    with pytest.raises(ConflictError):
        DataFolder.open(tmp_path)
    folder.close()


def content(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"FORMAT": b"tierkv-data 2\nstore 00\nanything newer\n"}, "newer version"),
        ({"FORMAT": b"something else\n"}, "cannot be read"),
        ({"FORMAT": b""}, "cannot be read"),
        ({"FORMAT": b"tierkv-data 1\n"}, "does not name the store"),
        ({"FORMAT": b"tierkv-data 1\nstore abcd\n"}, "16 bytes"),
        ({"thesis.tex": b"years of work"}, "choose an empty one"),
    ],
)
def test_what_is_not_ours_is_refused_and_untouched(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        DataFolder.open(tmp_path)
    assert content(tmp_path) == files


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidRequestError, match="is a file"):
        DataFolder.open(tmp_path / "file")


def test_a_creation_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text("17\n")
    (tmp_path / "FORMAT.new").write_text("tierkv-da")
    DataFolder.open(tmp_path).close()
    assert (tmp_path / "FORMAT").read_text().startswith("tierkv-data 1\n")
