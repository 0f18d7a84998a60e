"""Extents that are read are freed by their last reader."""

from __future__ import annotations

from tierkv.tiers.extents import ExtentAllocator
from tierkv.tiers.pins import ReadPins

PAGE = 4096


def test_the_last_reader_frees_what_was_deleted_meanwhile() -> None:
    allocator = ExtentAllocator(4 * PAGE)
    pins = ReadPins(allocator)
    first, second = allocator.allocate_many(2, PAGE)
    pins.hold([first, second])
    pins.hold([first])
    pins.free([first, second])
    assert (allocator.free_bytes, pins.waiting()) == (2 * PAGE, [first, second])
    pins.drop([first, second])
    assert (allocator.free_bytes, pins.waiting()) == (3 * PAGE, [first])
    pins.drop([first])
    assert (allocator.free_bytes, pins.waiting()) == (4 * PAGE, [])


def test_what_nobody_reads_is_freed_at_once() -> None:
    allocator = ExtentAllocator(4 * PAGE)
    pins = ReadPins(allocator)
    taken = allocator.allocate_many(2, PAGE)
    pins.hold(taken)
    pins.drop(taken)
    assert allocator.free_bytes == 2 * PAGE, "reading alone frees nothing"
    pins.free(taken)
    assert allocator.free_bytes == 4 * PAGE
