"""What it costs to write the policies down: an access to 1,000 blocks with and without a recorder, its bytes, and a snapshot.

`python -m tierkv_bench.policy_state` prints microseconds. The reference is the policy alone, measured in turns with the recorder.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from tierkv.model.chains import Chains
from tierkv.model.keys import BlockKey
from tierkv.policies import ArcPolicy, Cause
from tierkv.policy_state.events import Accessed, encode
from tierkv.policy_state.lineage import Lineage
from tierkv.policy_state.recording import RecordingPolicy
from tierkv.policy_state.replaying import replay
from tierkv.policy_state.snapshot import encode_snapshot

CALL_BLOCKS = 1000
NUM_CHAINS = 100


@dataclass(frozen=True, slots=True)
class PolicyStateCosts:
    """Medians, in microseconds: of one access to 1,000 blocks, of its encoding, and of a snapshot of 100,000 blocks."""

    access_alone_us: float
    access_recorded_us: float
    encode_access_us: float
    """With the keys of the admission; the keys of a client are equal ones in other places."""
    encode_strange_access_us: float
    replay_access_us: float
    copy_snapshot_us: float
    """Under the store's lock."""
    encode_snapshot_us: float


def measure(rounds: int = 100) -> PolicyStateCosts:
    """Fills a policy with 100 chains of 1,000 blocks and measures `rounds` calls of each kind, in turns."""
    chains = [[BlockKey((chain << 32 | idx).to_bytes(32, "big")) for idx in range(CALL_BLOCKS)] for chain in range(NUM_CHAINS)]
    alone: ArcPolicy[BlockKey] = ArcPolicy(NUM_CHAINS * CALL_BLOCKS, Chains())
    inner: ArcPolicy[BlockKey] = ArcPolicy(NUM_CHAINS * CALL_BLOCKS, Chains())
    recorded, lineage = RecordingPolicy(inner), Lineage()
    for keys in chains:
        alone.admit(keys, [1] * CALL_BLOCKS, lambda _: False, cause=Cause.SAVE)
        recorded.admit(keys, [1] * CALL_BLOCKS, lambda _: False, cause=Cause.SAVE)
    for event in recorded.drain().events:
        encode(event, lineage)
    times: dict[str, list[float]] = {name: [] for name in PolicyStateCosts.__dataclass_fields__}

    def timed(name: str, call: Callable[[], object]) -> None:
        started = time.perf_counter()
        call()
        times[name].append(1e6 * (time.perf_counter() - started))

    for idx in range(rounds):
        keys = chains[idx % NUM_CHAINS]
        strange = [BlockKey(bytes(bytearray(key))) for key in keys]
        timed("access_alone_us", lambda keys=keys: alone.on_access(keys))  # type: ignore[misc]
        timed("access_recorded_us", lambda keys=keys: recorded.on_access(keys))  # type: ignore[misc]
        timed("encode_access_us", lambda keys=keys: encode(Accessed(keys), lineage))  # type: ignore[misc]
        timed("encode_strange_access_us", lambda keys=strange: encode(Accessed(keys), lineage))  # type: ignore[misc]
        timed("replay_access_us", lambda keys=keys: replay(alone, Accessed(lineage.chain(keys[-1], CALL_BLOCKS))))  # type: ignore[misc]
    for generation in range(5):
        timed("copy_snapshot_us", inner.export_image)
        image = inner.export_image()
        timed("encode_snapshot_us", lambda: encode_snapshot(image, lineage, generation, xxhash.xxh3_128_digest))  # noqa: B023 - called at once
    return PolicyStateCosts(**{name: statistics.median(values) for name, values in times.items()})


if __name__ == "__main__":
    print(measure())  # noqa: T201 - it is a command
