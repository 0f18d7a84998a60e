"""The grant map: what was marked is known after a restart, until it is cleared or the arena is new."""

from __future__ import annotations

from pathlib import Path

from tierkv.model.outcomes import Extent
from tierkv.tiers.grants import GrantMap

PAGE = 4096
ARENA_BYTES = 16 * PAGE


def test_marks_outlive_the_map_and_adjacent_ones_are_one_run(tmp_path: Path) -> None:
    grants = GrantMap(tmp_path, ARENA_BYTES, is_new=True)
    grants.mark([Extent(PAGE, 2 * PAGE), Extent(3 * PAGE, PAGE), Extent(15 * PAGE, PAGE), Extent(8 * PAGE, PAGE)])
    grants.clear([Extent(8 * PAGE, PAGE)])
    grants.close()

    again = GrantMap(tmp_path, ARENA_BYTES, is_new=False)
    assert again.runs() == [Extent(PAGE, 3 * PAGE), Extent(15 * PAGE, PAGE)]
    assert again.touches(Extent(2 * PAGE, 6 * PAGE))
    assert not again.touches(Extent(4 * PAGE, 11 * PAGE))
    again.close()

    fresh = GrantMap(tmp_path, ARENA_BYTES, is_new=True)
    assert fresh.runs() == []
    fresh.close()


def test_a_map_of_another_length_is_made_anew(tmp_path: Path) -> None:
    grants = GrantMap(tmp_path, ARENA_BYTES, is_new=True)
    grants.mark([Extent(0, PAGE)])
    grants.close()
    other = GrantMap(tmp_path, 2 * ARENA_BYTES, is_new=False)
    assert other.runs() == []
    other.close()
