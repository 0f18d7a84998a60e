"""Suffix demotion: who leaves with whom, and how little is walked for the pinned."""

from collections.abc import Collection
from itertools import pairwise

import pytest

from tierkv.model.chains import Chains
from tierkv.policies.suffix import SuffixSelector, num_fitting


class CountingChains(Chains[int]):
    """Counts how often somebody's children are asked for."""

    __slots__ = ("num_asked",)

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0

    def children(self, key: int) -> tuple[int, ...]:
        self.num_asked += 1
        return super().children(key)


def chained(*paths: tuple[int, ...]) -> CountingChains:
    chains = CountingChains()
    for path in paths:
        for parent, child in pairwise(path):
            chains.link(parent, child)
    return chains


def selector(chains: Chains[int], resident: Collection[int], pinned: Collection[int] = ()) -> SuffixSelector[int]:
    """Key n weighs n."""
    return SuffixSelector(chains, resident, lambda key: key, lambda key: key in pinned)


def test_a_key_takes_along_its_followers_tails_first() -> None:
    selection = selector(chained((1, 2, 3), (2, 4)), {1, 2, 3, 4, 5})
    assert list(selection.take(2)) == [4, 3, 2]
    assert (list(selection.victims), selection.weight) == ([4, 3, 2], 9)
    assert list(selection.take(3)) == []
    assert list(selection.take(1)) == [1]
    assert list(selection.take(5)) == [5]
    assert (list(selection.victims), selection.weight) == ([4, 3, 2, 1, 5], 15)


def test_followers_beyond_one_that_is_not_resident_are_not_touched() -> None:
    selection = selector(chained((1, 2, 3)), {1, 3})
    assert list(selection.take(1)) == [1]
    assert list(selection.victims) == [1]


def test_a_pinned_follower_keeps_all_before_it_and_nobody_beside_or_behind_it() -> None:
    selection = selector(chained((1, 2, 3, 4), (1, 5)), {1, 2, 3, 4, 5}, pinned={3})
    assert [list(selection.take(key)) for key in (1, 2, 3)] == [[], [], []]
    assert selection.weight == 0
    assert list(selection.take(4)) == [4]
    assert list(selection.take(5)) == [5]
    assert list(selection.take(1)) == []
    assert (list(selection.victims), selection.weight) == ([4, 5], 9)


def test_a_failed_walk_blocks_only_those_before_the_pinned_one() -> None:
    """Looking at 1, the walk passes 2 and 3 before it finds 5 pinned; 2 may still go."""
    selection = selector(chained((1, 2, 4), (1, 3, 5)), {1, 2, 3, 4, 5}, pinned={5})
    assert list(selection.take(1)) == []
    assert list(selection.take(3)) == []
    assert list(selection.take(2)) == [4, 2]


@pytest.mark.parametrize("is_tail_first", [True, False])
def test_a_long_chain_before_a_pinned_key_is_walked_a_few_times_at_most(is_tail_first: bool) -> None:
    length = 2000
    path = tuple(range(1, length + 1))
    chains = chained(path)
    selection = selector(chains, set(path), pinned={length})
    for key in reversed(path) if is_tail_first else path:
        assert not selection.take(key)
    assert chains.num_asked <= 3 * length


@pytest.mark.parametrize(
    ("weights", "room", "expected"),
    [((), 0, 0), ((1, 2, 3), 6, 3), ((1, 2, 3), 5, 2), ((1, 2, 3), 0, 0), ((5, 1), 4, 0), ((1,), -1, 0)],
)
def test_how_many_leading_entries_fit(weights: tuple[int, ...], room: int, expected: int) -> None:
    assert num_fitting(weights, room) == expected
