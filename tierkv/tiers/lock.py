"""One process per folder: `flock` on the file `LOCK`, which dies with its holder, so that there is no stale lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from tierkv.errors import ConflictError, InvalidRequestError


class FolderLock:
    """Holds `folder`/LOCK from construction to `close`. Raises ConflictError that names the process id of the holder, and
    InvalidRequestError for a folder that cannot be written.

    The descriptor must never be passed to another process: the lock would outlive us with it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._fd: int | None = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidRequestError("the folder cannot be written", folder=folder, error=error.strerror) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            self.close()
            raise ConflictError(
                "another process holds the folder; stop it, or give this one a folder of its own", folder=folder, pid=holder or "?"
            ) from error
        with contextlib.suppress(OSError):  # on a full disk the lock is as good, only nameless
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Lets go; may be called twice. The file stays: removing it would race with the next holder."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
