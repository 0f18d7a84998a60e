"""One tier's scribe: its recorder, its lineage and its files. Driven by the keeper, from one thread at a time."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from tierkv.model.keys import BlockKey
from tierkv.policies.image import PolicyImage, RestorablePolicy
from tierkv.policy_state.events import Event, encode
from tierkv.policy_state.files import StateFiles
from tierkv.policy_state.lineage import Lineage
from tierkv.policy_state.log import RECORD_BYTES_LIMIT, encode_log_header, encode_record
from tierkv.policy_state.recording import RecordingPolicy
from tierkv.policy_state.replaying import Restored, merged, restore
from tierkv.policy_state.snapshot import Checksum, encode_snapshot

_log = logging.getLogger(__name__)

LOG_BYTES_MIN = 4 << 20
"""A log below this, and below twice its snapshot, is not worth a snapshot."""
REPLAY_KEYS_MIN = 1 << 22
REPLAY_KEYS_PER_ENTRY = 64
"""A log that names more keys than these, in all, would take too long to go through at a start: about 0.2 µs a key."""
RETRY_TICKS = 60
"""Writes that are skipped after one that failed."""
TELL_TICKS = 1200
"""So long what was lost at the start is told: ten minutes. The count and the log keep it."""


class PolicyScribe:
    """Writes one policy down. Nothing here raises: it is advice."""

    def __init__(
        self,
        tier: str,
        policy: RestorablePolicy[BlockKey],
        files: StateFiles,
        lock: threading.RLock,
        checksum: Checksum,
        counters: Counter[str],
    ) -> None:
        self.policy = RecordingPolicy(policy)
        self._tier = tier
        self._files = files
        self._lock = lock
        self._checksum = checksum
        self._counters = counters
        self._lineage = Lineage()
        self._generation = 0
        self._num_records = 0
        self._snapshot_bytes = 0
        self._log_bytes = 0
        self._replay_keys = 0
        self._replay_limit = 0
        self._ticks_to_wait = 0
        self._ticks_to_tell = TELL_TICKS
        self._needs_snapshot = True
        self._start_problem = ""
        self._write_problem = ""

    @property
    def problems(self) -> list[str]:
        return [f"the policy of the {self._tier} tier {text}" for text in (self._start_problem, self._write_problem) if text]

    def restore(self) -> None:
        """Puts the policy back as far as what was written can be believed."""
        try:
            snapshot, log = self._files.read_snapshot(), self._files.read_log()
        except OSError as error:
            restored = Restored(Lineage(), problem=f"starts cold: its state cannot be read ({error})")
        else:
            restored = restore(self.policy.inner, snapshot, log, self._checksum)
        self._lineage, self._generation, self._start_problem = restored.lineage, restored.generation, restored.problem
        if restored.problem:
            self._counters["policy_state_lost"] += 1
            _log.warning("the policy of the %s tier %s", self._tier, restored.problem)

    def write(self) -> None:
        """Writes down what was noted since the last call, or a snapshot where one is due."""
        self._ticks_to_tell -= 1
        if self._ticks_to_tell == 0:
            self._start_problem = ""
        is_waiting = self._ticks_to_wait > 0
        self._ticks_to_wait -= is_waiting
        image: PolicyImage[BlockKey] | None = None
        with self._lock:
            drained = self.policy.drain()
            self._needs_snapshot |= not drained.is_complete
            if self._needs_snapshot and not is_waiting:
                image = self.policy.inner.export_image()
        try:
            payload = self._encode(drained.events)
            if image is not None:
                self._write_snapshot(image)
            elif payload and not self._needs_snapshot:
                self._append(payload)
        except OSError as error:
            self._suspend(error)
        except (
            Exception
        ) as error:  # a bug of ours, and the events are gone: it must cost neither a store's end nor a log with a gap
            _log.exception("what the policy of the %s tier went through could not be told", self._tier)
            self._suspend(error)

    def finish(self) -> None:
        """Writes the rest and closes the files."""
        self.write()
        self._files.close()

    def _encode(self, events: list[Event]) -> bytes:
        """Leads the lineage along; also where nobody will write the bytes, as the next snapshot builds on it."""
        history = merged(events)
        self._replay_keys += sum(len(event.keys) for event in history)
        return b"".join([encode(event, self._lineage) for event in history])

    def _append(self, payload: bytes) -> None:
        if len(payload) > RECORD_BYTES_LIMIT:
            self._needs_snapshot = True
            return
        record = encode_record(payload, self._generation, self._num_records, self._checksum)
        self._files.append(record)
        self._num_records += 1
        self._log_bytes += len(record)
        self._counters["policy_state_bytes"] += len(record)
        is_long = self._log_bytes > max(LOG_BYTES_MIN, 2 * self._snapshot_bytes)
        self._needs_snapshot = is_long or self._replay_keys > self._replay_limit

    def _write_snapshot(self, image: PolicyImage[BlockKey]) -> None:
        self._generation += 1
        pieces = encode_snapshot(image, self._lineage, self._generation, self._checksum)
        self._files.replace_snapshot(pieces)
        self._files.begin_log(encode_log_header(self._generation, self._checksum))
        self._snapshot_bytes = sum(map(len, pieces))
        self._num_records = self._log_bytes = self._replay_keys = 0
        self._replay_limit = max(REPLAY_KEYS_MIN, REPLAY_KEYS_PER_ENTRY * len(image.weights))
        self._needs_snapshot = False
        self._write_problem = ""
        self._counters["policy_state_bytes"] += self._snapshot_bytes
        self._counters["policy_state_snapshots"] += 1

    def _suspend(self, error: Exception) -> None:
        """What was written before stays as it is, a moment of the past; nothing is appended behind a gap."""
        self._files.close()
        self._needs_snapshot = True
        self._ticks_to_wait = RETRY_TICKS
        self._counters["policy_state_write_errors"] += 1
        if not self._write_problem:
            _log.warning("the policy of the %s tier cannot be written down for now: %s", self._tier, error)
        self._write_problem = f"cannot be written down for now ({error}); it will start colder after a kill"
