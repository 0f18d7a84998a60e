"""The two files of one tier's policy state. Every call may raise OSError; the keeper's answer is to go on without writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

CONTENT_BYTES_LIMIT = 1 << 33


class StateFiles(Protocol):
    """Where a policy's state lies."""

    def read_snapshot(self) -> bytes | None:
        """The content; None where there is no such file."""
        ...

    def read_log(self) -> bytes | None:
        """The content; None where there is no such file."""
        ...

    def replace_snapshot(self, pieces: Sequence[bytes]) -> None:
        """Puts a snapshot in the place of the one before; durable, and in one step."""
        ...

    def begin_log(self, header: bytes) -> None:
        """Empties the log and opens it for `append`."""
        ...

    def append(self, record: bytes) -> None:
        """One write at the log's end; not synced. Raises OSError where not all of it was written."""
        ...

    def close(self) -> None:
        """May be called twice."""
        ...


class FolderFiles:
    """`StateFiles` in a folder, which is made when it is first written to."""

    def __init__(self, folder: Path, tier: str) -> None:
        self._folder = folder
        self._snapshot = folder / f"{tier}.snapshot"
        self._log = folder / f"{tier}.log"
        self._log_fd: int | None = None

    def read_snapshot(self) -> bytes | None:
        return _read(self._snapshot)

    def read_log(self) -> bytes | None:
        return _read(self._log)

    def replace_snapshot(self, pieces: Sequence[bytes]) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        fresh = self._snapshot.with_suffix(".snapshot.new")
        try:
            with open(fresh, "wb", opener=_private) as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._snapshot)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        _sync_folder(self._folder)

    def begin_log(self, header: bytes) -> None:
        self.close()
        self._log_fd = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.append(header)

    def append(self, record: bytes) -> None:
        assert self._log_fd is not None, "a log is begun before it is appended to"
        written = os.write(self._log_fd, record)
        if written != len(record):
            raise OSError(f"only {written} of {len(record)} bytes were written")

    def close(self) -> None:
        if self._log_fd is not None:
            fd, self._log_fd = self._log_fd, None
            os.close(fd)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(path: Path) -> bytes | None:
    try:
        if path.stat().st_size > CONTENT_BYTES_LIMIT:
            raise OSError(f"{path.name} is larger than a policy's state can be")
        return path.read_bytes()
    except FileNotFoundError:
        return None
