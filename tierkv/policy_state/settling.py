"""Settling: a policy that was put back meets what has survived, and the capacity of today."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tierkv.model.keys import BlockKey
from tierkv.policies.base import Cause, Survivor
from tierkv.policies.image import RestorablePolicy
from tierkv.policies.suffix import num_fitting


def settle(policy: RestorablePolicy[BlockKey], survivors: Sequence[Survivor[BlockKey]], capacity: int) -> tuple[BlockKey, ...]:
    """Makes the survivors, as far as they fit, the resident entries; returns who must leave, tails before their heads.

    Entries that are gone, or weigh something else now, become ghosts. What the policy does not know came after its last moment and is the
    most recent, of older ones too where the policy has started cold; a ghost that is still there was about to leave: it
    returns only into free room, and not where a lower tier has it. survivors — oldest first, each once. Who follows whom (the
    policy's chains) is known before. O(n).
    """
    weight_of = {survivor.key: survivor.weight for survivor in survivors}
    known = policy.export_image().weight_of()
    ordered = heads_first(survivors)
    strangers = [survivor for survivor in ordered if survivor.key not in known]
    stale = {key for key, weight in known.items() if key in policy and weight_of.get(key) != weight}
    if stale:  # asking a policy for its order is the dearest of all this
        policy.let_go([key for key in policy if key in stale])
    leftovers = [survivor for survivor in ordered if survivor.key in known and survivor.key not in policy]
    gone = set(policy.resize(capacity))
    _admit(policy, strangers, {survivor.key: survivor for survivor in survivors}, gone)
    _return(policy, leftovers, gone)
    _let_followers_go(policy, ordered, gone)
    return tuple(survivor.key for survivor in reversed(ordered) if survivor.key in gone)


def heads_first(survivors: Sequence[Survivor[BlockKey]]) -> list[Survivor[BlockKey]]:
    """The same, the most recent first, but none before the one it follows."""
    by_key = {survivor.key: survivor for survivor in survivors}
    ordered: list[Survivor[BlockKey]] = []
    seen: set[BlockKey] = set()
    for survivor in reversed(survivors):
        path: list[Survivor[BlockKey]] = []
        found: Survivor[BlockKey] | None = survivor
        while found is not None and found.key not in seen:
            seen.add(found.key)
            path.append(found)
            found = None if found.parent is None else by_key.get(found.parent)
        ordered += reversed(path)
    return ordered


def _admit(
    policy: RestorablePolicy[BlockKey],
    strangers: Sequence[Survivor[BlockKey]],
    by_key: Mapping[BlockKey, Survivor[BlockKey]],
    gone: set[BlockKey],
) -> None:
    fitting: list[Survivor[BlockKey]] = []
    for stranger in strangers:
        if stranger.weight > policy.capacity or stranger.parent in gone:
            gone.add(stranger.key)
        else:
            fitting.append(stranger)
    keys, weights = _columns(fitting)
    ancestors = _ancestors(fitting, by_key)  # must not leave for what follows them
    admission = policy.admit(keys, weights, ancestors.__contains__, cause=Cause.PREFETCH)
    gone.update(admission.victims, keys[admission.num_admitted :])


def _ancestors(survivors: Iterable[Survivor[BlockKey]], by_key: Mapping[BlockKey, Survivor[BlockKey]]) -> set[BlockKey]:
    ancestors: set[BlockKey] = set()
    for survivor in survivors:
        parent = survivor.parent
        while parent is not None and parent in by_key and parent not in ancestors:
            ancestors.add(parent)
            parent = by_key[parent].parent
    return ancestors


def _return(policy: RestorablePolicy[BlockKey], leftovers: Sequence[Survivor[BlockKey]], gone: set[BlockKey]) -> None:
    keys, weights = _columns(ghost for ghost in leftovers if not ghost.is_below)
    num_returned = num_fitting(weights, policy.capacity - policy.used)
    policy.admit(keys[:num_returned], weights[:num_returned], lambda _: False, cause=Cause.PREFETCH)
    gone.update(keys[num_returned:], (ghost.key for ghost in leftovers if ghost.is_below))


def _let_followers_go(policy: RestorablePolicy[BlockKey], ordered: Iterable[Survivor[BlockKey]], gone: set[BlockKey]) -> None:
    """Entries that cannot be used without one that leaves: they leave too, tails first."""
    followers: list[BlockKey] = []
    for survivor in ordered:
        if survivor.parent in gone and survivor.key in policy:
            gone.add(survivor.key)
            followers.append(survivor.key)
    policy.let_go(followers[::-1])


def _columns(survivors: Iterable[Survivor[BlockKey]]) -> tuple[list[BlockKey], list[int]]:
    listed = list(survivors)
    return [survivor.key for survivor in listed], [survivor.weight for survivor in listed]
