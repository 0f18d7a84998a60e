"""The keeper: writes down what the policies of the tiers go through, so that they are warm after a restart or a kill.

One thread, twice a second: it takes the noted events away under the store's lock (O(1)), encodes and appends them outside of it. Now
and then, and at the start, it copies a policy under the lock (copies of whole lists) and writes a snapshot, with which the log begins anew.

What it writes is advice. A medium that fails stops the writing, is counted and told, and is tried again half a minute later, with
a snapshot; neither serving nor any block depends on it. Nothing is written twice that a snapshot already tells.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tierkv.model.keys import BlockKey
from tierkv.placement.worker import Worker
from tierkv.policies.base import Survivor
from tierkv.policies.image import RestorablePolicy
from tierkv.policy_state.files import FolderFiles, StateFiles
from tierkv.policy_state.recording import RecordingPolicy
from tierkv.policy_state.scribe import PolicyScribe
from tierkv.policy_state.settling import settle
from tierkv.policy_state.snapshot import Checksum

INTERVAL_S = 0.5


class PolicyKeeper:
    """Keeps the policies of one store. Made before recovery, started after it, stopped before the tiers close."""

    def __init__(
        self,
        folder: Path,
        *,
        lock: threading.RLock,
        checksum: Checksum,
        files: Callable[[Path, str], StateFiles] = FolderFiles,
    ) -> None:
        """folder — `policy/` in the data folder, made when it is needed; lock — the store's; checksum — 16 bytes for a buffer."""
        self._folder = folder
        self._lock = lock
        self._checksum = checksum
        self._files = files
        self._scribes: dict[str, PolicyScribe] = {}
        self._capacities: dict[str, int] = {}
        self._worker = Worker("tierkv-policy", self._tick, wait_s=lambda: INTERVAL_S)
        self._is_running = False
        self.counters: Counter[str] = Counter()

    def keep(self, tier: str, policy: RestorablePolicy[BlockKey]) -> RecordingPolicy:
        """Puts `policy`, which is empty, back as it was written down, and returns the one to use in its place.

        tier — names the files. Until `settle` it has the capacity of the time it was written. Blocks for I/O; raises nothing: a
        state that cannot be read or believed leaves the policy cold and is logged and counted.
        """
        self._capacities[tier] = policy.capacity
        scribe = PolicyScribe(tier, policy, self._files(self._folder, tier), self._lock, self._checksum, self.counters)
        self._scribes[tier] = scribe
        scribe.restore()
        return scribe.policy

    def settle(self, tier: str, survivors: Sequence[Survivor[BlockKey]]) -> tuple[BlockKey, ...]:
        """Fits a policy to the blocks that are there and to its capacity; returns who must leave, tails first. See `settling`."""
        scribe = self._scribes[tier]
        leaving = settle(scribe.policy.inner, survivors, self._capacities[tier])
        scribe.policy.capacity = self._capacities[tier]
        return leaving

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences for status: what was lost at the start, and what cannot be written now."""
        return tuple(problem for scribe in self._scribes.values() for problem in scribe.problems)

    def start(self) -> None:
        self._is_running = True
        self._worker.start()

    def stop(self) -> None:
        """Ends the thread and writes the last events down. May be called twice, and without a start: then nothing is written."""
        if not self._is_running:
            return
        self._is_running = False
        self._worker.stop()
        for scribe in self._scribes.values():
            scribe.finish()

    def _tick(self) -> bool:
        for scribe in self._scribes.values():
            scribe.write()
        return False
