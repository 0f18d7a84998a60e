"""Pages of a pool as a tensor."""

from __future__ import annotations

import dataclasses
import mmap

import pytest
import torch

from tierkv.engine.memory import PageMemory
from tierkv.errors import ClosedError, InvalidRequestError
from tierkv.model.layout import Layout, dense_layout
from tierkv.pages import Pool


def layout_of(dtype="float32"):
    return dense_layout(num_layers=2, num_kv_heads=1, block_tokens=4, head_dim=3, dtype=dtype)


def pool_of(layout, num_pages=3):
    return Pool("cpu", layout.block_bytes, num_pages, memoryview(bytearray(layout.block_bytes * num_pages)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_page_is_a_range_of_the_pools_bytes(dtype):
    layout = layout_of(dtype)
    pool = pool_of(layout)
    memory = PageMemory(pool, layout)
    assert tuple(memory.pages.shape) == (3, 2, 2, 1, 4, 3)
    memory.pages[1] = 1.0
    assert bytes(pool.buffer[: layout.block_bytes]) == bytes(layout.block_bytes)
    assert bytes(pool.buffer[layout.block_bytes : 2 * layout.block_bytes]) == bytes(memory.pages[1].view(torch.uint8).numpy())
    assert bytes(pool.buffer[2 * layout.block_bytes :]) == bytes(layout.block_bytes)


def test_the_buffer_may_be_larger_than_the_pages():
    layout = layout_of()
    pool = dataclasses.replace(pool_of(layout), num_pages=2)
    assert PageMemory(pool, layout).pages.shape[0] == 2


def test_pages_are_copied_within_a_memory_and_between_two():
    layout = layout_of()
    one, other = PageMemory(pool_of(layout), layout), PageMemory(pool_of(layout), layout)
    one.pages[0] = 7.0
    one.restore(one.save(0), 2)
    other.restore(one.pages[2], 1)
    assert [float(memory.pages[page].mean()) for memory, page in ((one, 2), (other, 1), (other, 0))] == [7.0, 7.0, 0.0]


def test_memory_in_use_cannot_be_unmapped_and_closed_memory_can():
    layout = layout_of()
    mapped = mmap.mmap(-1, layout.block_bytes)
    buffer = memoryview(mapped)
    memory = PageMemory(Pool("cpu", layout.block_bytes, 1, buffer), layout)
    buffer.release()
    with pytest.raises(BufferError):
        mapped.close()
    memory.close()
    memory.close()
    with pytest.raises(ClosedError):
        _ = memory.pages
    mapped.close()


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (layout_of("float16"), "holds no block"),
        (Layout(shape=(48,), dtype="float32", block_tokens=4), "dense attention"),
        (layout_of("int8"), "dense attention"),
    ],
)
def test_pages_that_hold_something_else_are_refused(layout, message):
    with pytest.raises(InvalidRequestError, match=message):
        PageMemory(pool_of(layout_of()), layout)
