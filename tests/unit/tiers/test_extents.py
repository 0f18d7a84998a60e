"""The allocator: whole state after each step, and against a byte map."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tierkv.errors import InternalError
from tierkv.model.outcomes import Extent
from tierkv.tiers.extents import ExtentAllocator, round_up

PAGE = 4096


def pages(allocator: ExtentAllocator) -> list[tuple[int, int]]:
    """Free runs in pages."""
    return [(run.offset // PAGE, run.length // PAGE) for run in allocator.free_runs()]


def extent(offset: int, length: int) -> Extent:
    return Extent(offset * PAGE, length * PAGE)


def test_it_fits_best_and_low_and_joins_what_returns() -> None:
    allocator = ExtentAllocator(10 * PAGE)
    taken = allocator.allocate_many(5, 2 * PAGE)
    assert taken == [extent(0, 2), extent(2, 2), extent(4, 2), extent(6, 2), extent(8, 2)]
    assert pages(allocator) == []
    allocator.free(taken[4])
    allocator.free(taken[0])
    allocator.free(taken[2])
    assert pages(allocator) == [(0, 2), (4, 2), (8, 2)]
    assert allocator.allocate(1) == extent(0, 1), "the lowest of equally good runs"
    assert allocator.allocate(PAGE) == extent(1, 1), "the smallest run that fits"
    allocator.free(taken[3])
    assert pages(allocator) == [(4, 6)]
    assert allocator.free_bytes == 6 * PAGE
    allocator.free(taken[1])
    assert pages(allocator) == [(2, 8)]
    allocator.check_integrity()


def test_a_run_is_contiguous_where_possible_and_in_pieces_where_not() -> None:
    allocator = ExtentAllocator(12 * PAGE)
    allocator.claim(extent(2, 1))
    allocator.claim(extent(9, 1))
    assert pages(allocator) == [(0, 2), (3, 6), (10, 2)]
    assert allocator.allocate_run([2 * PAGE, PAGE + 1]) == [extent(3, 2), extent(5, 2)]
    assert pages(allocator) == [(0, 2), (7, 2), (10, 2)]
    assert allocator.allocate_many(4, 2 * PAGE) == [extent(0, 2), extent(7, 2), extent(10, 2)], "what fits"
    assert allocator.allocate(1) is None
    assert allocator.allocate_run([]) == []


def test_extents_never_straddle_a_boundary() -> None:
    allocator = ExtentAllocator(10 * PAGE, boundary_bytes=4 * PAGE)
    assert pages(allocator) == [(0, 4), (4, 4), (8, 2)]
    taken = allocator.allocate_many(4, 3 * PAGE)
    assert taken == [extent(0, 3), extent(4, 3)]
    for item in taken:
        allocator.free(item)
    assert pages(allocator) == [(0, 4), (4, 4), (8, 2)], "runs do not join across it"
    with pytest.raises(InternalError, match="no extent of this space"):
        allocator.claim(extent(3, 2))


def test_claims_of_recovery_in_one_pass() -> None:
    allocator = ExtentAllocator(10 * PAGE)
    allocator.claim_many([extent(8, 2), extent(0, 1), extent(4, 1), extent(5, 1)])
    assert pages(allocator) == [(1, 3), (6, 2)]
    allocator.check_integrity()
    for overlapping in ([extent(1, 2), extent(2, 1)], [extent(3, 2)], [extent(6, 2), extent(9, 1)]):
        with pytest.raises(InternalError, match="not free"):
            allocator.claim_many(overlapping)
        assert pages(allocator) == [(1, 3), (6, 2)], "all or none"


@pytest.mark.parametrize("wrong", [extent(0, 1), extent(1, 2), extent(2, 3), extent(3, 1)])
def test_what_is_free_cannot_be_freed_again(wrong: Extent) -> None:
    allocator = ExtentAllocator(8 * PAGE)
    allocator.claim(extent(2, 1))
    with pytest.raises(InternalError, match="freed twice"):
        allocator.free(wrong)
    assert pages(allocator) == [(0, 2), (3, 5)]


@pytest.mark.parametrize("wrong", [Extent(-PAGE, PAGE), Extent(0, 0), Extent(1, PAGE), Extent(0, 100), extent(7, 2)])
def test_what_is_no_extent_is_refused(wrong: Extent) -> None:
    allocator = ExtentAllocator(8 * PAGE)
    assert not allocator.is_extent(wrong)
    for method in (allocator.free, allocator.claim):
        with pytest.raises(InternalError):
            method(wrong)


def test_sizes() -> None:
    assert [round_up(length) for length in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
    assert ExtentAllocator(3 * PAGE + 17).capacity_bytes == 3 * PAGE
    assert ExtentAllocator(100).allocate(1) is None


class AllocatorMachine(RuleBasedStateMachine):
    """Against a list of booleans, one a page."""

    PAGES = 24
    BOUNDARY = 8

    def __init__(self) -> None:
        super().__init__()
        self.allocator = ExtentAllocator(self.PAGES * PAGE, boundary_bytes=self.BOUNDARY * PAGE)
        self.is_used = [False] * self.PAGES
        self.held: list[Extent] = []

    @rule(lengths=st.lists(st.integers(1, 9), max_size=5))
    def allocate(self, lengths: list[int]) -> None:
        taken = self.allocator.allocate_run([length * PAGE for length in lengths])
        for wanted, item in zip(lengths, taken, strict=False):
            assert item.length == wanted * PAGE
            assert item.offset // PAGE // self.BOUNDARY == (item.end - 1) // PAGE // self.BOUNDARY
            assert not any(self.is_used[item.offset // PAGE : item.end // PAGE])
            self.is_used[item.offset // PAGE : item.end // PAGE] = [True] * wanted
        if len(taken) < len(lengths):
            assert lengths[len(taken)] > self.longest_run()
        self.held += taken

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.held:
            item = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.allocator.free(item)
            self.is_used[item.offset // PAGE : item.end // PAGE] = [False] * (item.length // PAGE)

    def longest_run(self) -> int:
        text = "".join("x" if used else "." for used in self.is_used)
        parts = [text[start : start + self.BOUNDARY] for start in range(0, self.PAGES, self.BOUNDARY)]
        return max(len(run) for part in parts for run in part.split("x"))

    @invariant()
    def agrees(self) -> None:
        self.allocator.check_integrity()
        assert self.allocator.free_bytes == self.is_used.count(False) * PAGE


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAllocator = AllocatorMachine.TestCase
