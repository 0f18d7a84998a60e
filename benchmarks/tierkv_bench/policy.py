"""What deciding costs: the policies' part of the daemon's work, what keeping them warm adds, and what remembering for `explain` adds.

The subject is a call that acquires 1,000 resident blocks, one access to each on two tiers, and its release. Reference: the processor
time that a daemon spends on such a call altogether. The policies' own time is taken in this process, on the same calls.
Expected on paper: an access costs 0.15 µs a block and tier, 0.3 ms a call; a call 3 ms; so a tenth.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tierkv
from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.embedded import EmbeddedStore
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import Durability
from tierkv.policies.base import Policy
from tierkv.settings import KIB, MIB, DiskSettings, HostSettings, LimitSettings, StoreSettings
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv_bench import policy_state, workload
from tierkv_bench.harness import measure_s, run_interleaved
from tierkv_bench.stores import SHM

BLOCK_BYTES = 4 * KIB
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class PolicyCosts:
    """Fields of `tierkv bench policy --json`. Times are of one call; ratios are to the daemon's processor time, or to a call without a trail."""

    blocks: int
    calls: int
    daemon_cpu_us: float
    policy_us: float
    policy_ratio: float
    keeping_us: float
    keeping_ratio: float
    trail_ratio: float


def measure(*, blocks: int, calls: int, say: Callable[[str], None]) -> PolicyCosts:
    """Blocks for some ten seconds. Raises UnavailableError where no daemon starts."""
    say("calling a daemon")
    daemon_cpu_us = _daemon_cpu_us(blocks, calls)
    say("timing the policies")
    policy_us = _policy_us(blocks, calls)
    say("comparing with and without a trail")
    trail_ratio = _trail_ratio(blocks, calls)
    say("timing what is written down")
    costs = policy_state.measure()
    # Two tiers; that they note a call is in the policies' time already.
    keeping_us = 2 * costs.encode_strange_access_us
    assert daemon_cpu_us > 0, "too few calls for the clock of the system"
    return PolicyCosts(
        blocks=blocks,
        calls=calls,
        daemon_cpu_us=daemon_cpu_us,
        policy_us=policy_us,
        policy_ratio=policy_us / daemon_cpu_us,
        keeping_us=keeping_us,
        keeping_ratio=keeping_us / daemon_cpu_us,
        trail_ratio=trail_ratio,
    )


def _fill(store: BlockStore, blocks: int) -> tuple[NamespaceId, list[BlockKey]]:
    namespace = workload.register(store, "policy", BLOCK_BYTES, durability=Durability.INTERVAL)
    keys = workload.sequence(namespace, blocks)
    store.put(namespace.namespace_id, keys, [memoryview(bytes(BLOCK_BYTES))] * blocks)
    store.flush()
    return namespace.namespace_id, keys


def _call(store: BlockStore, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> None:
    store.release(store.acquire(namespace_id, keys))


def _daemon_cpu_us(blocks: int, calls: int) -> float:
    """Processor time of a daemon, all its threads together, for one call."""
    with tempfile.TemporaryDirectory(prefix="tierkv-bench-") as folder, tempfile.TemporaryDirectory(dir=SHM) as shm:
        root = Path(folder)
        options = DaemonOptions(
            data=root / "data",
            run_dir=root / "run",
            host_memory=str(4 * blocks * BLOCK_BYTES + MIB),
            disk=str(8 * blocks * BLOCK_BYTES + MIB),
            arena_folder=Path(shm) / "arena",
        )
        with start_daemon(options, log=root / "daemon.log") as daemon, tierkv.connect(options.run_dir) as store:
            namespace_id, keys = _fill(store, blocks)
            for _ in range(calls // 10 + 1):
                _call(store, namespace_id, keys)
            before_s = _cpu_s(daemon.pid)
            for _ in range(calls):
                _call(store, namespace_id, keys)
            return 1e6 * (_cpu_s(daemon.pid) - before_s) / calls


def _cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextmanager
def _opened(root: Path, blocks: int, *, trail_events: int) -> Iterator[EmbeddedStore]:
    settings = StoreSettings(
        data_folder=root / "data",
        host=HostSettings(4 * blocks * BLOCK_BYTES + MIB, folder=root / "arena", prefault=False, keep_on_stop=False),
        disk=DiskSettings(8 * blocks * BLOCK_BYTES + MIB, direct_io=False),
        limits=LimitSettings(trail_events=trail_events),
    )
    clock = SystemClock()
    with EmbeddedStore(open_tiered_store(settings, clock), clock=clock, discard_arena=True) as store:
        yield store


def _policy_us(blocks: int, calls: int) -> float:
    """What the policies of both tiers take of one call, their recorders included."""
    trail_events = LimitSettings().trail_events
    with (
        tempfile.TemporaryDirectory(prefix="tierkv-bench-") as folder,
        _opened(Path(folder), blocks, trail_events=trail_events) as store,
    ):
        namespace_id, keys = _fill(store, blocks)
        spent_s: list[float] = []
        for policy in store.tiered.policies():
            _time_accesses(policy, spent_s)
        per_call: list[float] = []
        for _ in range(calls):
            spent_s.clear()
            _call(store, namespace_id, keys)
            per_call.append(sum(spent_s))
    return 1e6 * statistics.median(per_call)


def _time_accesses(policy: Policy[BlockKey], spent_s: list[float]) -> None:
    access = policy.on_access

    def timed(keys: Sequence[BlockKey]) -> None:
        started = time.perf_counter()
        access(keys)
        spent_s.append(time.perf_counter() - started)

    policy.on_access = timed  # type: ignore[method-assign]  # the point of this module


def _trail_ratio(blocks: int, calls: int) -> float:
    """A call with the default trail ÷ one without, as the median of rounds taken in turns."""
    with tempfile.TemporaryDirectory(prefix="tierkv-bench-") as one, tempfile.TemporaryDirectory(prefix="tierkv-bench-") as two:
        limit = LimitSettings().trail_events
        with _opened(Path(one), blocks, trail_events=limit) as noting, _opened(Path(two), blocks, trail_events=0) as silent:
            cases = {}
            for name, store in (("noting", noting), ("silent", silent)):
                namespace_id, keys = _fill(store, blocks)
                cases[name] = lambda store=store, namespace_id=namespace_id, keys=keys: measure_s(
                    lambda: _call(store, namespace_id, keys)
                )
            timings = run_interleaved(cases, rounds=calls, warmup_rounds=calls // 10 + 1)
    return timings["noting"].median_s / timings["silent"].median_s
