"""Where the daemon's sockets are, and whether that place can be trusted. docs/protocol.md, "Run folder".

On a shared machine anybody can create `/tmp/tierkv-<uid>`, so daemon and client both look before they open anything in it.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from tierkv.errors import InvalidRequestError, UnavailableError

GRPC_SOCKET_NAME = "tierkvd.sock"
ATTACH_SOCKET_NAME = "attach.sock"
LOCK_NAME = "tierkvd.lock"
RUN_DIR_VARIABLE = "TIERKV_RUN_DIR"
SOCKET_PATH_BYTES = 107
"""`sun_path` has 108 bytes with its closing zero (unix(7))."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one daemon's sockets."""

    path: Path

    @property
    def grpc_socket(self) -> Path:
        return self.path / GRPC_SOCKET_NAME

    @property
    def attach_socket(self) -> Path:
        return self.path / ATTACH_SOCKET_NAME

    @property
    def lock_file(self) -> Path:
        return self.path / LOCK_NAME


def default_run_folder() -> Path:
    """`$TIERKV_RUN_DIR` where it is set, for the daemon and its clients alike; else `$XDG_RUNTIME_DIR/tierkv`, or
    `/tmp/tierkv-<uid>` where that variable is unset or not an absolute path.
    """
    chosen = os.environ.get(RUN_DIR_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return Path(runtime) / "tierkv"
    return Path(f"/tmp/tierkv-{os.getuid()}")  # noqa: S108 -- checked with lstat before anything in it is used


def create_run_folder(path: Path | None = None) -> RunFolder:
    """The daemon's side: makes the folder (0700) where it is missing, then checks it.

    Raises InvalidRequestError for a folder that others could write to or that is not ours, and for a path too long for a socket.
    """
    folder = _absolute(path)
    try:
        os.makedirs(folder.parent, exist_ok=True)
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise InvalidRequestError("the run folder cannot be made", run_folder=folder, error=error.strerror) from error
    return _checked(folder)


def find_run_folder(path: Path | None = None) -> RunFolder:
    """The client's side: the same checks. Raises UnavailableError where there is no such folder (no daemon ever ran here)."""
    return _checked(_absolute(path))


def check_socket_path(path: Path) -> None:
    """Raises InvalidRequestError for a path that does not fit in a socket address."""
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES:
        raise InvalidRequestError(
            "the path of a unix socket is too long; choose a shorter run folder", path=path, length=length, limit=SOCKET_PATH_BYTES
        )


def _absolute(path: Path | None) -> Path:
    # abspath and not resolve: a symbolic link must be seen, not followed.
    return Path(os.path.abspath(path if path is not None else default_run_folder()))


def _checked(folder: Path) -> RunFolder:
    run = RunFolder(folder)
    check_socket_path(run.grpc_socket)
    try:
        status = os.lstat(folder)
    except FileNotFoundError as error:
        raise UnavailableError("no daemon here: the run folder does not exist; start `tierkv serve`", run_folder=folder) from error
    except OSError as error:
        raise InvalidRequestError("the run folder cannot be read", run_folder=folder, error=error.strerror) from error
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidRequestError("the run folder is not a folder (a symbolic link is not followed)", run_folder=folder)
    # Root may use a daemon of another user, as the attach socket lets root in.
    if status.st_uid != os.getuid() and os.getuid() != 0:
        raise InvalidRequestError("the run folder belongs to another user", run_folder=folder, owner=status.st_uid)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise InvalidRequestError(
            "the run folder is open to others; make it private with chmod 700", run_folder=folder, mode=f"{mode:04o}"
        )
    return run
