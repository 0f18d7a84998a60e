"""A real daemon makes the simulator's decisions: a trace replayed against it, with tiny blocks, gives the simulator's hits to the block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tierkv.client import Client, connect
from tierkv.model.keys import BlockKey
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import TierName
from tierkv.simulator.cache import TierCache
from tierkv.simulator.catalogue import DAEMON_POLICIES
from tierkv.simulator.trace import Trace, read_trace
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv.testing.deadline import wait_until

BLOCK_BYTES = 4096
FRAME_BYTES = 8192  # header and block, in whole pages
HOST_PAGES = 260
HOST_BLOCKS = 247  # 95 % of them, to the byte: the rest is headroom
LAYOUT = Layout((BLOCK_BYTES,), "uint8", 1)
IDENTITY = Identity(weights="replay")
NAMESPACE = IDENTITY.fingerprint(LAYOUT)
SMALL_TRACE = Path(__file__).parent.parent / "data" / "chat_trace.jsonl"
CONTENT = memoryview(bytes(BLOCK_BYTES))


def key_of(block: int) -> BlockKey:
    return BlockKey(block.to_bytes(32, "big"))


def traces() -> list[object]:
    """The small trace, and the beginning of a real one where there are any."""
    folder = os.environ.get("TIERKV_TRACES")
    real = Path(folder, "conversation.jsonl.xz") if folder else Path("conversation.jsonl.xz")
    absent = pytest.mark.skipif(not real.exists(), reason="TIERKV_TRACES names no folder with the real traces")
    return [pytest.param(SMALL_TRACE, id="chat"), pytest.param(real, id="conversation", marks=absent)]


class LiveCache:
    """A daemon driven as the simulator drives its cache: one request after the other, each to its end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        client.register(IDENTITY, LAYOUT)

    def request(self, blocks: tuple[int, ...]) -> tuple[int, int]:
        """Hits, and those of them that were on disk only."""
        client, keys = self._client, [key_of(block) for block in blocks]
        lease = client.acquire(NAMESPACE, keys)
        num_hits = len(lease.blocks())
        on_disk = lease.tiers.count(TierName.DISK)
        if num_hits < len(keys):
            parent = keys[num_hits - 1] if num_hits else None
            client.put(NAMESPACE, keys[num_hits:], [CONTENT] * (len(keys) - num_hits), parent=parent)
        client.release(lease)
        # What is being written or read is no victim; the simulator knows no such moments.
        client.flush()
        wait_until(lambda: client.stats().leases == 0, timeout_s=10, what="the lease to end")
        return num_hits, on_disk


@pytest.fixture(params=["arc", "arc-size", "lru"])
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def live(tmp_path: Path, policy: str) -> Iterator[tuple[LiveCache, int]]:
    """A daemon, and how many blocks its disk holds."""
    disk_blocks = 3 * HOST_BLOCKS
    options = DaemonOptions(
        data=tmp_path / "data",
        run_dir=tmp_path / "run",
        host_memory=f"{HOST_PAGES * BLOCK_BYTES}",
        disk=f"{disk_blocks * FRAME_BYTES}",
        arena_folder=tmp_path / "arena",
        extra=("--policy", policy),
    )
    with start_daemon(options, log=tmp_path / "log"), connect(options.run_dir) as client:
        yield LiveCache(client), disk_blocks


@pytest.mark.parametrize("path", traces())
def test_a_daemon_hits_what_the_simulator_hits(live: tuple[LiveCache, int], policy: str, path: Path) -> None:
    daemon, disk_blocks = live
    trace: Trace = read_trace(path)
    maker = DAEMON_POLICIES["lru-chain" if policy == "lru" else policy]
    simulated = TierCache(maker, HOST_BLOCKS, disk_blocks, staging_blocks=HOST_PAGES - HOST_BLOCKS)
    differences = []
    for number, request in enumerate(trace.requests[:1500]):
        blocks = request.keys[: request.num_full]
        if not blocks:
            continue
        served = simulated.request(blocks)
        found = daemon.request(blocks)
        if found != (served.prefix_hits, served.disk_hits):
            differences.append((number, found, served))
    assert differences == []
