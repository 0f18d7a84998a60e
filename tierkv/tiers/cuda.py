"""CUDA, all of it: memory of a device for the pool, its handle for other processes, pinned host memory, and waiting for a device.

torch is loaded by the first call, never by the import, and nothing here is reached unless a CUDA device is configured. "cpu" is accepted
wherever it has a meaning, so that everything around these calls runs without a GPU.

A handle crosses processes as fixed fields, never as a pickle. Each names a reference of its own, which the process that maps it gives back when
its tensor goes: one handle is for one mapping, and `CudaPool.ipc_handle` makes a new one for each. Source of the fields:
`torch.UntypedStorage._share_cuda_` and `_new_shared_cuda`, as `torch.multiprocessing.reductions` uses them.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from typing import TYPE_CHECKING, Any

from tierkv.errors import CapacityError, ClosedError, DataError, InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    import torch

HANDLE_MAGIC = b"TKVC"
HANDLE_VERSION = 1
HANDLE_BYTES_LIMIT = 1024
_HEAD = struct.Struct("<4sHHQQQBHHH")
"""magic, version, device number, bytes of the storage, its offset in the allocation, offset of the reference counter, whether the event must be
waited for, and the lengths of the three texts that follow: memory handle, name of the reference counter, event handle."""

_PAGE_BYTES = 4096
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of the process."""


class CudaPool:
    """Memory of one device, addressed by byte. `read` and `write` may be called from several threads at once; the caller keeps them apart."""

    def __init__(self, device: str, memory_bytes: int) -> None:
        """Takes the memory. device — "cuda:N", or "cpu" for a twin in plain memory, which has no handle.

        Raises InvalidRequestError for another device, UnavailableError without CUDA, CapacityError where the device has not enough memory.
        """
        import torch

        if memory_bytes < 1:
            raise InvalidRequestError("a pool has at least one byte", device=device, memory_bytes=memory_bytes)
        _check_device(device)
        try:
            self._memory: torch.Tensor | None = torch.empty(memory_bytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                "the device has not enough memory for the pool; make it smaller", device=device, memory_bytes=memory_bytes
            ) from error
        self.device = device
        self.memory_bytes = memory_bytes
        self._streams = threading.local()

    def ipc_handle(self) -> bytes:
        """What one other process on this machine maps the memory from (`map_ipc`); a new one each time."""
        if self.device == "cpu":
            raise InvalidRequestError("memory of the CPU has no CUDA handle; pass its descriptor", device=self.device)
        storage: Any = self._open().untyped_storage()
        return pack_handle(storage._share_cuda_())

    def read(self, offset: int, target: memoryview) -> None:
        """Fills `target` (writable, contiguous bytes) from [offset, offset + len(target)); blocks until the bytes are there."""
        self._copy(_tensor(target), self._range(offset, len(target)))

    def write(self, offset: int, source: memoryview) -> None:
        """Copies `source` to [offset, offset + len(source)); blocks until any process that maps the memory sees it."""
        self._copy(self._range(offset, len(source)), _tensor(source))

    def close(self) -> None:
        """Gives the memory back once nobody maps it any more. May be called twice."""
        self._memory = None

    def _open(self) -> torch.Tensor:
        if self._memory is None:
            raise ClosedError("this pool is closed", device=self.device)
        return self._memory

    def _range(self, offset: int, num_bytes: int) -> torch.Tensor:
        if offset < 0 or offset + num_bytes > self.memory_bytes:
            raise InvalidRequestError(
                "the range is not inside the pool", offset=offset, num_bytes=num_bytes, memory_bytes=self.memory_bytes
            )
        return self._open()[offset : offset + num_bytes]

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self.device == "cpu":
            target.copy_(source)
            return
        import torch

        # A stream of each thread's own: copies neither wait for the kernels of others nor for each other.
        stream = getattr(self._streams, "stream", None)
        if stream is None:
            stream = self._streams.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        stream.synchronize()


def map_ipc(handle: bytes, device: str | None = None) -> torch.Tensor:
    """The memory of another process's pool as a tensor: uint8, (bytes of the pool,). Mapped until the tensor and its views are gone.

    device — as this process counts its devices; by default the number that the owner has. Raises DataError for a handle that is none and
    UnavailableError where it cannot be mapped: no CUDA, the owner is gone, or it is the very process that asks.
    """
    import torch

    fields = unpack_handle(handle)
    device = device or f"cuda:{fields[0]}"
    _check_device(device)
    try:
        with torch.cuda.device(device):
            storage = torch.UntypedStorage._new_shared_cuda(torch.device(device).index, *fields[1:])  # noqa: SLF001 - the only way in
            return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (fields[2],), (1,))
    except RuntimeError as error:
        raise UnavailableError("the pool cannot be mapped; is its daemon alive?", device=device, error=error) from error


def pack_handle(fields: tuple[Any, ...]) -> bytes:
    """The fields of `_share_cuda_` as bytes: device number, memory handle, size, offset, counter name, counter offset, event, must wait."""
    number, memory, size, offset, counter, counter_offset, event, must_wait = fields
    head = _HEAD.pack(
        HANDLE_MAGIC, HANDLE_VERSION, number, size, offset, counter_offset, must_wait, len(memory), len(counter), len(event)
    )
    packed = head + bytes(memory) + bytes(counter) + bytes(event)
    assert len(packed) <= HANDLE_BYTES_LIMIT
    return packed


