"""The recorder: a policy that notes what another one is told, and leaves everything else to it.

Called under the store's lock; a call costs one small value more, whatever the number of keys. What is noted keeps the very
sequences that the policy was called with (`Policy`, caller 5) until the keeper takes it away.

Invariant: what `drain` returned, in order, leads a policy from one state to the next, unless it says that it has lost track.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tierkv.model.keys import BlockKey
from tierkv.policies.base import Admission, Cause, PolicyState
from tierkv.policies.image import RestorablePolicy
from tierkv.policy_state.events import Accessed, Admitted, Event, LetGo, Removed

PENDING_EVENTS_LIMIT = 1 << 16
PENDING_KEYS_LIMIT = 1 << 22


@dataclass(frozen=True, slots=True)
class Drained:
    """What was noted since the last drain; is_complete — whether that is everything."""

    events: list[Event]
    is_complete: bool


class RecordingPolicy:
    """A `Policy[BlockKey]` over another one."""

    def __init__(self, inner: RestorablePolicy[BlockKey]) -> None:
        self.inner = inner
        self.capacity = inner.capacity
        self._events: list[Event] = []
        self._num_keys = 0
        self._is_complete = True

    @property
    def used(self) -> int:
        return self.inner.used

    def __contains__(self, key: BlockKey) -> bool:
        return key in self.inner

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[BlockKey]:
        return iter(self.inner)

    def on_access(self, keys: Sequence[BlockKey]) -> None:
        self.inner.on_access(keys)
        self._note(Accessed(keys), len(keys))

    def admit(
        self,
        keys: Sequence[BlockKey],
        weights: Sequence[int],
        is_pinned: Callable[[BlockKey], bool],
        *,
        cause: Cause,
        head: Sequence[BlockKey] = (),
        spent: int = 0,
    ) -> Admission[BlockKey]:
        outcome = self.inner.admit(keys, weights, is_pinned, cause=cause, head=head, spent=spent)
        self._note(Admitted(keys, weights, outcome, cause, head), len(keys) + len(head) + len(outcome.victims))
        return outcome

    def make_room(self, weight: int, is_pinned: Callable[[BlockKey], bool]) -> tuple[BlockKey, ...]:
        victims = self.inner.make_room(weight, is_pinned)
        if victims:
            self._note(LetGo(victims), len(victims))
        return victims

    def on_remove(self, key: BlockKey) -> None:
        self.inner.on_remove(key)
        self._note(Removed((key,)), 1)

    def expect(self, keys: Sequence[BlockKey], in_events: int | None) -> None:
        self.inner.expect(keys, in_events)  # hints do not survive a restart

    def state(self) -> PolicyState:
        return self.inner.state()

    def check_integrity(self) -> None:
        self.inner.check_integrity()

    def drain(self) -> Drained:
        """Takes away what was noted. O(1)."""
        drained = Drained(self._events, self._is_complete)
        self._events, self._num_keys, self._is_complete = [], 0, True
        return drained

    def _note(self, event: Event, num_keys: int) -> None:
        if not self._is_complete:
            return
        self._events.append(event)
        self._num_keys += num_keys
        if len(self._events) > PENDING_EVENTS_LIMIT or self._num_keys > PENDING_KEYS_LIMIT:
            # Nobody takes it away: the next snapshot tells more, and costs no more.
            self._events, self._is_complete = [], False
