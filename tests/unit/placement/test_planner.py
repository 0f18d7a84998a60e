"""The planner alone: which moves follow from what is known of a block."""

from __future__ import annotations

import pytest

from tierkv.placement.planner import Eviction, Readiness, Run, plan_eviction, plan_runs

R, V, W, P = Readiness.READY, Readiness.VERIFY, Readiness.WAIT, Readiness.PROMOTE


@pytest.mark.parametrize(
    ("is_on_disk", "is_disk_writable", "expected"),
    [
        (True, True, Eviction.DROP),
        (True, False, Eviction.DROP),
        (False, True, Eviction.DEMOTE),
        (False, False, Eviction.DISCARD),
    ],
)
def test_eviction(is_on_disk: bool, is_disk_writable: bool, expected: Eviction) -> None:
    assert plan_eviction(is_on_disk=is_on_disk, is_disk_writable=is_disk_writable) is expected


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], []),
        ([R, R, R], []),
        ([P], [Run(0, 1, P)]),
        ([R, P, P, R], [Run(1, 3, P)]),
        ([P, P, P, P, P], [Run(0, 2, P), Run(2, 4, P), Run(4, 5, P)]),
        ([V, P, W, W, R, V], [Run(0, 1, V), Run(1, 2, P), Run(2, 4, W), Run(5, 6, V)]),
    ],
)
def test_runs_have_one_kind_and_at_most_two_blocks(kinds: list[Readiness], expected: list[Run]) -> None:
    assert plan_runs(kinds, run_blocks=2) == expected
