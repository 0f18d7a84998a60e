"""What a piece of code left behind in this process: threads, descriptors, shared-memory entries. Linux only, reads /proc.

Invariants: a snapshot changes nothing; nothing is reported that another process made and still uses. What grpc keeps open for the
life of a process (its pollers' threads and descriptors) is known and left out; everything else is reported by name.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tierkv.testing.deadline import wait_until

SHM = Path("/dev/shm")
"""The arena's own place, only listed here."""
SHM_PREFIX = "tierkv"

# Targets of threads that grpc, tqdm and asyncio start once and keep; the names carry the function since Python 3.10.
LASTING_THREADS = (
    "_poll_wrapper",
    "channel_spin",
    "_channel_spin",
    "_serve",
    "_consume_request_iterator",
    "TMonitor",
    "tqdm",
    "asyncio-waitpid",
)
# Descriptors that belong to the interpreter's and the libraries' own files.
LASTING_FILES = ("/dev/", "/proc/", "/sys/", "/usr/", "/etc/", sys.prefix, sys.base_prefix)
# Kinds that grpc's event engine opens lazily and never closes, so they say nothing once grpc is loaded.
POLLER_KINDS = ("anon_inode:", "socket:", "pipe:")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What existed at one moment: threads, descriptors as (number, target), names in /dev/shm."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]
    shm: frozenset[str]


def take_snapshot() -> Snapshot:
    """What exists now. Cost: a few microseconds a descriptor."""
    return Snapshot(frozenset(threading.enumerate()), _descriptors(), _shm_entries())


def find_leaks(before: Snapshot) -> list[str]:
    """A phrase for each thing that exists now and did not at `before`; empty when nothing leaked."""
    return [*_leaked_threads(before), *_leaked_descriptors(before), *_leaked_shm(before)]


def wait_for_none(before: Snapshot, *, timeout_s: float) -> list[str]:
    """Waits until nothing is leaked, at most `timeout_s`; what still is then."""
    try:
        wait_until(lambda: not find_leaks(before), timeout_s=timeout_s, what="threads, descriptors and shared memory to go")
    except TimeoutError:
        return find_leaks(before)
    return []


def _leaked_threads(before: Snapshot) -> list[str]:
    return [
        f"thread {thread.name!r}"
        for thread in threading.enumerate()
        if thread not in before.threads and thread.is_alive() and not any(name in thread.name for name in LASTING_THREADS)
    ]


def _leaked_descriptors(before: Snapshot) -> list[str]:
    lasting = LASTING_FILES + (POLLER_KINDS if "grpc" in sys.modules else ())
    return [
        f"descriptor {number} of {target}"
        for number, target in sorted(_descriptors() - before.descriptors)
        if _is_shared_memory(target) or not target.startswith(lasting)
    ]


def _is_shared_memory(target: str) -> bool:
    # Below /dev, yet ours: arenas and memfds must be closed like any file.
    return target.startswith((f"{SHM}/", "/memfd:"))


def _leaked_shm(before: Snapshot) -> list[str]:
    return [f"{SHM / name}" for name in sorted(_shm_entries() - before.shm) if not _used_by_stranger(SHM / name)]


def _descriptors() -> frozenset[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    for number in (entry.name for entry in Path("/proc/self/fd").iterdir()):
        try:
            found.add((int(number), str(Path("/proc/self/fd", number).readlink())))
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return frozenset(found)


def _shm_entries() -> frozenset[str]:
    return frozenset(entry.name for entry in SHM.iterdir() if entry.name.startswith(SHM_PREFIX)) if SHM.is_dir() else frozenset()


def _used_by_stranger(path: Path) -> bool:
    """Whether a process that does not descend from this one has `path`, or a file below it, open or mapped."""
    return any(_uses(pid, path) for pid in _process_ids() if not _descends(pid))


def _process_ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _uses(pid: int, path: Path) -> bool:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return f" {path}/" in maps or f" {path}\n" in maps


def _descends(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        # The command's name stands in parentheses and may hold anything, spaces included.
        pid = int(fields.rpartition(")")[2].split()[1])
    return False
