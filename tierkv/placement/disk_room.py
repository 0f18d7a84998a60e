"""Room on the disk: which blocks leave it for a batch, and which of the batch may enter. Pure memory, under the store's lock.

What has to leave is out of the books when a call returns; the disk writer forgets it on the medium before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierkv.index.entry import BlockEntry
from tierkv.index.trail import What
from tierkv.model.keys import BlockKey
from tierkv.model.lifecycle import BlockState
from tierkv.model.outcomes import MissReason, TierName
from tierkv.placement.residency import Residency, rule_of
from tierkv.policies.base import Cause, Policy
from tierkv.tiers.base import Tier


class DiskRoom:
    """Makes room on `disk`, whose books `residency` has."""

    def __init__(self, residency: Residency, disk: Tier) -> None:
        assert residency.disk_policy is not None, "a disk has a policy"
        self._books = residency
        self._disk = disk
        self._policy: Policy[BlockKey] = residency.disk_policy

    def is_admitted(self, entry: BlockEntry) -> bool:
        """Whether the disk policy has taken a block in, be it written yet or not."""
        return entry.key in self._policy

    def plan(self, chain: Sequence[BlockEntry]) -> tuple[list[BlockKey], int]:
        """Takes the leading blocks of a chain into the disk policy; returns who must leave the disk first, and how many entered."""
        weights = [self._disk.footprint_bytes(entry.sealed_record().payload_bytes) for entry in chain]
        head = [entry.key for entry in self._books.index.ancestors(chain[0].parent) if entry.key in self._policy]
        protected = set(head)
        admission = self._policy.admit(
            [entry.key for entry in chain],
            weights,
            lambda key: key in protected or self.is_pinned(key),
            cause=Cause.PREFETCH if all(entry.was_on_disk for entry in chain) else Cause.LOAD,
            head=head,
        )
        self._lose(admission.victims)
        return list(admission.victims), admission.num_admitted

    def plan_spare(self, entries: Sequence[BlockEntry], spare_blocks: int) -> list[BlockKey]:
        """More victims for blocks that the disk policy has admitted but the tier cannot place: `spare_blocks` for each."""
        waiting = [entry for entry in entries if self.is_admitted(entry)]  # others were deleted meanwhile
        weight = sum(self._disk.footprint_bytes(entry.sealed_record().payload_bytes) for entry in waiting)
        if weight == 0:
            return []
        victims = self._policy.make_room(spare_blocks * weight, self.is_pinned)
        self._lose(victims)
        return list(victims)

    def _lose(self, victims: Sequence[BlockKey]) -> None:
        if victims:
            self._books.trail.note(What.EVICTED, victims, rule_of(self._policy), tier=TierName.DISK)
        for victim in victims:
            self._books.lose_disk(victim, MissReason.EVICTED, is_policy_informed=True)
        self._books.counters["disk_evictions"] += len(victims)

    def is_pinned(self, key: BlockKey) -> bool:
        """Whether a block must not leave the disk now."""
        index = self._books.index
        entry = index.get(key)
        if entry is None:
            return False
        if not entry.is_on_disk:  # being written
            return True
        if entry.state is BlockState.FILLING:
            return True
        if entry.state is not BlockState.FREE or entry.num_device_copies:
            return False
        # Nobody else has it: neither who reads it nor what follows it in the arena or on a device may be left behind.
        return (entry.pins > 0 or self._books.retention.is_retained(key)) or any(
            child.state is not BlockState.FREE or not child.is_on_disk or child.num_device_copies > 0
            for below in index.chains.children(key)
            if (child := index.get(below)) is not None
        )
