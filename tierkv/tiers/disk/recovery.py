"""What an earlier process left in the disk's index, claimed in the allocator of this one; what cannot be right is forgotten."""

from __future__ import annotations

from tierkv.model.keys import BlockKey
from tierkv.tiers.disk.index import DiskIndex
from tierkv.tiers.extents import ExtentAllocator
from tierkv.tiers.records import collector_paused, resolve_overlaps


def claim_recorded(index: DiskIndex, allocator: ExtentAllocator) -> None:
    """Claims the extents of blocks and of quarantined copies. Blocks win over quarantined copies, later blocks over earlier ones.

    Cost: about 2 µs a record. May raise `lmdb.Error` where something must be forgotten and cannot.
    """
    with collector_paused():
        _claim_recorded(index, allocator)


def _claim_recorded(index: DiskIndex, allocator: ExtentAllocator) -> None:
    held = index.places()
    isolated = {BlockKey(b"quarantine %d" % item.number): item for item in index.quarantined()}
    claims = held + [(name, item.placed[1], -1) for name, item in isolated.items()]
    kept, dropped = resolve_overlaps(claims, allocator.is_extent)
    gone = set(dropped)
    wrong_blocks = [key for key, _, _ in held if key in gone]
    if wrong_blocks:
        index.delete(wrong_blocks)
    right_numbers = {item.number for name, item in isolated.items() if name not in gone}
    wrong_numbers = [number for number in index.quarantine_numbers() if number not in right_numbers]
    if wrong_numbers:
        index.forget_quarantined(wrong_numbers)
    allocator.claim_many(kept)
