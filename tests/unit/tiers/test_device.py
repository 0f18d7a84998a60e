"""Memory of devices: what of it is told to CUDA. The twin in plain memory stands for the device."""

import mmap

from tierkv.tiers import cuda
from tierkv.tiers.device import CudaMemory

MIB = 1 << 20


def calls_of(monkeypatch, *, limit):
    """What is pinned (length) and let go of (None), in order; the system takes `limit` chunks."""
    calls = []

    def register(address, num_bytes):
        assert address % 4096 == 0
        if len(calls) == limit:
            return False
        calls.append(num_bytes)
        return True

    monkeypatch.setattr("tierkv.tiers.device._PINNED_CHUNK_BYTES", MIB)
    monkeypatch.setattr(cuda, "_register", register)
    monkeypatch.setattr(cuda, "_unregister", lambda address: calls.append(None))
    return calls


def prepared(arena):
    memory = CudaMemory("cpu", MIB)
    memory.pin_host(memoryview(arena))
    return memory


def test_the_arena_is_pinned_chunk_by_chunk_and_let_go_of_before_it_is_unmapped(monkeypatch):
    calls = calls_of(monkeypatch, limit=10)
    with mmap.mmap(-1, 2 * MIB + 8192) as arena:
        memory = prepared(arena)
        assert calls == []
        memory.prefault(lambda: False)
        assert calls == [MIB, MIB, 8192]
        memory.close()
        memory.close()
        assert calls[3:] == [None] * 3


def test_a_system_that_pins_no_more_is_not_asked_again_and_a_stop_is_heeded(monkeypatch):
    calls = calls_of(monkeypatch, limit=1)
    with mmap.mmap(-1, 3 * MIB) as arena:
        memory = prepared(arena)
        memory.prefault(lambda: True)
        assert calls == []
        memory.prefault(lambda: False)
        assert calls == [MIB]
        memory.close()


def test_a_device_without_an_arena_has_nothing_to_do():
    memory = CudaMemory("cpu", MIB)
    memory.prefault(lambda: False)
    memory.write(4096, memoryview(b"block"))
    target = bytearray(5)
    memory.read(4096, memoryview(target))
    assert bytes(target) == b"block"
    memory.close()
