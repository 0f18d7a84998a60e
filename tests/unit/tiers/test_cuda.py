"""What can be said of the CUDA module without a GPU: bounds, the form of a handle, the books of pinned memory, the twin in plain memory."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tierkv.errors import ClosedError, DataError, InvalidRequestError, UnavailableError
from tierkv.tiers import cuda

CHUNK = 8192
FIELDS = (1, b"\x01" * 65, 1 << 40, 512, b"/torch_123_0", 7, b"\x02" * 64, True)


def test_the_twin_in_plain_memory_reads_what_was_written():
    pool = cuda.CudaPool("cpu", 64)
    pool.write(8, memoryview(b"abcdefgh"))
    target = bytearray(6)
    pool.read(10, memoryview(target))
    assert bytes(target) == b"cdefgh"
    pool.close()
    pool.close()
    with pytest.raises(ClosedError, match="closed"):
        pool.read(0, memoryview(target))


@pytest.mark.parametrize("offset", [-1, 61, 1 << 62])
def test_what_is_not_inside_is_refused_and_changes_nothing(offset):
    pool = cuda.CudaPool("cpu", 64)
    pool.write(0, memoryview(bytes(range(64))))
    with pytest.raises(InvalidRequestError, match="not inside the pool"):
        pool.write(offset, memoryview(b"abcd"))
    target = bytearray(64)
    pool.read(0, memoryview(target))
    assert bytes(target) == bytes(range(64))


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", ""])
def test_a_device_has_a_name_of_a_known_form(device):
    with pytest.raises(InvalidRequestError, match="cpu or cuda:N"):
        cuda.CudaPool(device, 64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_without_cuda_a_sentence_says_so():
    with pytest.raises(UnavailableError, match="no CUDA here"):
        cuda.CudaPool("cuda:0", 64)
    with pytest.raises(UnavailableError, match="no CUDA here"):
        cuda.map_ipc(cuda.pack_handle(FIELDS))


def test_memory_of_the_cpu_has_no_handle():
    with pytest.raises(InvalidRequestError, match="no CUDA handle"):
        cuda.CudaPool("cpu", 64).ipc_handle()


def test_a_handle_says_the_same_on_the_other_side_and_its_bytes_are_pinned():
    packed = cuda.pack_handle(FIELDS)
    assert cuda.unpack_handle(packed) == FIELDS
    head = struct.pack("<4sHHQQQBHHH", b"TKVC", 1, 1, 1 << 40, 512, 7, 1, 65, 12, 64)
    assert packed == head + b"\x01" * 65 + b"/torch_123_0" + b"\x02" * 64


@given(st.binary(max_size=1100))
def test_bytes_that_are_no_handle_are_refused(noise):
    with pytest.raises(DataError):
        cuda.unpack_handle(noise)


@given(st.integers(0, len(cuda.pack_handle(FIELDS)) - 1))
def test_a_handle_cut_short_is_refused(length):
    with pytest.raises(DataError):
        cuda.unpack_handle(cuda.pack_handle(FIELDS)[:length])


class FakeRuntime:
    """Stands for `torch.cuda.cudart()`: keeps what is registered, refuses more than `limit` registrations."""

    def __init__(self, limit: int = 99) -> None:
        self.registered: dict[int, int] = {}
        self.limit = limit

    def cudaHostRegister(self, address, num_bytes, flags):  # noqa: N802 - the name is CUDA's
        assert address % 4096 == 0
        if len(self.registered) == self.limit:
            return 1
        assert self.registered.setdefault(address, num_bytes) == num_bytes
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802 - as above
        del self.registered[address]
        return 0


@pytest.fixture
def memory():
    mapped = mmap.mmap(-1, 5 * CHUNK // 2)
    yield memoryview(mapped)
    # Whoever still held the map would make this fail.
    mapped.close()


def test_chunks_are_pinned_as_they_are_used_once_each(memory, monkeypatch):
    runtime = FakeRuntime()
    monkeypatch.setattr(cuda, "_cudart", lambda: runtime)
    arena = cuda.PinnedArena(memory, CHUNK)
    memory.release()
    assert (arena.pinned_bytes, runtime.registered) == (0, {})
    assert arena.pin(CHUNK - 1, 2)
    assert arena.pinned_bytes == 2 * CHUNK
    assert arena.pin(0, 5 * CHUNK // 2)
    assert arena.pinned_bytes == 5 * CHUNK // 2
    assert sorted(runtime.registered.values()) == [CHUNK // 2, CHUNK, CHUNK]
    arena.unpin()
    arena.unpin()
    assert (arena.pinned_bytes, runtime.registered) == (0, {})


def test_a_system_that_refuses_is_not_asked_again(memory, monkeypatch):
    runtime = FakeRuntime(limit=1)
    forgotten = []
    monkeypatch.setattr(cuda, "_forget_error", lambda: forgotten.append(True))
    monkeypatch.setattr(cuda, "_cudart", lambda: runtime)
    arena = cuda.PinnedArena(memory, CHUNK)
    memory.release()
    assert not arena.pin(0, 2 * CHUNK)
    runtime.limit = 99
    assert not arena.pin(0, 2 * CHUNK)
    assert len(runtime.registered) == 1
    assert forgotten == [True]
    arena.unpin()
    assert runtime.registered == {}


@pytest.mark.parametrize(("offset", "num_bytes"), [(-1, 1), (0, 0), (0, 5 * CHUNK // 2 + 1)])
def test_a_range_outside_of_the_arena_is_refused(memory, offset, num_bytes):
    arena = cuda.PinnedArena(memory, CHUNK)
    memory.release()
    with pytest.raises(InvalidRequestError, match="not inside the arena"):
        arena.pin(offset, num_bytes)


def test_chunks_are_whole_pages(memory):
    with pytest.raises(InvalidRequestError, match="whole pages"):
        cuda.PinnedArena(memory, 5000)
    memory.release()


def test_a_fence_on_the_cpu_has_nothing_to_wait_for():
    cuda.fence("cpu")


def test_importing_the_module_loads_no_torch():
    code = "import sys, tierkv.tiers.cuda; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
