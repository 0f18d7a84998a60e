"""The disk tier on media that lose what was not synced, fail, or fill up: compared with a model after each possible moment of death.

The model knows what was acknowledged. After a crash every acknowledged block is there byte for byte, no block whose deletion was
acknowledged is, and whatever was under way is there as a whole or not at all.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tierkv.codecs.frame import FrameCodec
from tierkv.errors import UnavailableError
from tierkv.model.outcomes import TierName
from tierkv.settings import DiskSettings
from tierkv.testing.faulty_io import DroppingIO, FailingIO, FullIO, PowerCut
from tierkv.testing.tier_suite import get, key_of, put
from tierkv.tiers.base import GetOutcome, PutOutcome
from tierkv.tiers.disk import DiskTier
from tierkv.tiers.disk.io import FileIO, SegmentIO

KIB = 1024
SIZE = 20_000
SETTINGS = DiskSettings(384 * KIB, segment_bytes=128 * KIB, direct_io=False, quarantine_entries=2)
"""Room for 15 blocks of 24 KiB in three segments."""


class Model:
    """What the tier acknowledged, and what it was asked for and had not answered yet."""

    def __init__(self) -> None:
        self.present: set[int] = set()
        self.unsure: set[int] = set()

    def put(self, tier: DiskTier, numbers: list[int]) -> None:
        self.unsure |= set(numbers) - self.present
        for number, outcome in zip(numbers, put(tier, numbers, SIZE), strict=True):
            if outcome is not PutOutcome.NO_SPACE:
                self.present.add(number)
        self.unsure -= set(numbers)

    def delete(self, tier: DiskTier, numbers: list[int]) -> None:
        self.unsure |= set(numbers) & self.present
        self.present -= set(numbers)
        tier.delete([key_of(number) for number in numbers])
        self.unsure -= set(numbers)

    def check(self, tier: DiskTier) -> None:
        for number in range(60):
            (outcome,) = get(tier, [number], SIZE)
            if number in self.present:
                assert outcome is GetOutcome.HIT, f"block {number} was acknowledged and is gone"
            elif number in self.unsure:
                assert outcome is not GetOutcome.DAMAGED, f"block {number} was indexed before its bytes were safe"
            else:
                assert outcome is GetOutcome.MISS, f"block {number} came back"
        tier.check_integrity()


def live(tier: DiskTier, model: Model) -> None:
    """A life with growth, fragmentation, reuse of places and a full tier."""
    model.put(tier, [0, 1, 2])
    model.put(tier, [3, 4, 5, 6, 7, 8])
    model.delete(tier, [1, 4, 5])
    model.put(tier, [10, 11])
    model.delete(tier, [0, 2, 10])
    model.put(tier, list(range(20, 32)))
    model.delete(tier, list(range(20, 26)))
    model.put(tier, [1, 4, 40, 41])


def open_tier(folder: Path, medium: SegmentIO) -> DiskTier:
    folder.mkdir(exist_ok=True)
    return DiskTier(folder, SETTINGS, FrameCodec(), io=medium)


def operations_of_a_life(folder: Path) -> int:
    medium = FailingIO(FileIO(direct=False))
    tier = open_tier(folder, medium)
    model = Model()
    live(tier, model)
    model.check(tier)
    assert len(model.present) > 8
    tier.close()
    return medium.operations.index("read")


@pytest.mark.parametrize("tears", [False, True], ids=["dropped", "torn"])
def test_a_power_cut_at_any_operation_loses_nothing_acknowledged(tmp_path: Path, tears: bool) -> None:
    count = operations_of_a_life(tmp_path / "whole")
    assert count > 30
    for fail_at in range(1, count + 1):
        folder = tmp_path / f"{fail_at}"
        disk = DroppingIO(tears=tears, seed=fail_at)
        model = Model()
        with pytest.raises(PowerCut):
            live_until_the_cut(folder, FailingIO(disk, fail_at=fail_at), model, disk.crash)
        tier = open_tier(folder, FileIO(direct=False))
        model.check(tier)
        assert put(tier, [50], SIZE) != [PutOutcome.ALREADY]
        tier.close()


def live_until_the_cut(folder: Path, medium: SegmentIO, model: Model, crash: Callable[[], None]) -> None:
    tier: DiskTier | None = None
    try:
        tier = open_tier(folder, medium)
        live(tier, model)
    finally:
        crash()
        if tier is not None:
            tier.close()


def test_a_disk_that_lies_about_syncs_loses_blocks_but_serves_no_wrong_one(tmp_path: Path) -> None:
    """It breaks what is assumed of the medium, so acknowledged blocks may go; it also shows that the cuts above do drop writes."""
    disk = DroppingIO(ignores_sync=True)
    tier = open_tier(tmp_path, disk)
    assert put(tier, [1, 2, 3], SIZE) == [PutOutcome.STORED] * 3
    assert get(tier, [1, 2, 3], SIZE) == [GetOutcome.HIT] * 3
    disk.crash()
    tier.close()
    tier = open_tier(tmp_path, FileIO(direct=False))
    assert get(tier, [1, 2, 3], SIZE) == [GetOutcome.DAMAGED] * 3
    assert get(tier, [1, 2, 3], SIZE) == [GetOutcome.MISS] * 3
    tier.check_integrity()
    tier.close()


def test_a_failing_operation_refuses_the_call_and_leaves_nothing_behind(tmp_path: Path) -> None:
    count = operations_of_a_life(tmp_path / "whole")
    for fail_at in range(2, count + 1):  # the first is the making of the index, which refuses the whole tier
        medium = FailingIO(FileIO(direct=False), fail_at=fail_at, error=OSError(errno.EIO, "input/output error"))
        tier = open_tier(tmp_path / f"{fail_at}", medium)
        model = Model()
        try:
            live(tier, model)
        except UnavailableError:  # a delete that was refused deleted nothing
            model.present |= model.unsure
            model.unsure.clear()
        medium.fail_at = None
        model.check(tier)
        tier.close()
        tier = open_tier(tmp_path / f"{fail_at}", FileIO(direct=False))
        model.check(tier)
        tier.close()


def test_a_failing_sync_is_not_believed_later(tmp_path: Path) -> None:
    medium = FailingIO(DroppingIO(), error=OSError(errno.EIO, "input/output error"))
    tier = open_tier(tmp_path, medium)
    assert put(tier, [1], SIZE) == [PutOutcome.STORED]
    medium.fail_at = len(medium.operations) + 2  # the write passes, its sync does not
    assert put(tier, [2, 3], SIZE) == [PutOutcome.NO_SPACE] * 2
    assert medium.operations[-2:] == ["write", "sync"]
    assert "refuses writes" in str(tier.degraded)
    assert get(tier, [1, 2, 3], SIZE) == [GetOutcome.HIT, GetOutcome.MISS, GetOutcome.MISS]
    tier.check_integrity()
    assert put(tier, [2, 3], SIZE) == [PutOutcome.STORED] * 2
    assert tier.degraded is None
    tier.close()


def test_an_unreadable_segment_costs_its_blocks_and_no_others(tmp_path: Path) -> None:
    medium = FailingIO(FileIO(direct=False), error=OSError(errno.EIO, "input/output error"))
    tier = open_tier(tmp_path, medium)
    put(tier, [1, 2, 3], SIZE)
    medium.fail_at = len(medium.operations) + 1
    assert get(tier, [2], SIZE) == [GetOutcome.DAMAGED]
    assert get(tier, [1, 2, 3], SIZE) == [GetOutcome.HIT, GetOutcome.MISS, GetOutcome.HIT]
    assert [item.placed[0].key for item in tier.quarantined()] == [key_of(2)]
    assert "cannot be read" in tier.quarantined()[0].problem
    tier.check_integrity()
    tier.close()


def test_one_failing_read_of_a_run_is_tried_frame_by_frame(tmp_path: Path) -> None:
    medium = FailingIO(FileIO(direct=False), error=OSError(errno.EIO, "input/output error"))
    tier = open_tier(tmp_path, medium)
    put(tier, [1, 2, 3], SIZE)
    medium.fail_at = len(medium.operations) + 1
    assert get(tier, [1, 2, 3], SIZE) == [GetOutcome.HIT] * 3
    assert medium.operations[-4:] == ["read"] * 4
    tier.close()


def test_a_full_medium_is_survived_and_space_is_used_when_it_comes(tmp_path: Path) -> None:
    """One segment of three fits: the blocks in it stay and are reused, the rest is refused until there is room."""
    medium = FullIO(FileIO(direct=False), room_bytes=130 * KIB)
    tier = open_tier(tmp_path, medium)
    assert put(tier, list(range(8)), SIZE) == [PutOutcome.STORED] * 5 + [PutOutcome.NO_SPACE] * 3
    assert "No space" in str(tier.degraded) or "no space" in str(tier.degraded)
    assert tier.name is TierName.DISK
    assert get(tier, list(range(5)), SIZE) == [GetOutcome.HIT] * 5
    tier.delete([key_of(0), key_of(3)])
    assert put(tier, [10, 11, 12], SIZE) == [PutOutcome.STORED] * 2 + [PutOutcome.NO_SPACE]
    tier.check_integrity()
    medium.room_bytes = 1024 * KIB
    assert put(tier, [12, 13], SIZE) == [PutOutcome.STORED] * 2
    assert tier.degraded is None
    tier.check_integrity()
    tier.close()
