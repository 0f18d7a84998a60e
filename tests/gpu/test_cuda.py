"""The CUDA module on a device: bytes go there and back, and another process maps the pool."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest
import torch

from tierkv.tiers import cuda

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PATTERN = bytes(range(256)) * 16
MAP = """
import sys, torch
from tierkv.tiers import cuda
memory = cuda.map_ipc(bytes.fromhex(sys.argv[1]))
assert memory.dtype == torch.uint8 and memory.shape == (8192,)
assert bytes(memory[4096:].cpu().numpy()) == bytes(range(256)) * 16
memory[:4096] = 7
cuda.fence(str(memory.device))
"""


def test_bytes_go_to_the_device_and_come_back():
    pool = cuda.CudaPool("cuda:0", 1 << 20)
    pool.write(4096, memoryview(PATTERN))
    target = bytearray(len(PATTERN))
    pool.read(4096, memoryview(target))
    assert bytes(target) == PATTERN
    pool.close()


def test_another_process_reads_and_writes_the_pool_and_a_second_one_maps_it_anew():
    pool = cuda.CudaPool("cuda:0", 8192)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for _ in range(2):
        pool.write(0, memoryview(bytes(4096)))
        pool.write(4096, memoryview(PATTERN))
        subprocess.run([sys.executable, "-c", MAP, pool.ipc_handle().hex()], check=True, timeout=120, env=environment)
        target = bytearray(4096)
        pool.read(0, memoryview(target))
        assert bytes(target) == b"\x07" * 4096
    pool.close()


def test_pinned_memory_is_copied_like_any_other():
    mapped = mmap.mmap(-1, 1 << 20)
    memory = memoryview(mapped)
    arena = cuda.PinnedArena(memory, 1 << 18)
    assert arena.pin(0, 1 << 19)
    memory[: len(PATTERN)] = PATTERN
    pool = cuda.CudaPool("cuda:0", 1 << 20)
    pool.write(0, memory[: len(PATTERN)])
    target = bytearray(len(PATTERN))
    pool.read(0, memoryview(target))
    assert bytes(target) == PATTERN
    arena.unpin()
    memory.release()
    mapped.close()
