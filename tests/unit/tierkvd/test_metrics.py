"""Metrics: every family is there, with the labels that docs/operations.md names, and says what the store says."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.tierkvd.daemon_rig import BLOCK_BYTES, KEYS, NAMESPACE, TIMEOUT_S
from tierkv.answers import PoolFill
from tierkv.model.outcomes import PolicyStats, StoreStats, TierName, TierStats
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkvd.metrics import StoreCollector


class Trail:
    def size(self):
        return 7, 70


class Store:
    """A store that tells what a test wants told."""

    def __init__(self, stats, pools=()):
        self.trail = Trail()
        self.stats = lambda: stats
        self.pool_fill = lambda: pools


def samples(store):
    """(name, labels) → value of every sample."""
    registry = CollectorRegistry()
    registry.register(StoreCollector(store))
    text = generate_latest(registry).decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_become_families_with_labels():
    counters = {
        "evictions_drop": 1,
        "evictions_demote": 2,
        "evictions_discard": 3,
        "disk_evictions": 4,
        "device_evictions": 10,
        "disk_written_bytes": 5,
        "promoted_bytes": 6,
        "streamed_in_bytes": 7,
        "streamed_out_bytes": 8,
        "damaged": 9,
    }
    tiers = (TierStats(TierName.HOST, 100, 50, 5),)
    policies = (
        PolicyStats(TierName.HOST, "arc-age", 10, 20, 30, 40, 50, 60, 70.5, -2.0),
        PolicyStats(TierName.DISK, "lru", 11),
    )
    stats = StoreStats(
        "1", 2.0, tiers, {"host": 3}, {"evicted": 4}, 5, 6, 7, counters, ("bad",), policies, write_budget_left_bytes=0
    )
    assert samples(Store(stats, pools=(PoolFill("cpu", 16, 3, 4),))) == {
        ("tierkv_tier_capacity_bytes", "host"): 100,
        ("tierkv_tier_used_bytes", "host"): 50,
        ("tierkv_tier_blocks", "host"): 5,
        ("tierkv_hits_total", "host"): 3,
        ("tierkv_misses_total", "evicted"): 4,
        ("tierkv_evictions_total", "drop", "host"): 1,
        ("tierkv_evictions_total", "demote", "host"): 2,
        ("tierkv_evictions_total", "discard", "host"): 3,
        ("tierkv_evictions_total", "disk", "room"): 4,
        ("tierkv_evictions_total", "device", "room"): 10,
        ("tierkv_moved_bytes_total", "host_to_disk"): 5,
        ("tierkv_moved_bytes_total", "disk_to_host"): 6,
        ("tierkv_moved_bytes_total", "client_to_host"): 7,
        ("tierkv_moved_bytes_total", "host_to_client"): 8,
        ("tierkv_events_total", "damaged"): 9,
        ("tierkv_ghost_hits_total", "b1", "host"): 50,
        ("tierkv_ghost_hits_total", "b2", "host"): 60,
        ("tierkv_ghost_hits_total", "b1", "disk"): 0,
        ("tierkv_ghost_hits_total", "b2", "disk"): 0,
        ("tierkv_policy_list_bytes", "host", "t1"): 10,
        ("tierkv_policy_list_bytes", "host", "t2"): 20,
        ("tierkv_policy_list_bytes", "expected", "host"): 0,
        ("tierkv_policy_list_bytes", "disk", "expected"): 0,
        ("tierkv_policy_list_bytes", "disk", "t1"): 11,
        ("tierkv_policy_list_bytes", "disk", "t2"): 0,
        ("tierkv_policy_ghost_keys", "b1", "host"): 30,
        ("tierkv_policy_ghost_keys", "b2", "host"): 40,
        ("tierkv_policy_ghost_keys", "b1", "disk"): 0,
        ("tierkv_policy_ghost_keys", "b2", "disk"): 0,
        ("tierkv_policy_p", "host"): 70.5,
        ("tierkv_policy_p", "disk"): 0,
        ("tierkv_policy_w", "host"): -2.0,
        ("tierkv_policy_w", "disk"): 0,
        ("tierkv_pages", "cpu", "free"): 3,
        ("tierkv_pages", "cached", "cpu"): 4,
        ("tierkv_pages", "cpu", "in_use"): 9,
        ("tierkv_sessions",): 5,
        ("tierkv_leases",): 6,
        ("tierkv_reservations",): 7,
        ("tierkv_trail_events",): 7,
        ("tierkv_trail_keys",): 70,
        ("tierkv_write_budget_left_bytes",): 0,
        ("tierkv_degraded",): 1,
        ("tierkv_uptime_seconds",): 2.0,
    }


def test_without_a_budget_there_is_no_metric_of_it():
    stats = StoreStats("1", 2.0, (), {}, {}, 0, 0, 0)
    assert ("tierkv_write_budget_left_bytes",) not in samples(Store(stats))


def test_without_a_device_there_is_no_metric_of_pages():
    stats = StoreStats("1", 2.0, (), {}, {}, 0, 0, 0)
    assert not [sample for sample in samples(Store(stats)) if sample[0] == "tierkv_pages"]


async def test_a_real_store_fills_them(rig):
    async with rig.session() as (_, metadata):
        await rig.register(metadata)
        await rig.save(metadata, KEYS[:4])
        get = pb.GetRequest(namespace_id=NAMESPACE, keys=b"".join(KEYS[:4]))
        [event async for event in rig.stub.Get(get, metadata=metadata, timeout=TIMEOUT_S)]
        await rig.stub.Flush(pb.FlushRequest(), timeout=TIMEOUT_S)
    told = samples(rig.store)
    assert told["tierkv_hits_total", "host"] == 4
    assert told["tierkv_moved_bytes_total", "client_to_host"] == 4 * BLOCK_BYTES
    assert told["tierkv_moved_bytes_total", "host_to_client"] == 4 * BLOCK_BYTES
    assert told["tierkv_moved_bytes_total", "host_to_disk"] >= 4 * BLOCK_BYTES
    assert told["tierkv_policy_list_bytes", "host", "t1"] + told["tierkv_policy_list_bytes", "host", "t2"] >= 4 * BLOCK_BYTES
    assert told["tierkv_trail_keys",] >= 8
