"""`tierkv status`: the lines on policies and on the write budget."""

from tierkv.cli.status import _policy_lines
from tierkv.model.outcomes import PolicyStats, StoreStats, TierName


def stats(**more):
    return StoreStats("1", 2.0, (), {}, {}, 0, 0, 0, **more)


def test_every_policy_has_a_line_and_the_budget_one():
    policy = PolicyStats(TierName.HOST, "arc-age", 2_048, 1_024, 3, 4, 5, 6, 512.0, -1.25)
    assert _policy_lines(stats(policies=(policy,), write_budget_left_bytes=3_072)) == [
        "host policy: arc-age, once 2.0 KiB, again 1.0 KiB, expected 0 B; remembers 7 gone, 11 have come back so far; p 512 B, w -1.25",
        "write budget left: 3.0 KiB",
    ]


def test_without_them_there_is_none():
    assert _policy_lines(stats()) == []
