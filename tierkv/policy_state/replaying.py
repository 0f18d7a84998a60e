"""Putting a policy back: its snapshot, and what the log tells of the time after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tierkv.errors import DataError
from tierkv.model.keys import BlockKey
from tierkv.policies.image import RestorablePolicy
from tierkv.policy_state.events import Accessed, Admitted, Event, LetGo, Removed, decode
from tierkv.policy_state.lineage import Lineage
from tierkv.policy_state.log import LogReader, generation_of
from tierkv.policy_state.snapshot import Checksum, decode_snapshot


@dataclass(frozen=True, slots=True)
class Restored:
    """lineage — of the resident keys; problem — a sentence if something was lost.

    generation — the next snapshot's must be larger: no log that is there, whatever is in it, may seem to belong to that one.
    """

    lineage: Lineage
    generation: int = 0
    problem: str = ""


def restore(policy: RestorablePolicy[BlockKey], snapshot: bytes | None, log: bytes | None, checksum: Checksum) -> Restored:
    """Leads an empty policy to the last moment that can be believed; leaves it empty where none can. Raises nothing."""
    log = log or b""
    found = generation_of(log, checksum)
    if snapshot is None:
        return Restored(Lineage(), found)
    empty = policy.export_image()
    try:
        image, lineage, generation = decode_snapshot(snapshot, checksum)
        policy.restore_image(image)
        policy.check_integrity()
        reader = LogReader(log, generation, checksum)
        for payload in reader:
            for event in decode(payload, lineage):
                replay(policy, event)
        policy.check_integrity()
    except Exception as error:  # whatever these bytes lead to, the policy is advice
        policy.restore_image(empty)
        return Restored(Lineage(), found, f"starts cold: {_told(error)}")
    problem = f"has lost the end of its log: {reader.fault}" if reader.fault else ""
    return Restored(lineage, max(generation, found), problem)


def replay(policy: RestorablePolicy[BlockKey], event: Event) -> None:
    """Leads a policy past one event. KeyError for an event of another history."""
    match event:
        case Accessed(keys, num_times):
            policy.pass_time(num_times - 1)
            policy.on_access([key for key in keys if key in policy])
        case Admitted():
            policy.replay_admit(event.keys, event.weights, event.outcome, cause=event.cause, head=event.head)
        case LetGo(keys):
            policy.let_go(keys)
        case Removed(keys):
            for key in keys:
                policy.on_remove(key)


def merged(events: Sequence[Event]) -> list[Event]:
    """The same history in fewer events: equal accesses in a row become one, and so do removals in a row. Cost: O(1) an event.

    Sequences are equal here if they have the same ends and length and are found to be the same list.
    """
    result: list[Event] = []
    removed: list[BlockKey] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Removed):
            if not isinstance(last, Removed):
                removed = []
                result.append(Removed(removed))
            removed += event.keys
        elif isinstance(event, Accessed) and isinstance(last, Accessed) and _is_same(event.keys, last.keys):
            result[-1] = Accessed(event.keys, last.num_times + event.num_times)
        else:
            result.append(event)
    return result


def _is_same(one: Sequence[BlockKey], other: Sequence[BlockKey]) -> bool:
    if one is other or len(one) != len(other) or not one:
        return len(one) == len(other)
    return one[-1] == other[-1] and (one == other if type(one) is type(other) else list(one) == list(other))


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, DataError) else f"its state leads nowhere ({error!r})"
