"""Media that lose, fill up or die, for the disk tier (`tierkv.tiers.disk.io.SegmentIO`). They nest: the outer one sees a call first.

`docs/format.md`, "What is assumed of the medium", is the contract they stay within, except where a switch says they break it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tierkv.tiers.disk.io import FileIO, SegmentFile, SegmentIO

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine is gone. Not an Exception: nothing may handle it and go on."""


class DroppingIO:
    """A disk with a volatile cache: writes stay in memory until they are synced, and `crash` loses what was not.

    tears — `crash` writes down an arbitrary part of what was not synced, in 512-byte pieces, as real disks do; seed — which part.
    ignores_sync — breaks the contract: a sync confirms and does nothing.
    """

    def __init__(self, *, tears: bool = False, ignores_sync: bool = False, seed: int = 0) -> None:
        self._inner = FileIO(direct=False)
        self._tears = tears
        self._random = random.Random(seed)
        self.ignores_sync = ignores_sync
        self.pending: dict[Path, list[tuple[int, bytes]]] = {}
        self.is_crashed = False

    def prepare(self, path: Path, length: int) -> None:
        self.check_alive()
        self._inner.prepare(path, length)

    def open(self, path: Path) -> SegmentFile:
        self.check_alive()
        return _DroppingFile(self, path, self._inner.open(path))

    def commit(self, commit: Callable[[], None]) -> None:
        self.check_alive()
        commit()

    def check_alive(self) -> None:
        if self.is_crashed:
            raise PowerCut

    def crash(self) -> None:
        """Ends everything; what was not synced is lost, or torn."""
        self.is_crashed = True
        if self._tears:
            for path, writes in self.pending.items():
                self._tear(path, writes)
        self.pending.clear()

    def _tear(self, path: Path, writes: list[tuple[int, bytes]]) -> None:
        pieces = [
            (offset + start, data[start : start + SECTOR_BYTES])
            for offset, data in writes
            for start in range(0, len(data), SECTOR_BYTES)
        ]
        with path.open("r+b") as file:
            for offset, piece in self._random.sample(pieces, self._random.randint(0, len(pieces))):
                file.seek(offset)
                file.write(piece)


class _DroppingFile:
    def __init__(self, disk: DroppingIO, path: Path, inner: SegmentFile) -> None:
        self._disk = disk
        self._path = path
        self._inner = inner

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._disk.check_alive()
        self._disk.pending.setdefault(self._path, []).append((offset, b"".join(buffers)))

    def read(self, buffers: Sequence[memoryview], offset: int) -> int:
        self._disk.check_alive()
        length = sum(len(buffer) for buffer in buffers)
        found = bytearray(length)
        end = self._inner.read([memoryview(found)], offset)
        for start, data in self._disk.pending.get(self._path, []):
            left, right = max(start, offset), min(start + len(data), offset + length)
            if left < right:
                found[left - offset : right - offset] = data[left - start : right - start]
                end = max(end, right - offset)
        position = 0
        for buffer in buffers:
            buffer[:] = found[position : position + len(buffer)]
            position += len(buffer)
        return end

    def sync(self) -> None:
        self._disk.check_alive()
        if self._disk.ignores_sync:
            return
        for offset, data in self._disk.pending.pop(self._path, []):
            self._inner.write([memoryview(data)], offset)
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()


class FullIO:
    """A medium with room for `room_bytes` of segments and no more; raise `room_bytes` to make some."""

    def __init__(self, inner: SegmentIO, *, room_bytes: int) -> None:
        self._inner = inner
        self.room_bytes = room_bytes

    def prepare(self, path: Path, length: int) -> None:
        missing = length - (path.stat().st_size if path.exists() else 0)
        if missing > self.room_bytes:
            raise OSError(errno.ENOSPC, "no space left on device")
        self._inner.prepare(path, length)
        self.room_bytes -= max(0, missing)

    def open(self, path: Path) -> SegmentFile:
        return self._inner.open(path)

    def commit(self, commit: Callable[[], None]) -> None:
        self._inner.commit(commit)


class FailingIO:
    """Fails at the operation number `fail_at` (from 1; None: never): with `error`, once, or, where it is a PowerCut, for good.

    An operation is a prepare, a write, a read, a sync, the moment before a commit, the moment after one. `operations` names those that
    happened. An OSError never comes after a commit: a transaction that failed has changed nothing.
    """

    def __init__(self, inner: SegmentIO, *, fail_at: int | None = None, error: BaseException | None = None) -> None:
        self._inner = inner
        self.fail_at = fail_at
        self._error = error or PowerCut()
        self.operations: list[str] = []
        self._is_dead = False

    def step(self, name: str) -> None:
        """One operation more; raises when it is the one."""
        if self._is_dead:
            raise PowerCut
        self.operations.append(name)
        if len(self.operations) == self.fail_at:
            self._is_dead = isinstance(self._error, PowerCut)
            raise self._error

    def prepare(self, path: Path, length: int) -> None:
        self.step("prepare")
        self._inner.prepare(path, length)

    def open(self, path: Path) -> SegmentFile:
        return _FailingFile(self, self._inner.open(path))

    def commit(self, commit: Callable[[], None]) -> None:
        self.step("before commit")
        self._inner.commit(commit)
        if isinstance(self._error, PowerCut):
            self.step("after commit")


class _FailingFile:
    def __init__(self, medium: FailingIO, inner: SegmentFile) -> None:
        self._medium = medium
        self._inner = inner

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._medium.step("write")
        self._inner.write(buffers, offset)

    def read(self, buffers: Sequence[memoryview], offset: int) -> int:
        self._medium.step("read")
        return self._inner.read(buffers, offset)

    def sync(self) -> None:
        self._medium.step("sync")
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()
