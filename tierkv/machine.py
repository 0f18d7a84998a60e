"""How much of this machine a store may take when nobody says: a share of what is free, within the limits of its cgroup.

Nothing here changes anything; every answer is in bytes and at least small enough to be harmless.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tierkv.settings import GIB, MIB

SHARED_MEMORY = Path("/dev/shm")
HOST_SHARE = 0.25
HOST_SHARE_OF_TMPFS = 0.5
HOST_BOUNDS_BYTES = (64 * MIB, 64 * GIB)
DISK_SHARE = 0.2
DISK_BOUNDS_BYTES = (256 * MIB, 512 * GIB)

_MEMINFO = Path("/proc/meminfo")
_OWN_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60


def default_arena_folder(data_folder: Path) -> Path:
    """A private folder in /dev/shm (beside the data where there is none), named after user and data folder."""
    name = hashlib.sha256(str(data_folder.resolve()).encode()).hexdigest()[:16]
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        return SHARED_MEMORY / f"tierkv-{os.getuid()}-{name}"
    return data_folder / "arena"


def default_host_bytes(arena_folder: Path) -> int:
    """A quarter of the memory that is available, at most half of what is free where the arena is, between 64 MiB and 64 GiB.

    An arena that lies there already counts as free, or every restart would make it smaller.
    """
    kept = _taken_bytes(arena_folder)
    budget = int((available_memory_bytes() + kept) * HOST_SHARE)
    return _within(min(budget, int((_free_bytes(arena_folder) + kept) * HOST_SHARE_OF_TMPFS)), HOST_BOUNDS_BYTES)


def default_disk_bytes(folder: Path) -> int:
    """A fifth of what is free where `folder` is or will be, what it holds already included, between 256 MiB and 512 GiB."""
    return _within(int((_free_bytes(folder) + _taken_bytes(folder)) * DISK_SHARE), DISK_BOUNDS_BYTES)


def available_memory_bytes() -> int:
    """What the kernel says is available, or what the cgroup leaves of it."""
    return min(_meminfo_available_bytes(), _cgroup_available_bytes())


def total_memory_bytes() -> int:
    """What the machine has, or what the cgroup may use of it, whoever uses it now."""
    limits = (limit for limit, _ in _cgroup_limits())
    return min(_meminfo_bytes("MemTotal:", "SC_PHYS_PAGES"), min(limits, default=_UNLIMITED))


def _meminfo_available_bytes() -> int:
    return _meminfo_bytes("MemAvailable:", "SC_AVPHYS_PAGES")


def _meminfo_bytes(label: str, pages_name: str) -> int:
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith(label):
            return int(line.split()[1]) * 1024
    return os.sysconf(pages_name) * os.sysconf("SC_PAGE_SIZE")


def _cgroup_available_bytes() -> int:
    """The tightest limit minus use."""
    return min((max(0, limit - usage) for limit, usage in _cgroup_limits()), default=_UNLIMITED)


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """Limit and use of this cgroup and of each of its parents that has a limit; v2 (unified) and v1 (memory controller)."""
    for line in _read(_OWN_CGROUP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _limits_up(_CGROUP_ROOT, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            yield from _limits_up(_CGROUP_ROOT / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _limits_up(root: Path, path: str, limit_name: str, usage_name: str) -> Iterator[tuple[int, int]]:
    place = root / path.lstrip("/")
    while place == root or root in place.parents:
        limit, usage = _read(place / limit_name).strip(), _read(place / usage_name).strip()
        if limit.isdigit() and usage.isdigit():
            yield int(limit), int(usage)
        place = place.parent


def _free_bytes(folder: Path) -> int:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _taken_bytes(folder: Path) -> int:
    """What the files of a folder take on their medium; holes take nothing."""
    taken = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # gone meanwhile
                taken += os.lstat(os.path.join(place, name)).st_blocks * 512
    return taken


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _within(value: int, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(bounds[1], value))
