"""Opening an LMDB environment that may be damaged: the one place where LMDB's own errors at opening become DataError.

LMDB maps its file. A file that was cut short behind its back would kill the process with SIGBUS at the first page that is missing,
so its length is compared with what its meta page says before anything is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import lmdb

from tierkv.errors import DataError
from tierkv.tiers.extents import round_up
from tierkv.tiers.index_pages import check_pages

_READERS = 64
"""Read transactions at one time; each call of a tier holds at most one."""
_LOCK_BYTES = 8192
"""What LMDB takes for the lock file of so many readers: a header and 64 bytes each, in whole pages."""


def open_environment(
    path: Path, databases: Sequence[bytes], *, map_bytes: int, is_durable: bool
) -> tuple[lmdb.Environment, list[lmdb._Database]]:
    """The environment in the folder `path` (made where missing, mode 0700) and handles of its named databases, in order.

    map_bytes — the size it may grow to, rounded up to pages; is_durable — commits are synced.
    Raises DataError for an environment that LMDB refuses or that was cut short; nothing stays open then.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        check_pages(path / "data.mdb")
        _fill_lock_file(path / "lock.mdb")
        environment = lmdb.open(
            str(path),
            map_size=round_up(map_bytes),
            max_dbs=len(databases),
            max_readers=_READERS,
            mode=0o600,
            sync=is_durable,
            metasync=is_durable,
        )
    except (OSError, lmdb.Error) as error:
        raise DataError("an index cannot be opened; it is damaged, or its disk is full", path=path, error=error) from error
    try:
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        found = (path / "data.mdb").stat().st_size
        if found < needed:
            raise DataError("an index file was cut short", path=path, length=found, needed=needed)
        return environment, [environment.open_db(name) for name in databases]
    except lmdb.Error as error:
        environment.close()
        raise DataError("an index cannot be read; it is damaged, or its disk is full", path=path, error=error) from error
    except DataError:
        environment.close()
        raise


def _fill_lock_file(path: Path) -> None:
    """LMDB makes this file as a hole and writes to it through a map, which on a full disk is SIGBUS. Raises OSError instead."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "ab") as file:
        missing = _LOCK_BYTES - os.fstat(fd).st_size
        if missing > 0:
            file.write(bytes(missing))