def unpack_handle(handle: bytes) -> tuple[Any, ...]:
    """Reverses `pack_handle`; raises DataError for anything that it did not make."""
    if not _HEAD.size <= len(handle) <= HANDLE_BYTES_LIMIT:
        raise DataError("a handle of a pool has another length", num_bytes=len(handle), limit_bytes=HANDLE_BYTES_LIMIT)
    magic, version, number, size, offset, counter_offset, must_wait, *lengths = _HEAD.unpack_from(handle)
    if magic != HANDLE_MAGIC or version != HANDLE_VERSION:
        raise DataError("this is no handle of a pool that this version knows", magic=magic, version=version)
    if _HEAD.size + sum(lengths) != len(handle) or must_wait > 1:
        raise DataError("a handle of a pool does not add up", lengths=lengths, num_bytes=len(handle))
    memory_end = _HEAD.size + lengths[0]
    counter_end = memory_end + lengths[1]
    memory, counter, event = handle[_HEAD.size : memory_end], handle[memory_end:counter_end], handle[counter_end:]
    return number, memory, size, offset, counter, counter_offset, event, bool(must_wait)


class PinnedArena:
    """Host memory that devices may copy from and to directly, pinned chunk by chunk as it is first used: pinning all of it at once costs
    seconds. One thread at a time.
    """

    def __init__(self, buffer: memoryview, chunk_bytes: int) -> None:
        """buffer — writable, page-aligned, mapped until after `unpin`; chunk_bytes — a multiple of the system's page size. Pins nothing."""
        if chunk_bytes < 1 or chunk_bytes % _PAGE_BYTES:
            raise InvalidRequestError("pinned chunks are whole pages of memory", chunk_bytes=chunk_bytes, page_bytes=_PAGE_BYTES)
        self._num_bytes = len(buffer)
        self._address = _address(buffer)
        self._chunk_bytes = chunk_bytes
        self._pinned: set[int] = set()
        self._refused = False

    @property
    def pinned_bytes(self) -> int:
        return sum(self._length(chunk) for chunk in self._pinned)

    def pin(self, offset: int, num_bytes: int) -> bool:
        """Pins the chunks of [offset, offset + num_bytes) that are not yet; False once the system has refused one: copies then go through
        the driver's own buffers, slower and just as right.
        """
        if offset < 0 or num_bytes < 1 or offset + num_bytes > self._num_bytes:
            raise InvalidRequestError("the range is not inside the arena", offset=offset, num_bytes=num_bytes)
        first, last = offset // self._chunk_bytes, (offset + num_bytes - 1) // self._chunk_bytes
        for chunk in range(first, last + 1):
            if chunk not in self._pinned and not self._refused:
                self._refused = not _register(self._address + chunk * self._chunk_bytes, self._length(chunk))
                if not self._refused:
                    self._pinned.add(chunk)
        return not self._refused

    def unpin(self) -> None:
        """Undoes every pin; to be called before the memory is unmapped. May be called twice."""
        for chunk in sorted(self._pinned):
            _unregister(self._address + chunk * self._chunk_bytes)
        self._pinned.clear()

    def _length(self, chunk: int) -> int:
        return min(self._chunk_bytes, self._num_bytes - chunk * self._chunk_bytes)


def fence(device: str) -> None:
    """Blocks until all that this process started on `device` is done and can be seen by others. Nothing to do on "cpu"."""
    if device == "cpu":
        return
    import torch

    torch.cuda.synchronize(device)


def _check_device(device: str) -> None:
    import torch

    if device == "cpu":
        return
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isdecimal():
        raise InvalidRequestError("a device is cpu or cuda:N", device=device)
    if not torch.cuda.is_available():
        raise UnavailableError("there is no CUDA here; is this a build of torch with CUDA, and is there a driver?", device=device)
    if int(number) >= torch.cuda.device_count():
        raise InvalidRequestError("there is no such device", device=device, devices=torch.cuda.device_count())


def _tensor(buffer: memoryview) -> torch.Tensor:
    import torch

    # torch has no tensors that may only be read, and warns; bytes that nobody may write are copied first.
    return torch.frombuffer(bytearray(buffer) if buffer.readonly else buffer, dtype=torch.uint8)


def _address(buffer: memoryview) -> int:
    # The view of ctypes is gone when this returns, so that it does not keep the caller's map open.
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _cudart() -> Any:
    import torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no annotation


def _register(address: int, num_bytes: int) -> bool:
    if int(_cudart().cudaHostRegister(address, num_bytes, _PORTABLE)) == 0:
        return True
    _forget_error()
    return False


def _forget_error() -> None:
    """CUDA reports a refusal once more to whoever launches the next kernel, who has nothing to do with it; so this launches one."""
    import torch

    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _unregister(address: int) -> None:
    _cudart().cudaHostUnregister(address)
