"""The data folder: whose it is, which format it has, and that one process uses it (`docs/format.md`, "Data folder")."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tierkv.errors import DataError, InvalidRequestError
from tierkv.tiers.lock import FolderLock

DATA_FORMAT_VERSION = 1
_FORMAT = "FORMAT"
_STORE_ID_BYTES = 16
_FORMAT_LIMIT_BYTES = 4096


class DataFolder:
    """A locked data folder. store_id — 16 random bytes made with the folder; they tell stores apart."""

    def __init__(self, path: Path, store_id: bytes, lock: FolderLock) -> None:
        self.path = path
        self.store_id = store_id
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> DataFolder:
        """Opens, or makes, the folder at `path` and locks it.

        Raises ConflictError when another process holds it, DataError (nothing touched) when it has a newer format or is not a
        data folder at all, InvalidRequestError for a place where no folder can be.
        """
        try:
            if path.exists() and not path.is_dir():
                raise InvalidRequestError("the data folder is a file", path=path)
            _check_ours(path)
            if not path.exists():
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(path.parent)
        except OSError as error:
            raise InvalidRequestError("the data folder cannot be made or read", path=path, error=error.strerror) from error
        lock = FolderLock(path)
        try:
            store_id = _read_format(path / _FORMAT) if (path / _FORMAT).exists() else _write_format(path)
        except BaseException:
            lock.close()
            raise
        return cls(path, store_id, lock)

    def close(self) -> None:
        """Lets go of the lock; may be called twice."""
        self._lock.close()


def _check_ours(path: Path) -> None:
    """Before anything is written: a folder with a FORMAT must be readable by us, one without must be empty."""
    if not path.exists():
        return
    if (path / _FORMAT).exists():
        _read_format(path / _FORMAT)
        return
    strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in ("LOCK", "FORMAT.new"))
    if strangers:
        raise DataError(
            "this folder holds other files and no FORMAT: not a data folder; choose an empty one", path=path, found=strangers[0]
        )


def _read_format(path: Path) -> bytes:
    lines = path.read_bytes()[:_FORMAT_LIMIT_BYTES].decode("ascii", "replace").splitlines()
    words = lines[0].split() if lines else []
    if len(words) != 2 or words[0] != "tierkv-data" or not words[1].isdigit():
        raise DataError("FORMAT cannot be read; this is not a data folder, or it is damaged", path=path, content="".join(lines[:1]))
    if int(words[1]) > DATA_FORMAT_VERSION:
        raise DataError(
            "this data folder was written by a newer version; upgrade tierkv, or choose another folder",
            path=path.parent,
            version=words[1],
            supported=DATA_FORMAT_VERSION,
        )
    try:
        store = bytes.fromhex(lines[1].removeprefix("store "))
    except (IndexError, ValueError) as error:
        raise DataError("FORMAT does not name the store", path=path) from error
    if len(store) != _STORE_ID_BYTES:
        raise DataError("FORMAT names a store by 16 bytes", path=path, length=len(store))
    return store


def _write_format(path: Path) -> bytes:
    store_id = secrets.token_bytes(_STORE_ID_BYTES)
    fresh = path / f"{_FORMAT}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"tierkv-data {DATA_FORMAT_VERSION}\nstore {store_id.hex()}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.rename(path / _FORMAT)
    sync_folder(path)
    return store_id


def sync_folder(path: Path) -> None:
    """Makes creations and renames in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
