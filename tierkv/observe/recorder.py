"""The recorder: live requests as a trace, for replays. Block ids are hashed with a salt of each recording, so that keys stay here.

A request is what an `acquire` asks for, whole; a `reserve` for blocks that its session did not ask for before is a request of its own.
Nobody waits for a reader: what does not fit into its queue is left out and counted. Hashing is the reader's work, not the caller's.
Invariant: while nobody records, the store spends one test of `is_active` a call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from blake3 import blake3

from tierkv.answers import RecordedRequest
from tierkv.clock import Clock
from tierkv.errors import CapacityError
from tierkv.index.block_index import BlockIndex
from tierkv.index.holds import SessionId
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import ReserveOutcome

QUEUE_EVENTS = 1_024
QUEUE_KEYS = 524_288
"""Keys that wait for one reader, all its events together."""
RECORDINGS_LIMIT = 4
REQUEST_KEYS = 262_144
"""Keys of one recorded request: their ids fit into one message of the protocol."""
_SALT_BYTES = 32
_ID_BYTES = 8


class _Waiting(NamedTuple):
    at_s: float
    keys: Sequence[BlockKey]
    block_tokens: int
    session: int
    dropped: int
    is_save: bool


class Recording:
    """One reader's queue. `take` may be called from any thread."""

    def __init__(self, *, salt: bytes, started_at_s: float, wake: Callable[[], None], lock: threading.RLock) -> None:
        self._salt = salt
        self._started_at_s = started_at_s
        self._wake = wake
        self._lock = lock
        self._queue: deque[_Waiting] = deque()
        self._num_keys = 0
        self._num_dropped = 0

    def push(self, at_s: float, keys: Sequence[BlockKey], block_tokens: int, session: int, *, is_save: bool) -> None:
        """Queues a request and wakes the reader, or counts it as dropped. Lock held."""
        if len(self._queue) >= QUEUE_EVENTS or self._num_keys + len(keys) > QUEUE_KEYS:
            self._num_dropped += 1
            return
        self._queue.append(_Waiting(at_s, keys, block_tokens, session, self._num_dropped, is_save))
        self._num_keys += len(keys)
        self._num_dropped = 0
        self._wake()

    def drop(self) -> None:
        """Counts a request that cannot be recorded. Lock held."""
        self._num_dropped += 1

    def take(self) -> RecordedRequest | None:
        """The oldest request that waits, hashed here (about 1 ms for 1,000 blocks, without the lock); None where none does."""
        with self._lock:
            if not self._queue:
                return None
            waiting = self._queue.popleft()
            self._num_keys -= len(waiting.keys)
        return RecordedRequest(
            timestamp_ms=(waiting.at_s - self._started_at_s) * 1_000,
            input_length=len(waiting.keys) * waiting.block_tokens,
            hash_ids=tuple(self._id_of(key) for key in waiting.keys),
            block_tokens=waiting.block_tokens,
            session=waiting.session,
            dropped=waiting.dropped,
            is_save=waiting.is_save,
        )

    def _id_of(self, key: BlockKey) -> int:
        return int.from_bytes(blake3(key, key=self._salt).digest(length=_ID_BYTES), "little")


class Recorder:
    """Who records. Everything but `take` of a recording is called with the store's lock held; `subscribe` and `end` take it."""

    def __init__(self, *, clock: Clock, lock: threading.RLock, index: BlockIndex) -> None:
        self.is_active = False
        self._clock = clock
        self._lock = lock
        self._index = index
        self._recordings: list[Recording] = []
        self._sessions: dict[SessionId, int] = {}
        self._asked: dict[SessionId, frozenset[BlockKey]] = {}
        self._num_sessions = 0

    def subscribe(self, wake: Callable[[], None]) -> Recording:
        """A recording of every request from now on. wake — called, from any thread, when there is something to take.

        Raises CapacityError when too many record. End it with `end`.
        """
        with self._lock:
            if len(self._recordings) >= RECORDINGS_LIMIT:
                raise CapacityError("too many record at once; end one", limit=RECORDINGS_LIMIT)
            salt = self._clock.random_bytes(_SALT_BYTES)
            recording = Recording(salt=salt, started_at_s=self._clock.monotonic_s(), wake=wake, lock=self._lock)
            self._recordings.append(recording)
            self.is_active = True
        return recording

    def end(self, recording: Recording) -> None:
        """Nothing more is queued for it. May be called twice."""
        with self._lock:
            if recording in self._recordings:
                self._recordings.remove(recording)
            if not self._recordings:
                self.is_active = False
                self._sessions.clear()
                self._asked.clear()
                self._num_sessions = 0

    def acquired(self, session: SessionId, keys: Sequence[BlockKey], block_tokens: int) -> None:
        """A request: all that an acquire asked for."""
        if keys:
            self._asked[session] = frozenset(keys)
            self._push(session, tuple(keys), block_tokens, is_save=False)

    def reserved(
        self,
        session: SessionId,
        keys: Sequence[BlockKey],
        outcomes: Sequence[ReserveOutcome],
        parent: BlockKey | None,
        block_tokens: int,
    ) -> None:
        """A save, which goes without saying where its session asked for the blocks when it last acquired."""
        fresh = [
            key
            for key, outcome in zip(keys, outcomes, strict=True)
            if outcome is ReserveOutcome.GRANTED or outcome is ReserveOutcome.REFUSED
        ]
        asked = self._asked.get(session, frozenset())
        if all(key in asked for key in fresh):
            return
        head = self._head(parent, len(keys))
        if head is None:
            for recording in self._recordings:
                recording.drop()
        else:
            self._push(session, (*head, *keys), block_tokens, is_save=True)

    def end_session(self, session: SessionId) -> None:
        self._sessions.pop(session, None)
        self._asked.pop(session, None)

    def _head(self, parent: BlockKey | None, num_keys: int) -> list[BlockKey] | None:
        """The blocks from the start of the sequence to `parent`; None where they are not known, or too many."""
        head: list[BlockKey] = []
        while parent is not None:
            entry = self._index.get(parent)
            if entry is None or len(head) + num_keys >= REQUEST_KEYS:
                return None
            head.append(parent)
            parent = entry.parent
        head.reverse()
        return head

    def _push(self, session: SessionId, keys: tuple[BlockKey, ...], block_tokens: int, *, is_save: bool) -> None:
        number = self._sessions.get(session)
        if number is None:
            number = self._sessions[session] = self._num_sessions
            self._num_sessions += 1
        now_s = self._clock.monotonic_s()
        for recording in self._recordings:
            recording.push(now_s, keys, block_tokens, number, is_save=is_save)
