"""A real daemon makes the simulator's decisions: a trace replayed against it, with tiny blocks, gives the simulator's hits to the block."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tierkv.client import Client, connect
from tierkv.client.observer import Observer
from tierkv.model.hints import Hints
from tierkv.model.keys import BlockKey
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import TierName
from tierkv.simulator.cache import TierCache
from tierkv.simulator.catalogue import DAEMON_POLICIES
from tierkv.simulator.trace import Trace, TraceWriter, read_trace
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

    def __init__(self, client: Client, run_dir: Path) -> None:
        self._client = client
        self.run_dir = run_dir
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
        self._settle()
        return num_hits, on_disk

    def turn(self, request_id: str, prompt: tuple[int, ...], answer: tuple[int, ...]) -> int:
        """A prompt, and the answer that it is saved with; the prompt's hits."""
        client, hints = self._client, Hints(request_id=request_id)
        keys = [key_of(block) for block in (*prompt, *answer)]
        lease = client.acquire(NAMESPACE, keys[: len(prompt)], hints=hints)
        num_hits = len(lease.blocks())
        for start, stop in ((num_hits, len(prompt)), (len(prompt), len(keys))):
            if start < stop:
                parent = keys[start - 1] if start else None
                client.put(NAMESPACE, keys[start:stop], [CONTENT] * (stop - start), parent=parent, hints=hints)
        client.release(lease)
        self._settle()
        return num_hits

    def _settle(self) -> None:
        """What is being written or read is no victim; the simulator knows no such moments."""
        self._client.flush()
        wait_until(lambda: self._client.stats().leases == 0, timeout_s=10, what="the lease to end")


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
        yield LiveCache(client, options.run_dir), disk_blocks


@pytest.mark.parametrize("path", traces())
def test_a_daemon_hits_what_the_simulator_hits(live: tuple[LiveCache, int], policy: str, path: Path) -> None:
    daemon, disk_blocks = live
    trace: Trace = read_trace(path)
    maker = DAEMON_POLICIES["lru-chain" if policy == "lru" else policy]
    simulated = TierCache(maker, HOST_BLOCKS, disk_blocks, staging_blocks=HOST_PAGES - HOST_BLOCKS)
    differences = []
    for number, request in enumerate(trace.requests[:400]):
        blocks = request.keys[: request.num_full]
        if not blocks:
            continue
        served = simulated.request(blocks)
        found = daemon.request(blocks)
        if found != (served.prefix_hits, served.disk_hits):
            differences.append((number, found, served))
    assert differences == []


def test_a_recording_of_live_traffic_replays_to_the_hits_it_had(live: tuple[LiveCache, int], policy: str, tmp_path: Path) -> None:
    """Conversations whose turns save their answers too, under one request id: blocks that nobody asked for before the next turn."""
    daemon, disk_blocks = live
    chance = random.Random(7)
    turns: list[int] = [0] * 30
    hits = asked = 0
    with Observer(daemon.run_dir) as observer:
        recording = observer.record()
        for number in range(200):
            chat = chance.randrange(len(turns))
            turns[chat] += 1
            blocks = (*range(4), *(1000 * (chat + 1) + idx for idx in range(3 * turns[chat])))
            hits += daemon.turn(f"request {number}", blocks[:-1], blocks[-1:])
            asked += len(blocks) - 1
        events = [event for _, event in zip(range(400), recording, strict=False)]
        recording.stop()
    path = tmp_path / "mine.jsonl"
    with TraceWriter(path) as trace_file:
        for event in events:
            block_tokens = [event.block_tokens] * len(event.hash_ids)
            trace_file.append(event.hash_ids, timestamp_ms=0, input_tokens=1, block_tokens=block_tokens, is_save=event.is_save)
    trace = read_trace(path)
    assert (trace.num_requests, trace.num_accesses) == (200, asked)
    maker = DAEMON_POLICIES["lru-chain" if policy == "lru" else policy]
    simulated = TierCache(maker, HOST_BLOCKS, disk_blocks, staging_blocks=HOST_PAGES - HOST_BLOCKS)
    found = 0
    for request in trace.requests:
        if request.is_save:
            simulated.save(request.keys)
        else:
            found += simulated.request(request.keys).prefix_hits
    assert found == hits
    assert 0 < hits < asked
