"""Residency: the books of the host and the disk tier. Pure memory, always under the store's lock.

It asks the policies for victims, allocates and returns extents, pins and unpins, and keeps the lists of work for the mover
(`to_seal`, `to_forget`, `to_demote`). It does no I/O: bytes move in `tierkv.placement.mover`.

Invariants: an extent returns to the allocator exactly once, when its block has left the index and neither a lease nor a move looks
at it; a key in a policy is resident on that policy's tier; a victim is never pinned, reserved, filling or being moved.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from tierkv.index.block_index import BlockIndex
from tierkv.index.entry import BlockEntry
from tierkv.model.keys import BlockKey
from tierkv.model.lifecycle import BlockEvent, BlockState
from tierkv.model.outcomes import Extent, MissReason
from tierkv.placement import planner
from tierkv.policies.base import Policy
from tierkv.tiers.base import Tier
from tierkv.tiers.host import HostTier

_DEFRAGMENT_ROUNDS = 4
"""How often more victims are asked for when room is there but too scattered for a block."""


class Residency:
    """The books. Everything public here is called with the store's lock held."""

    def __init__(
        self,
        *,
        index: BlockIndex,
        host: HostTier,
        host_policy: Policy[BlockKey],
        disk: Tier | None,
        disk_policy: Policy[BlockKey] | None,
        is_disk_writable: Callable[[], bool],
    ) -> None:
        self.index = index
        self.host = host
        self.host_policy = host_policy
        self.disk = disk
        self.disk_policy = disk_policy
        self.counters: Counter[str] = Counter()
        self.to_demote: list[BlockEntry] = []
        self.to_seal: list[BlockEntry] = []
        self.to_forget: set[BlockKey] = set()
        self._is_disk_writable = is_disk_writable

    # -- room in the host tier ------------------------------------------------------------------------------------------

    def place(self, entries: Sequence[BlockEntry], event: BlockEvent) -> int:
        """Gives the leading entries an extent each and takes them into the host policy; returns how many got one.

        event — RESERVE (a client will write) or PROMOTE (the mover will read). Entries beyond the result are untouched. A placed
        entry cannot be a victim of a later one: it is not READY.
        """
        admitted: list[BlockEntry] = []
        for entry in entries:
            if not self._admit(entry.key, self.host.footprint_bytes(entry.block_bytes)):
                break
            entry.step(event)
            admitted.append(entry)
        placed = self._allocate(admitted)
        for entry in admitted[placed:]:
            self.host_policy.on_remove(entry.key)
            entry.step(BlockEvent.ABORT)
        while placed < len(entries) and self._is_scattered(entries[placed]) and self._place_scattered(entries[placed], event):
            placed += 1
        return placed

    def _is_scattered(self, entry: BlockEntry) -> bool:
        """Whether bytes enough are free, only not in one piece. Bytes that are still on their way down are not worth a good block."""
        return self.host.capacity_bytes - self.host.used_bytes >= self.host.footprint_bytes(entry.block_bytes)

    def _admit(self, key: BlockKey, weight: int) -> bool:
        selection = self.host_policy.select_victims(key, weight, self._is_pinned_in_host)
        if selection.refused:
            return False
        for victim in selection.victims:
            self._evict(victim)
        self.host_policy.on_insert(key, weight)
        return True

    def _allocate(self, entries: Sequence[BlockEntry]) -> int:
        """Extents for the leading entries, of one length and in one piece where possible (a later write is then one too)."""
        placed = 0
        while placed < len(entries):
            block_bytes = entries[placed].block_bytes
            alike = list(itertools.takewhile(lambda entry: entry.block_bytes == block_bytes, entries[placed:]))  # noqa: B023 - used up in this round
            extents = self.host.reserve(len(alike), block_bytes)
            for entry, extent in zip(alike, extents, strict=False):
                entry.extent = extent
            placed += len(extents)
            if len(extents) < len(alike):
                break
        return placed

    def _place_scattered(self, entry: BlockEntry, event: BlockEvent) -> bool:
        """Room is there by weight, but in pieces too small: evicts beyond need until a block fits."""
        weight = self.host.footprint_bytes(entry.block_bytes)
        for spare_blocks in range(1, _DEFRAGMENT_ROUNDS + 1):
            wanted = self.host_policy.capacity - self.host_policy.used + spare_blocks * weight
            selection = self.host_policy.select_victims(entry.key, wanted, self._is_pinned_in_host)
            if selection.refused:
                return False
            for victim in selection.victims:
                self._evict(victim)
            extents = self.host.reserve(1, entry.block_bytes)
            if extents:
                entry.extent = extents[0]
                entry.step(event)
                self.host_policy.on_insert(entry.key, weight)
                return True
        return False

    def _is_pinned_in_host(self, key: BlockKey) -> bool:
        entry = self.index.get(key)
        return entry is None or not entry.is_evictable

    def _evict(self, key: BlockKey) -> None:
        entry = self.index.get(key)
        assert entry is not None, "a policy names only resident keys"
        how = planner.plan_eviction(is_on_disk=entry.is_on_disk, is_disk_writable=self._is_disk_writable())
        self.counters[f"evictions_{how.value}"] += 1
        entry.step(BlockEvent.EVICT)
        if how is planner.Eviction.DEMOTE:
            entry.moves += 1
            self.to_demote.append(entry)
        else:
            self.finish_eviction(entry)

    def finish_eviction(self, entry: BlockEntry) -> None:
        """The host copy of an EVICTING block goes; its entry stays while the disk holds it."""
        entry.step(BlockEvent.EVICTED)
        self._return_extent(entry)
        if not entry.is_on_disk:
            self.index.remove(entry, MissReason.EVICTED)

    def rescue(self, entry: BlockEntry) -> bool:
        """A hit on an EVICTING block cancels its demotion; False if there is no room to keep it (it then leaves as planned)."""
        if not self._admit(entry.key, self.host.footprint_bytes(entry.block_bytes)):
            return False
        self.became_readable(entry, BlockEvent.TOUCH)
        self.counters["demotions_cancelled"] += 1
        return True

    # -- holding and letting go ------------------------------------------------------------------------------------------

    def pin(self, entry: BlockEntry) -> None:
        entry.pins += 1
        if entry.state is BlockState.READY:
            entry.step(BlockEvent.PIN)

    def unpin(self, entry: BlockEntry) -> None:
        entry.pins -= 1
        if entry.pins == 0 and entry.state is BlockState.LEASED:
            entry.step(BlockEvent.UNPIN)
        self._settle_lost(entry)

    def end_move(self, entry: BlockEntry) -> None:
        """A job of the mover no longer looks at the block's bytes."""
        entry.moves -= 1
        self._settle_lost(entry)

    def became_readable(self, entry: BlockEntry, event: BlockEvent) -> None:
        """COMMIT, VERIFIED or TOUCH: the bytes are complete and stay; leases that waited for them hold from now on."""
        entry.step(event)
        if entry.pins > 0:
            entry.step(BlockEvent.PIN)

    def abandon(self, entry: BlockEntry, reason: MissReason | None) -> None:
        """A RESERVED or FILLING block will not be completed: its extent returns, its entry stays only while the disk holds it."""
        self.host_policy.on_remove(entry.key)
        entry.step(BlockEvent.ABORT)
        self._return_extent(entry)
        if not entry.is_on_disk:
            self.index.remove(entry, reason)

    def lose_host(self, entry: BlockEntry, reason: MissReason | None) -> None:
        """The host copy is damaged or deleted: nobody finds it any more; the extent returns when nobody looks at it.

        Where the disk still holds the block, a fresh entry takes its place.
        """
        if entry.key in self.host_policy and self.index.is_current(entry):
            self.host_policy.on_remove(entry.key)
        entry.step(BlockEvent.LOSE)
        was_current = self.index.is_current(entry)
        self.index.remove(entry, None if entry.is_on_disk else reason)
        if was_current and entry.is_on_disk:
            self.index.add(
                BlockEntry(
                    key=entry.key,
                    namespace_id=entry.namespace_id,
                    parent=entry.parent,
                    block_bytes=entry.block_bytes,
                    generation=entry.generation,
                    record=entry.record,
                    is_on_disk=True,
                    durability=entry.durability,
                )
            )
        self._settle_lost(entry)

    def _settle_lost(self, entry: BlockEntry) -> None:
        if entry.state is BlockState.LOST and entry.pins == 0 and entry.moves == 0:
            entry.step(BlockEvent.FORGET)
            self._return_extent(entry)

    def _return_extent(self, entry: BlockEntry) -> None:
        if entry.extent is not None:
            self.host.release_extents([entry.extent])
            entry.extent = None
            self.to_forget.add(entry.key)
        entry.is_verified = False

    # -- the disk's books ------------------------------------------------------------------------------------------------

    def is_admitted_to_disk(self, entry: BlockEntry) -> bool:
        """Whether the disk policy has taken a block in, be it written yet or not."""
        return self.disk_policy is not None and entry.key in self.disk_policy

    def plan_disk_room(self, entry: BlockEntry) -> list[BlockKey] | None:
        """Takes a block into the disk policy; returns who must leave the disk first, or None when it is refused."""
        assert self.disk is not None
        assert self.disk_policy is not None
        weight = self.disk.footprint_bytes(entry.sealed_record().payload_bytes)
        selection = self.disk_policy.select_victims(entry.key, weight, self._is_pinned_on_disk)
        if selection.refused:
            return None
        for victim in selection.victims:
            self.lose_disk(victim, MissReason.EVICTED, is_policy_informed=True)
            self.counters["disk_evictions"] += 1
        self.disk_policy.on_insert(entry.key, weight)
        return list(selection.victims)

    def plan_spare_disk_room(self, entries: Sequence[BlockEntry], spare_blocks: int) -> list[BlockKey]:
        """More victims for blocks that the disk policy has admitted but the tier cannot place: `spare_blocks` beyond each."""
        assert self.disk is not None
        assert self.disk_policy is not None
        victims: list[BlockKey] = []
        for entry in entries:
            if entry.key not in self.disk_policy:
                continue  # deleted meanwhile
            weight = self.disk.footprint_bytes(entry.sealed_record().payload_bytes)
            self.disk_policy.on_remove(entry.key)
            wanted = self.disk_policy.capacity - self.disk_policy.used + spare_blocks * weight
            selection = self.disk_policy.select_victims(entry.key, wanted, self._is_pinned_on_disk)
            for victim in selection.victims:
                self.lose_disk(victim, MissReason.EVICTED, is_policy_informed=True)
            victims.extend(selection.victims)
            self.disk_policy.on_insert(entry.key, weight)
        self.counters["disk_evictions"] += len(victims)
        return victims

    def lose_disk(self, key: BlockKey, reason: MissReason | None, *, is_policy_informed: bool = False) -> None:
        """The disk no longer holds `key` (evicted, damaged, deleted)."""
        if not is_policy_informed and self.disk_policy is not None and key in self.disk_policy:
            self.disk_policy.on_remove(key)
        entry = self.index.get(key)
        if entry is not None:
            entry.is_on_disk = False
            if entry.state is BlockState.FREE:
                self.index.remove(entry, reason)

    def _is_pinned_on_disk(self, key: BlockKey) -> bool:
        entry = self.index.get(key)
        if entry is None:
            return False
        is_being_written = not entry.is_on_disk
        is_being_read = entry.state is BlockState.FILLING or (entry.state is BlockState.FREE and entry.pins > 0)
        return is_being_written or is_being_read

    # -- self-check ------------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        self.index.check_integrity()
        self.host_policy.check_integrity()
        self.host.check_integrity()
        seen: list[Extent] = []
        for entry in self.index:
            in_host_policy = entry.key in self.host_policy
            expects_host = entry.state in (BlockState.RESERVED, BlockState.FILLING, BlockState.READY, BlockState.LEASED)
            assert in_host_policy == expects_host, (entry.state, entry.key.hex())
            if entry.extent is not None:
                seen.append(entry.extent)
        seen.sort(key=lambda extent: extent.offset)
        for left, right in itertools.pairwise(seen):
            assert left.end <= right.offset, (left, right)
        if self.disk_policy is not None:
            self.disk_policy.check_integrity()
            unknown = [entry.key.hex() for entry in self.index if entry.is_on_disk and entry.key not in self.disk_policy]
            assert not unknown, unknown  # what no policy knows could never leave the disk
