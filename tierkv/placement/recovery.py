"""Recovery: fills the index and the policies from what the tiers still hold. Runs once, before anything else, at about 20 µs a block.

The disk's blocks are on disk; the arena's are READY but unverified: their first reader, or their way to disk, checks them. What
cannot be used any more is let go: blocks of a namespace that nobody knows, and blocks whose parent is gone. The policies may know of
blocks that are gone, and not of others: whoever put them back settles that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tierkv.index.entry import BlockEntry
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.lifecycle import BlockEvent, BlockState
from tierkv.model.outcomes import BlockRecord, Durability, MissReason, TierName
from tierkv.placement.residency import Residency
from tierkv.policies.base import Survivor

Settle: TypeAlias = Callable[[TierName, Sequence[Survivor[BlockKey]]], Sequence[BlockKey]]
"""Makes the survivors, oldest first, the resident entries of a tier's policy; returns who must leave, tails before their heads."""


def recover(books: Residency, is_registered: Callable[[NamespaceId], bool], settle: Settle) -> None:
    """Takes in every record of disk and arena. What no longer fits a smaller capacity is let go, as the policies choose.

    is_registered — whether the disk knows a namespace. A record on disk of one that it does not know is damaged: nobody could read
    or delete it, and its key could not be saved again.
    """
    surplus, disk_weights = _load_disk(books, is_registered)
    _load_host(books)
    for entry in _unreachable(books):
        _let_go(books, entry, surplus)
    if books.disk_policy is not None:
        on_disk = [entry for entry in books.index if entry.is_on_disk]
        for key in settle(
            TierName.DISK, [Survivor(entry.key, disk_weights[entry.key], entry.parent) for entry in _in_order(on_disk)]
        ):
            surplus.append(key)
            books.lose_disk(key, MissReason.EVICTED, is_policy_informed=True)
    in_arena = [entry for entry in books.index if entry.state is BlockState.READY]
    in_host = [
        Survivor(entry.key, books.host.footprint_bytes(entry.block_bytes), entry.parent, is_below=entry.is_on_disk)
        for entry in _in_order(in_arena)
    ]
    for key in settle(TierName.HOST, in_host):
        victim = books.index.get(key)
        if victim is not None and victim.state is BlockState.READY:  # else it left with the block that it follows
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


def _in_order(entries: Iterable[BlockEntry]) -> list[BlockEntry]:
    """In the order in which they were saved."""
    return sorted(entries, key=lambda entry: entry.generation)


def _entry_of(record: BlockRecord) -> BlockEntry:
    return BlockEntry(record.key, record.namespace_id, record.parent, record.block_bytes, record.generation)
