"""The device tier's memory: for "cpu" a file without a name that engines map, for "cuda:N" what `tierkv.tiers.cuda` allocates.

Which page holds what is `tierkv.placement.page_books`'s matter. The file dies with its last descriptor: a daemon that is killed leaves
nothing behind, and an engine that still maps the pool keeps the bytes it is reading.
"""

from __future__ import annotations

import errno
import importlib
import os
import threading
from collections.abc import Callable
from typing import Any

from tierkv.copying import copy_block
from tierkv.errors import CapacityError
from tierkv.mapping import ArenaMap
from tierkv.tiers.base import Buffer, PoolMemory

CPU = "cpu"
_CHUNK_BYTES = 16 << 20
_GRAIN_BYTES = 1 << 20
"""What is backed is remembered in grains of this size; divides the chunk."""
_PINNED_CHUNK_BYTES = 256 << 20
_NO_MEMORY = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)


def open_memory(device: str, memory_bytes: int) -> PoolMemory:
    """The page memory of a device. Needs torch for a CUDA device, and only then. Raises CapacityError where it cannot be had."""
    if device == CPU:
        return SharedMemory(memory_bytes)
    return CudaMemory(device, memory_bytes)


class SharedMemory:
    """Page memory of device "cpu"."""

    def __init__(self, memory_bytes: int) -> None:
        self.device = CPU
        self.memory_bytes = memory_bytes
        self.fd: int | None = os.memfd_create("tierkv-pages", os.MFD_CLOEXEC)
        self.degraded: str | None = None
        self._lock = threading.Lock()
        self._is_backed = bytearray(-(-memory_bytes // _GRAIN_BYTES))
        try:
            os.ftruncate(self.fd, memory_bytes)
            self._map = ArenaMap(self.fd, memory_bytes)
        except OSError as error:
            os.close(self.fd)
            raise CapacityError("the page pool cannot be mapped; give it less memory", size=memory_bytes, error=error) from error

    def ipc_handle(self) -> bytes:
        return b""

    def view(self, offset: int, length: int) -> memoryview | None:
        return self._map.view(offset, length)

    def back(self, offset: int, length: int) -> bool:
        for grain in range(offset // _GRAIN_BYTES, -(-(offset + length) // _GRAIN_BYTES)):
            if not self._is_backed[grain] and not self._allocate(grain * _GRAIN_BYTES, _GRAIN_BYTES):
                return False
        return True

    def read(self, offset: int, target: Buffer) -> None:
        copy_block(target, self._map.view(offset, len(target)))

    def write(self, offset: int, source: Buffer) -> None:
        copy_block(self._map.view(offset, len(source)), source)

    def pin_host(self, arena: memoryview) -> None:
        del arena  # the processor copies

    def prefault(self, should_stop: Callable[[], bool]) -> None:
        for offset in range(0, self.memory_bytes, _CHUNK_BYTES):
            if should_stop() or not self._allocate(offset, _CHUNK_BYTES):
                return
            self._map.populate(offset, min(_CHUNK_BYTES, self.memory_bytes - offset))

    def _allocate(self, offset: int, length: int) -> bool:
        """Allocates whole grains; a page that is touched without memory behind it would be SIGBUS for the engine."""
        end = min(offset + length, self.memory_bytes)
        with self._lock:
            if self.fd is None:
                return False
            try:
                os.posix_fallocate(self.fd, offset, end - offset)
            except OSError as error:
                if error.errno not in _NO_MEMORY:
                    raise
                self.degraded = "memory for the page pool ran out; give it less"
                return False
        first, stop = offset // _GRAIN_BYTES, -(-end // _GRAIN_BYTES)
        self._is_backed[first:stop] = b"\1" * (stop - first)
        return True

    def close(self) -> None:
        self._map.close()
        with self._lock:
            fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)


class CudaMemory:
    """Page memory of a CUDA device: the calls are those of `tierkv.tiers.cuda`, which is loaded here and nowhere before."""

    def __init__(self, device: str, memory_bytes: int) -> None:
        self._cuda: Any = importlib.import_module("tierkv.tiers.cuda")
        self._pool: Any = self._cuda.CudaPool(device, memory_bytes)
        self._arena: Any = None
        self._arena_bytes = 0
        self.device = device
        self.memory_bytes = memory_bytes
        self.fd: int | None = None
        self.degraded: str | None = None

    def ipc_handle(self) -> bytes:
        handle: bytes = self._pool.ipc_handle()
        return handle

    def view(self, offset: int, length: int) -> memoryview | None:
        del offset, length  # the processor cannot see it
        return None

    def back(self, offset: int, length: int) -> bool:
        del offset, length  # a device's memory is there once it is allocated
        return True

    def read(self, offset: int, target: Buffer) -> None:
        self._pool.read(offset, target)

    def write(self, offset: int, source: Buffer) -> None:
        self._pool.write(offset, source)

    def pin_host(self, arena: memoryview) -> None:
        self._arena_bytes = len(arena)
        self._arena = self._cuda.PinnedArena(arena, _PINNED_CHUNK_BYTES)

    def prefault(self, should_stop: Callable[[], bool]) -> None:
        """Its own memory is there; the arena's is pinned, until the system takes no more."""
        for offset in range(0, self._arena_bytes, _PINNED_CHUNK_BYTES):
            if should_stop() or not self._arena.pin(offset, min(_PINNED_CHUNK_BYTES, self._arena_bytes - offset)):
                return

    def close(self) -> None:
        if self._arena is not None:
            self._arena.unpin()
        self._pool.close()
