"""Recovery: fills the index and the policies from what the tiers still hold. Runs once, before anything else, at about 20 µs a block.

The disk's blocks are on disk; the arena's are READY but unverified: their first reader, or their way to disk, checks them. What
cannot be used any more is let go: blocks of a namespace that nobody knows, and blocks whose parent is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tierkv.index.entry import BlockEntry
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.lifecycle import BlockEvent, BlockState
from tierkv.model.outcomes import BlockRecord, Durability, MissReason
from tierkv.placement.planner import plan_chains
from tierkv.placement.residency import Residency
from tierkv.policies.base import Cause, Policy


def recover(books: Residency, is_registered: Callable[[NamespaceId], bool]) -> None:
    """Takes in every record of disk and arena. What no longer fits a smaller capacity is let go, oldest first.

    is_registered — whether the disk knows a namespace. A record on disk of one that it does not know is damaged: nobody could read
    or delete it, and its key could not be saved again.
    """
    surplus, disk_weights = _load_disk(books, is_registered)
    _load_host(books)
    for entry in _unreachable(books):
        _let_go(books, entry, surplus)
    if books.disk_policy is not None:
        on_disk = [entry for entry in books.index if entry.is_on_disk]
        for key in _admit(books.disk_policy, on_disk, lambda entry: disk_weights[entry.key]):
            surplus.append(key)
            books.lose_disk(key, MissReason.EVICTED, is_policy_informed=True)
    in_arena = [entry for entry in books.index if entry.state is BlockState.READY]
    for key in _admit(books.host_policy, in_arena, lambda entry: books.host.footprint_bytes(entry.block_bytes)):
        victim = books.index.get(key)
        assert victim is not None, "a policy knows what was admitted just now"
        victim.step(BlockEvent.EVICT)
        books.finish_eviction(victim)
    surplus += books.to_unwrite
    books.to_unwrite.clear()
    if surplus and books.disk is not None:
        books.disk.delete(surplus)


def _load_disk(books: Residency, is_registered: Callable[[NamespaceId], bool]) -> tuple[list[BlockKey], dict[BlockKey, int]]:
    """Entries for what is on disk; returns the keys that the disk is to forget, and what the others weigh there."""
    surplus: list[BlockKey] = []
    weights: dict[BlockKey, int] = {}
    if books.disk is None:
        return surplus, weights
    for record in books.disk.records():
        books.index.saw_generation(record.generation)
        if not is_registered(record.namespace_id):
            surplus.append(record.key)
            continue
        entry = _entry_of(record)
        entry.is_on_disk = True
        weights[record.key] = books.disk.footprint_bytes(record.payload_bytes)
        books.index.add(entry)
    return surplus, weights


def _load_host(books: Residency) -> None:
    for record, extent in books.host.recovered():
        books.index.saw_generation(record.generation)
        entry = books.index.get(record.key)
        if entry is None:
            entry = _entry_of(record)
            # What the arena alone holds was committed and not yet written, or is volatile; a demotion will tell.
            entry.durability = Durability.VOLATILE
            books.index.add(entry)
        entry.state = BlockState.READY
        entry.extent = extent
        entry.record = record


def _unreachable(books: Residency) -> list[BlockEntry]:
    """Entries that no chain of parents leads to."""
    reached: set[BlockKey] = set()
    for entry in books.index:
        if entry.parent is None:
            reached.add(entry.key)
            reached.update(books.index.chains.descendants(entry.key))
    return [entry for entry in books.index if entry.key not in reached]


def _let_go(books: Residency, entry: BlockEntry, surplus: list[BlockKey]) -> None:
    """Takes out an entry that no policy knows yet."""
    if entry.is_on_disk:
        surplus.append(entry.key)
    if entry.extent is not None:
        books.host.release_extents([entry.extent])
        books.to_forget.add(entry.key)
    books.index.remove(entry, MissReason.EVICTED)


def _admit(policy: Policy[BlockKey], entries: Iterable[BlockEntry], weight_of: Callable[[BlockEntry], int]) -> list[BlockKey]:
    """Takes survivors into a policy, chain after chain in the order in which they were saved; returns who finds no room."""
    ordered = sorted(entries, key=lambda entry: entry.generation)
    left: list[BlockKey] = []
    for chain in plan_chains(ordered):
        keys = [entry.key for entry in chain]
        admission = policy.admit(keys, [weight_of(entry) for entry in chain], _is_pinned, cause=Cause.PREFETCH)
        left += admission.victims
        left += reversed(keys[admission.num_admitted :])
    return left


def _is_pinned(_key: BlockKey) -> bool:
    return False


def _entry_of(record: BlockRecord) -> BlockEntry:
    return BlockEntry(record.key, record.namespace_id, record.parent, record.block_bytes, record.generation)
