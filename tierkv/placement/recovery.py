"""Recovery: fills the index and the policies from what the tiers still hold. Runs once, before anything else, at about 10 µs a block.

The disk's blocks are on disk; the arena's are READY but unverified: their first reader, or their way to disk, checks them.
"""

from __future__ import annotations

from collections.abc import Callable

from tierkv.index.entry import BlockEntry
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.lifecycle import BlockState
from tierkv.model.outcomes import BlockRecord, Durability, MissReason
from tierkv.placement.residency import Residency


def recover(books: Residency, is_registered: Callable[[NamespaceId], bool]) -> None:
    """Takes in every record of disk and arena, oldest first. What no longer fits a smaller capacity is let go.

    is_registered — whether the disk knows a namespace. A record on disk of one that it does not know is damaged: nobody could read
    or delete it, and its key could not be saved again.
    """
    _recover_disk(books, is_registered)
    _recover_host(books)


def _recover_disk(books: Residency, is_registered: Callable[[NamespaceId], bool]) -> None:
    if books.disk is None or books.disk_policy is None:
        return
    surplus: list[BlockKey] = []
    for record in books.disk.records():
        books.index.saw_generation(record.generation)
        if not is_registered(record.namespace_id):
            surplus.append(record.key)
            continue
        entry = _entry_of(record)
        entry.is_on_disk = True
        books.index.add(entry)
        weight = books.disk.footprint_bytes(record.payload_bytes)
        if books.disk_policy.used + weight > books.disk_policy.capacity:
            selection = books.disk_policy.select_victims(record.key, weight, lambda _: False)
            victims = [record.key] if selection.refused else list(selection.victims)
            for victim in victims:
                books.lose_disk(victim, MissReason.EVICTED, is_policy_informed=True)
            surplus += victims
            if selection.refused:
                continue
        books.disk_policy.on_insert(record.key, weight)
    if surplus:
        books.disk.delete(surplus)


def _recover_host(books: Residency) -> None:
    for record, extent in books.host.recovered():
        books.index.saw_generation(record.generation)
        entry = books.index.get(record.key)
        weight = books.host.footprint_bytes(record.block_bytes)
        if books.host_policy.used + weight > books.host_policy.capacity:
            books.host.release_extents([extent])
            books.to_forget.add(record.key)
            continue
        if entry is None:
            entry = _entry_of(record)
            # What the arena alone holds was committed and not yet written, or is volatile; a demotion will tell.
            entry.durability = Durability.VOLATILE
        entry.state = BlockState.READY
        entry.extent = extent
        entry.record = record
        books.index.add(entry)
        books.host_policy.on_insert(record.key, weight)


def _entry_of(record: BlockRecord) -> BlockEntry:
    return BlockEntry(record.key, record.namespace_id, record.parent, record.block_bytes, record.generation)
