"""Which moves: pure functions over what is known of a block. No I/O, no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tierkv.index.entry import BlockEntry
from tierkv.model.lifecycle import BlockState
from tierkv.model.outcomes import Durability, TierName


class Eviction(StrEnum):
    """How a victim leaves the host tier."""

    DROP = "drop"
    """Its disk copy stays: free the extent at once."""
    DEMOTE = "demote"
    """Write it to disk first, then free the extent; a hit meanwhile cancels."""
    DISCARD = "discard"
    """There is nowhere to put it."""


class Readiness(StrEnum):
    """What stands between a held block and its reader."""

    READY = "ready"
    VERIFY = "verify"
    """Bytes survived a restart in the arena; their checksum is checked first."""
    WAIT = "wait"
    """A promotion or a verification is under way."""
    PROMOTE = "promote"
    """Only the disk, or a page, has it."""


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks [start_idx, stop_idx) of a request that share one readiness other than READY."""

    start_idx: int
    stop_idx: int
    readiness: Readiness


def plan_eviction(*, is_on_disk: bool, is_disk_writable: bool) -> Eviction:
    """How a victim leaves (design: a key is always somewhere, unless there is nowhere)."""
    if is_on_disk:
        return Eviction.DROP
    return Eviction.DEMOTE if is_disk_writable else Eviction.DISCARD


def is_written_through(durability: Durability) -> bool:
    """Whether a commit under this promise goes to disk without waiting for a demotion."""
    return durability is not Durability.VOLATILE


def found_in(entry: BlockEntry) -> TierName:
    """The tier that serves a held block to readers of the host tier now."""
    if entry.has_host_copy:
        return TierName.HOST
    return TierName.DEVICE if entry.num_device_copies else TierName.DISK


def is_away(entry: BlockEntry) -> bool:
    """Whether a held block is not the host policy's: it is elsewhere only, or on its way through the arena to the disk."""
    return entry.state in (BlockState.FREE, BlockState.EVICTING) or (entry.state is BlockState.FILLING and entry.is_passing)


def num_servable(entries: Sequence[BlockEntry]) -> int:
    """How many leading blocks a reader of the host tier can be given.

    One that lies in a page while a client is writing its host copy is not among them: its extent is the client's.
    """
    for idx, entry in enumerate(entries):
        if entry.state is BlockState.RESERVED:
            return idx
    return len(entries)


def readiness(entry: BlockEntry) -> Readiness:
    """What a reader of a held block waits for; an evicting block must have been brought in before."""
    if entry.promotion is not None:
        return Readiness.WAIT
    if entry.is_readable:
        return Readiness.READY if entry.is_verified else Readiness.VERIFY
    return Readiness.PROMOTE


def plan_chains(entries: Sequence[BlockEntry]) -> list[Sequence[BlockEntry]]:
    """Cuts a list of blocks into runs in which each block follows the one before it."""
    chains: list[Sequence[BlockEntry]] = []
    start = 0
    for stop in range(1, len(entries) + 1):
        if stop == len(entries) or entries[stop].parent != entries[stop - 1].key:
            chains.append(entries[start:stop])
            start = stop
    return chains


def plan_runs(kinds: Sequence[Readiness], *, run_blocks: int) -> list[Run]:
    """Groups consecutive blocks that are not READY into runs of one kind and at most `run_blocks` blocks."""
    runs: list[Run] = []
    start = 0
    for stop in range(1, len(kinds) + 1):
        is_boundary = stop == len(kinds) or kinds[stop] is not kinds[start] or stop - start == run_blocks
        if is_boundary:
            if kinds[start] is not Readiness.READY:
                runs.append(Run(start, stop, kinds[start]))
            start = stop
    return runs
