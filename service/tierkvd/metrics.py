"""Metrics: a snapshot of the store as Prometheus families. docs/operations.md, "Metrics", lists them.

The table of moves below turns the store's counters into families with labels; what it does not name stays in `tierkv_events`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tierkv.answers import PoolFill
from tierkv.model.outcomes import PolicyStats, StoreStats
from tierkv.store import TieredStore

_EVICTIONS = {
    "evictions_drop": ("host", "drop"),
    "evictions_demote": ("host", "demote"),
    "evictions_discard": ("host", "discard"),
    "disk_evictions": ("disk", "room"),
    "device_evictions": ("device", "room"),
}
_BYTES_MOVED = {
    "disk_written_bytes": "host_to_disk",
    "promoted_bytes": "disk_to_host",
    "streamed_in_bytes": "client_to_host",
    "streamed_out_bytes": "host_to_client",
}


class StoreCollector:
    """Turns a snapshot of the store into metrics when Prometheus asks."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        stats = self._store.stats()
        yield from _fill(stats)
        yield from _traffic(stats)
        yield from _policies(stats.policies)
        yield from _pools(self._store.pool_fill())
        for name, value in (("sessions", stats.sessions), ("leases", stats.leases), ("reservations", stats.reservations)):
            yield GaugeMetricFamily(f"tierkv_{name}", f"Open {name}.", value=value)
        events, keys = self._store.trail.size()
        yield GaugeMetricFamily("tierkv_trail_events", "Events that explanations can draw on.", value=events)
        yield GaugeMetricFamily("tierkv_trail_keys", "Keys that those events speak of.", value=keys)
        if stats.write_budget_left_bytes is not None:
            text = "Bytes that may still be written to disk before the budget is spent."
            yield GaugeMetricFamily("tierkv_write_budget_left_bytes", text, value=stats.write_budget_left_bytes)
        yield GaugeMetricFamily("tierkv_degraded", "Things that do not work now; status says which.", value=len(stats.degraded))
        yield GaugeMetricFamily("tierkv_uptime_seconds", "Seconds since the store was opened.", value=stats.uptime_s)


def _fill(stats: StoreStats) -> Iterator[Metric]:
    for name, text in (("capacity_bytes", "Capacity"), ("used_bytes", "Bytes used"), ("blocks", "Blocks held")):
        rows = [((tier.name,), getattr(tier, name)) for tier in stats.tiers]
        yield _gauge(f"tierkv_tier_{name}", f"{text} by tier.", ("tier",), rows)


def _traffic(stats: StoreStats) -> Iterator[Metric]:
    counters = stats.counters
    yield _counter("tierkv_hits", "Blocks served, by the tier they were found in.", ("tier",), _rows(stats.hits))
    yield _counter("tierkv_misses", "Blocks not served, by reason.", ("reason",), _rows(stats.misses))
    evictions = [(labels, counters.get(name, 0)) for name, labels in _EVICTIONS.items()]
    yield _counter("tierkv_evictions", "Blocks that left a tier to make room.", ("tier", "cause"), evictions)
    moved = [((direction,), counters.get(name, 0)) for name, direction in _BYTES_MOVED.items()]
    yield _counter("tierkv_moved_bytes", "Bytes of blocks moved, by direction.", ("direction",), moved)
    others = {name: count for name, count in counters.items() if name not in _EVICTIONS and name not in _BYTES_MOVED}
    yield _counter("tierkv_events", "What else happened: damage, refusals, expiries.", ("event",), _rows(others))


def _policies(policies: Sequence[PolicyStats]) -> Iterator[Metric]:
    by_list = ("tier", "list")
    hits = [row for each in policies for row in _of_lists(each, {"b1": each.ghost_hits_b1, "b2": each.ghost_hits_b2})]
    yield _counter(
        "tierkv_ghost_hits", "Blocks that came back after they had left a tier, by the list that remembered them.", by_list, hits
    )
    weights = [
        row
        for each in policies
        for row in _of_lists(each, {"t1": each.t1_bytes, "t2": each.t2_bytes, "expected": each.waiting_bytes})
    ]
    yield _gauge(
        "tierkv_policy_list_bytes",
        "Bytes in the policy's lists: used once (t1), more often (t2), expected at a known time (expected).",
        by_list,
        weights,
    )
    ghosts = [row for each in policies for row in _of_lists(each, {"b1": each.b1_keys, "b2": each.b2_keys})]
    yield _gauge(
        "tierkv_policy_ghost_keys", "Keys that the policy remembers of blocks that left t1 (b1) or t2 (b2).", by_list, ghosts
    )
    yield _gauge(
        "tierkv_policy_p", "What the policy aims to give t1, in bytes.", ("tier",), [((each.tier,), each.p) for each in policies]
    )
    yield _gauge(
        "tierkv_policy_w",
        "How much older t2 may grow than t1, as a power of two.",
        ("tier",),
        [((each.tier,), each.w) for each in policies],
    )


def _pools(pools: Sequence[PoolFill]) -> Iterator[Metric]:
    if not pools:
        return
    rows: list[tuple[tuple[str, ...], float]] = []
    for pool in pools:
        in_use = pool.num_pages - pool.num_free - pool.num_cached
        states = {"free": pool.num_free, "cached": pool.num_cached, "in_use": in_use}
        rows += [((pool.device, state), value) for state, value in states.items()]
    yield _gauge("tierkv_pages", "Pages of a device's pool, by what they are used for.", ("device", "state"), rows)


def _of_lists(policy: PolicyStats, values: Mapping[str, int]) -> list[tuple[tuple[str, ...], float]]:
    return [((policy.tier, name), value) for name, value in values.items()]


def _rows(values: Mapping[str, int]) -> list[tuple[tuple[str, ...], float]]:
    return [((key,), value) for key, value in sorted(values.items())]


def _counter(name: str, text: str, labels: Sequence[str], rows: Sequence[tuple[tuple[str, ...], float]]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _gauge(name: str, text: str, labels: Sequence[str], rows: Sequence[tuple[tuple[str, ...], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family
