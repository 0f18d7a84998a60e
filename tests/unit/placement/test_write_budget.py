"""The write budget: never more in 24 hours than it allows, and no block by block."""

import random

from tierkv.placement.write_budget import WriteBudget

DAY_S = 86_400.0


def test_it_starts_with_an_hours_share():
    budget = WriteBudget(24_000, 0.0)
    assert (budget.left_bytes(0.0), budget.is_spent(0.0)) == (1_000, False)


def test_a_batch_may_overdraw_it_and_the_next_wait():
    budget = WriteBudget(24_000, 0.0)
    budget.take(1_200, 0.0)
    assert (budget.left_bytes(0.0), budget.is_spent(0.0)) == (0, True)
    # 200 to pay back and a twentieth of the hour's share to begin again: 250 at 23,000 a day.
    assert budget.is_spent(0.99 * 250 / 23_000 * DAY_S)
    assert not budget.is_spent(1.01 * 250 / 23_000 * DAY_S)


def test_it_holds_no_more_than_an_hours_share():
    budget = WriteBudget(24_000, 0.0)
    assert budget.left_bytes(10 * DAY_S) == 1_000


def test_no_day_sees_more_than_the_budget_and_one_batch():
    chance = random.Random(3)
    budget, now_s, written = WriteBudget(24_000, 0.0), 0.0, []
    while now_s < 5 * DAY_S:
        now_s += chance.expovariate(1 / 60.0)
        if not budget.is_spent(now_s):
            size = chance.randint(1, 100)
            budget.take(size, now_s)
            written.append((now_s, size))
    worst = max(sum(size for at, size in written if start <= at < start + DAY_S) for start, _ in written[::50])
    assert 20_000 < worst <= 24_000 + 100
