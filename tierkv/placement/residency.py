"""Residency: the books of the host and the disk tier. Pure memory, always under the store's lock.

It asks the policies who enters and who leaves, allocates and returns extents, pins and unpins, and keeps the lists of work for the
mover (`to_seal`, `to_forget`, `to_demote`, `to_unwrite`). It does no I/O: bytes move in `tierkv.placement.mover`. Pages of devices
have books of their own (`tierkv.placement.page_books`); here they count as copies, and go when their block leaves the index.

Invariants: an extent returns to the allocator exactly once, when its block has left the index and neither a lease nor a move looks
at it; a key in a policy is resident on that policy's tier; a victim is never pinned, reserved, filling or being moved; a block
leaves the index only together with everything that follows it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from tierkv.index.block_index import BlockIndex
from tierkv.index.entry import BlockEntry
from tierkv.index.trail import Trail, What
from tierkv.model.keys import BlockKey
from tierkv.model.lifecycle import BlockEvent, BlockState
from tierkv.model.outcomes import Extent, MissReason, TierName
from tierkv.placement import planner
from tierkv.placement.host_room import HostRoom
from tierkv.placement.page_books import Page, PageBooks
from tierkv.placement.retention import Retention
from tierkv.placement.staging import AGAIN, Staging, StagingFor
from tierkv.policies.base import Cause, Policy, Shortfall
from tierkv.tiers.base import Tier
from tierkv.tiers.host import HostTier

_FATES = {
    planner.Eviction.DROP: "the disk has a copy",
    planner.Eviction.DEMOTE: "it goes to disk",
    planner.Eviction.DISCARD: "the disk takes nothing now",
}
_IN_HOST_POLICY = (BlockState.RESERVED, BlockState.FILLING, BlockState.READY, BlockState.LEASED)


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
        trail: Trail,
        pools: Sequence[PageBooks] = (),
    ) -> None:
        self.index = index
        self.pools = tuple(pools)
        self.host = host
        self.host_policy = host_policy
        self.disk = disk
        self.disk_policy = disk_policy
        self.trail = trail
        self.retention: Retention[BlockKey] = Retention(host_policy.capacity)
        self.counters: Counter[str] = Counter()
        self.to_demote: list[BlockEntry] = []
        self.to_seal: list[BlockEntry] = []
        self.to_forget: set[BlockKey] = set()
        self.to_unwrite: list[BlockKey] = []
        self.to_stage: list[Staging] = []
        self.unstaged: dict[BlockKey, None] = {}
        """Blocks of pages that the host tier is to have and does not: tried again now and then."""
        self._is_disk_writable = is_disk_writable
        self._room = HostRoom(host, host_policy, self._is_pinned_in_host, self._evict)

    # -- room in the host tier ------------------------------------------------------------------------------------------

    def reserve(self, entries: Sequence[BlockEntry], head: Sequence[BlockEntry], *, spent: int = 0) -> int:
        """Extents for the leading blocks of one request that a client will write; returns how many got one.

        head — the blocks before them. spent — host bytes that the request has added before. What it may not add to a full host
        tier gets an extent of those that the policy leaves free, if the disk takes it from there.
        """
        placed, shortfall = self._room.enter(entries, head, Cause.SAVE, spent)
        for entry in entries[:placed]:
            entry.step(BlockEvent.RESERVE)
        if shortfall is Shortfall.CAP:
            placed += self._let_pass(entries[placed:], BlockEvent.RESERVE, "it is not kept")
        return placed

    def stage(
        self, entries: Sequence[BlockEntry], head: Sequence[BlockEntry], cause: Cause, *, spent: int = 0, is_noted: bool = True
    ) -> int:
        """Extents for the leading blocks of one request that only pages hold; FILLING afterwards. As `reserve`."""
        placed, shortfall = self._room.enter(entries, head, cause, spent)
        for entry in entries[:placed]:
            entry.step(BlockEvent.PROMOTE)
        if shortfall is Shortfall.CAP:
            otherwise = "it stays on the device"
            placed += self._let_pass(entries[placed:], BlockEvent.PROMOTE, otherwise, is_noted=is_noted)
        return placed

    def stage_soon(self, entries: Sequence[BlockEntry], request: StagingFor) -> None:
        """Queues blocks that only pages hold to be copied to the host tier; kick the mover afterwards."""
        for entry in entries:
            lent = self.lend_page(entry.key)
            assert lent is not None, entry.key.hex()
            entry.moves += 1
            self.to_stage.append(Staging(entry, *lent, request))
            self.unstaged.pop(entry.key, None)

    def stage_again(self) -> None:
        """Queues what the host tier did not take before, where that could be otherwise now."""
        if not self.unstaged:
            return
        known = [entry for key in self.unstaged if (entry := self.index.get(key)) is not None]
        only_in_pages = [entry for entry in known if entry.is_only_in_pages]
        self.unstaged = {entry.key: None for entry in only_in_pages}
        self.stage_soon(self._stageable([entry for entry in only_in_pages if entry.moves == 0]), AGAIN)

    def _stageable(self, entries: Sequence[BlockEntry]) -> list[BlockEntry]:
        """Those for which there is free room in the host tier, or that may pass through it: others would be refused each time."""
        is_disk_writable, room_bytes = self._is_disk_writable(), self.host_policy.capacity - self.host_policy.used
        stageable: list[BlockEntry] = []
        for entry in entries:
            weight = self.host.footprint_bytes(entry.block_bytes)
            if weight <= room_bytes:
                room_bytes -= weight
            elif not (is_disk_writable and planner.is_written_through(entry.durability)):
                continue
            stageable.append(entry)
        return stageable

    def is_promised_to_disk(self, entry: BlockEntry) -> bool:
        """Whether a block is to be on disk without having to leave for it, and can be."""
        return planner.is_written_through(entry.durability) and self._is_disk_writable()

    def _let_pass(self, passing: Sequence[BlockEntry], event: BlockEvent, otherwise: str, *, is_noted: bool = True) -> int:
        """Extents on the way to disk for blocks that the host policy does not take; how many leading ones got one."""
        is_disk_writable = self._is_disk_writable()
        fate = "it goes straight to disk as far as there is room" if is_disk_writable else otherwise
        why = f"its request has added its share to a full tier; {fate}"
        if is_noted:
            self.trail.note(What.PASSED_BY, [entry.key for entry in passing], why, tier=TierName.HOST)
        if not is_disk_writable:
            return 0
        extents = self._room.extents_for(passing)
        for entry, extent in zip(passing, extents, strict=False):
            entry.extent = extent
            entry.is_passing = True
            entry.step(event)
        return len(extents)

    def bring_in(self, entries: Sequence[BlockEntry], head: Sequence[BlockEntry], cause: Cause) -> int:
        """Blocks of one request that have left the host policy (`planner.is_away`) come back; returns how many leading ones do.

        Those that no extent holds are FILLING afterwards, the others' demotion is cancelled. They and their head are pinned.
        """
        num_placed, _ = self._room.enter(entries, head, cause)
        cancelled: list[BlockKey] = []
        for entry in entries[:num_placed]:
            if entry.state is BlockState.EVICTING:
                entry.is_passing = False
                self.became_readable(entry, BlockEvent.TOUCH)
                cancelled.append(entry.key)
            elif entry.state is BlockState.FILLING:  # on its way through the arena to the disk; now it stays
                entry.is_passing = False
            else:
                entry.step(BlockEvent.PROMOTE)
        self.counters["demotions_cancelled"] += len(cancelled)
        self.trail.note(What.DEMOTION_CANCELLED, cancelled, f"{cause.value}: wanted before it was over", tier=TierName.HOST)
        return num_placed

    def _is_pinned_in_host(self, key: BlockKey) -> bool:
        entry = self.index.get(key)
        return entry is None or not entry.is_evictable or self.retention.is_retained(key)

    def _evict(self, victims: Sequence[BlockKey]) -> None:
        """Victims of the host policy leave, tails first; what must be written goes to the writer heads first, as one piece."""
        if not victims:
            return
        is_disk_writable = self._is_disk_writable()
        leaving: list[tuple[BlockEntry, planner.Eviction]] = []
        for key in victims:
            entry = self.index.get(key)
            assert entry is not None, "a policy names only resident keys"
            leaving.append((entry, planner.plan_eviction(is_on_disk=entry.is_on_disk, is_disk_writable=is_disk_writable)))
        self._note_evictions(leaving)
        for (
            entry,
            how,
        ) in leaving:  # in the victims' order: a head that goes nowhere would take its tail along before the tail's turn
            if entry.state is not BlockState.READY:  # it has: the block between them was not the policy's
                continue
            entry.step(BlockEvent.EVICT)
            self.counters["evicted_bytes"] += entry.block_bytes
            if how is planner.Eviction.DEMOTE:
                entry.moves += 1
            else:
                self.finish_eviction(entry)
        self.to_demote.extend(entry for entry, how in reversed(leaving) if how is planner.Eviction.DEMOTE)

    def _note_evictions(self, leaving: Sequence[tuple[BlockEntry, planner.Eviction]]) -> None:
        by_fate: dict[planner.Eviction, list[BlockKey]] = {}
        for entry, how in leaving:
            by_fate.setdefault(how, []).append(entry.key)
        rule = rule_of(self.host_policy)
        for how, keys in by_fate.items():
            self.counters[f"evictions_{how.value}"] += len(keys)
            what = What.DEMOTED if how is planner.Eviction.DEMOTE else What.EVICTED
            self.trail.note(what, keys, f"{rule}; {_FATES[how]}", tier=TierName.HOST)

    def finish_eviction(self, entry: BlockEntry) -> None:
        """The host copy of an EVICTING block goes; its entry stays while the disk or a page holds it."""
        entry.step(BlockEvent.EVICTED)
        entry.is_passing = False
        self._return_extent(entry)
        if not entry.is_held:
            self._leave(entry, MissReason.EVICTED)
        elif entry.is_only_in_pages and planner.is_written_through(entry.durability):
            self.unstaged[entry.key] = None  # the disk took nothing, and was promised the block

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
        if entry.is_passing:
            entry.step(BlockEvent.EVICT)
        elif entry.pins > 0:
            entry.step(BlockEvent.PIN)

    def abandon(self, entry: BlockEntry, reason: MissReason | None) -> None:
        """A RESERVED or FILLING block will not be completed: its extent returns, its entry stays while the disk or a page holds it."""
        if not entry.is_passing:
            self.host_policy.on_remove(entry.key)
        entry.is_passing = False
        entry.step(BlockEvent.ABORT)
        self._return_extent(entry)
        if not entry.is_held:
            self._leave(entry, reason)
        elif not entry.is_on_disk:
            self.unstaged[entry.key] = None

    def lose_host(self, entry: BlockEntry, reason: MissReason | None) -> None:
        """The host copy is damaged or deleted: nobody finds it any more; the extent returns when nobody looks at it.

        Where the disk or a page still holds the block, a fresh entry takes its place.
        """
        is_current = self.index.is_current(entry)
        if is_current and entry.key in self.host_policy:
            self.host_policy.on_remove(entry.key)
        entry.step(BlockEvent.LOSE)
        entry.is_passing = False
        if is_current and (entry.is_on_disk or entry.num_device_copies):
            self.index.replace(entry, _entry_without_host_copy(entry))
            if not entry.is_on_disk:
                self.unstaged[entry.key] = None
        elif is_current:
            self._leave(entry, reason)
        self._settle_lost(entry)

    def drop(self, entry: BlockEntry, reason: MissReason | None) -> None:
        """A held block goes from every tier, and with it everything that follows it."""
        self.lose_pages(entry)
        if entry.is_on_disk:
            self.to_unwrite.append(entry.key)
        has_left = self.lose_disk(entry.key, reason)
        if not has_left and (entry.has_host_copy or entry.state is BlockState.FILLING):
            self.lose_host(entry, reason)

    def lose_pages(self, entry: BlockEntry) -> None:
        """No page is the block's place any more; who holds one keeps it."""
        for pool in self.pools:
            page = pool.page_of(entry.key)
            if page is not None:
                pool.forget(page)

    def lend_page(self, key: BlockKey) -> tuple[PageBooks, Page] | None:
        """A page that holds the whole block, for a job that reads it and ends with `PageBooks.end_move`; None where there is none."""
        for pool in self.pools:
            page = pool.page_of(key)
            if page is not None and page.is_ready:
                pool.begin_move(page)
                return pool, page
        return None

    def _leave(self, entry: BlockEntry, reason: MissReason | None) -> None:
        """Takes an entry out of the index; what follows it could never be found again, so that it goes too.

        A reserved block that follows stays until its client is done: its commit finds out (`tierkv.placement.saver`).
        """
        self.lose_pages(entry)  # those that are being filled too
        self.unstaged.pop(entry.key, None)
        self.index.remove(entry, reason)
        self.retention.forget(entry.key)
        if not self.index.chains.children(entry.key):
            return
        # Children before their parents, so that none has any left.
        everything = self.index.descendants(entry.key)
        followers = [below for below in reversed(everything) if below.state is not BlockState.RESERVED]
        for below in everything:
            if below.state is BlockState.RESERVED:
                self.lose_pages(below)
        if reason is not None:
            why = "a block that they follow has left; nobody could find them without it"
            self.trail.note(What.EVICTED, [below.key for below in followers], why)
        self.counters["orphans_dropped"] += len(followers)
        for below in followers:
            self.drop(below, reason)

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

    def lose_disk(self, key: BlockKey, reason: MissReason | None, *, is_policy_informed: bool = False) -> bool:
        """The disk no longer holds `key` (evicted, damaged, deleted). True where nothing else did, and it has left the index."""
        if not is_policy_informed and self.disk_policy is not None and key in self.disk_policy:
            self.disk_policy.on_remove(key)
        entry = self.index.get(key)
        if entry is None:
            return True
        entry.was_on_disk |= entry.is_on_disk
        entry.is_on_disk = False
        if entry.state is BlockState.FREE and not entry.is_held:
            self._leave(entry, reason)
            return True
        return False

    # -- self-check ------------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        self.index.check_integrity()
        self.host_policy.check_integrity()
        self.host.check_integrity()
        self.retention.check_integrity()
        seen: list[Extent] = []
        for entry in self.index:
            expects_host = entry.state in _IN_HOST_POLICY and not entry.is_passing
            assert (entry.key in self.host_policy) == expects_host, (entry.state, entry.key.hex())
            if entry.extent is not None:
                seen.append(entry.extent)
        seen.sort(key=lambda extent: extent.offset)
        for left, right in itertools.pairwise(seen):
            assert left.end <= right.offset, (left, right)
        if self.disk_policy is not None:
            self.disk_policy.check_integrity()
            unknown = [entry.key.hex() for entry in self.index if entry.is_on_disk and entry.key not in self.disk_policy]
            assert not unknown, unknown  # what no policy knows could never leave the disk
        for pool in self.pools:
            pool.check_integrity()
        self._check_copies()
        for policy in (self.host_policy, *filter(None, [self.disk_policy])):
            gone = [key.hex() for key in policy if self.index.get(key) is None]
            assert not gone, gone  # what nobody holds could never be written again

    def _check_copies(self) -> None:
        """What the entries tell of their pages is what the books of the pages tell."""
        if not self.pools:
            return
        for entry in self.index:
            pages = [page for pool in self.pools if (page := pool.page_of(entry.key)) is not None]
            assert entry.num_device_copies == sum(page.is_ready for page in pages), entry.key.hex()
            assert entry.page_holds == sum(page.num_holds for page in pages), entry.key.hex()
        assert all(self.index.get(key) is not None for key in self.unstaged)


def rule_of(policy: Policy[BlockKey]) -> str:
    """By what rule victims were chosen just now, for people."""
    state = policy.state()
    steering = f" (w {state.w:.2f})" if state.name == "arc-age" else f" (p {state.p:.0f})" if state.p else ""
    return f"{state.name}{steering}: the least wanted and what follows it, to make room"


def _entry_without_host_copy(entry: BlockEntry) -> BlockEntry:
    """What is left of a block whose host copy is lost."""
    return BlockEntry(
        key=entry.key,
        namespace_id=entry.namespace_id,
        parent=entry.parent,
        block_bytes=entry.block_bytes,
        generation=entry.generation,
        record=entry.record if entry.is_on_disk else None,
        is_on_disk=entry.is_on_disk,
        durability=entry.durability,
        num_device_copies=entry.num_device_copies,
        page_holds=entry.page_holds,
    )
