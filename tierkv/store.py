"""`TieredStore`: sessions, reservations and leases over the tiers. Every method returns at memory speed; I/O hides behind futures.

The embedded facade (`tierkv.embedded`) and the daemon's servicer (`tierkvd.servicer`) are thin shells around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NewType

from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, Extent, MissReason, PrefixMatch, ReserveOutcome, StoreStats, TierName

SessionId = NewType("SessionId", bytes)


@dataclass(frozen=True, slots=True)
class ReserveResult:
    """One outcome and extent per key; extents only where GRANTED."""

    reservation_id: int
    outcomes: tuple[ReserveOutcome, ...]
    extents: tuple[Extent | None, ...]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """durable — for `strict` commits: done when the blocks are on disk (raises CapacityError/UnavailableError), else None."""

    committed: int
    durable: Future[None] | None


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of a pending run: its leading `num_blocks` are readable; miss says why not more (None: all are)."""

    num_blocks: int
    miss: MissReason | None


@dataclass(frozen=True, slots=True)
class PendingRun:
    """Blocks [start_idx, start_idx + num_blocks) of an acquisition that are being promoted. The future never raises."""

    start_idx: int
    num_blocks: int
    done: Future[RunResult]


@dataclass(frozen=True, slots=True)
class Acquisition:
    """A lease on the resident prefix: where each block was found and its extent (stable until release).

    Blocks outside `pending` are readable now. Pending runs are disjoint and ascending; the first that falls short ends the lease
    there, and the caller tells nobody about later ones.
    """

    lease_id: int
    tiers: tuple[TierName, ...]
    extents: tuple[Extent, ...]
    pending: tuple[PendingRun, ...]
    miss: MissReason | None


@dataclass(frozen=True, slots=True)
class DamagedFrame:
    key: BlockKey
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    frames: int
    num_bytes: int
    damaged: tuple[DamagedFrame, ...]


class TieredStore:
    """Signatures; the body follows."""

    def open_session(self, label: str) -> SessionId: ...
    def close_session(self, session: SessionId) -> None: ...
    def register(self, identity: Identity, layout: Layout, durability: Durability | None = None) -> Namespace: ...
    def namespace(self, namespace_id: NamespaceId) -> Namespace: ...
    def lookup(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> PrefixMatch: ...
    def reserve(
        self, session: SessionId, namespace_id: NamespaceId, keys: Sequence[BlockKey], parent: BlockKey | None = None
    ) -> ReserveResult: ...
    def commit(
        self,
        session: SessionId,
        reservation_id: int,
        keys: Sequence[BlockKey] | None = None,
        durability: Durability | None = None,
    ) -> CommitResult: ...
    def abort(self, session: SessionId, reservation_id: int, keys: Sequence[BlockKey] | None = None) -> int: ...
    def acquire(self, session: SessionId, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> Acquisition: ...
    def release(self, session: SessionId, lease_ids: Sequence[int]) -> None: ...
    def prefetch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> int: ...
    def delete(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> Future[int]: ...
    def clear(self, namespace_id: NamespaceId) -> Future[int]: ...
    def stats(self) -> StoreStats: ...
    def flush(self) -> Future[int]: ...
    def drain(self) -> Future[int]:
        """Refuses reservations from now on and flushes."""
        ...

    def verify(self, progress: Callable[[int, int, int], None] | None = None) -> VerifyReport:
        """Reads and checks every frame of every tier; blocks (minutes). progress(frames, frames_total, bytes)."""
        ...

    def expire(self) -> None:
        """Returns what expired leases and reservations held; called about once a second by whoever runs the store."""
        ...

    def arena_fd(self) -> int:
        """Descriptor of the arena file, for clients to map; owned by the store."""
        ...

    def arena_bytes(self) -> int: ...
    def prefaulted_bytes(self) -> int:
        """How much of the arena has memory behind it already, from offset 0."""
        ...

    def view(self, extent: Extent) -> memoryview:
        """The bytes of an extent, writable, in this process's map."""
        ...

    def close(self, *, discard_arena: bool = False) -> None:
        """Flushes, then closes everything; may be called twice. What it cannot write under a full disk stays in a kept arena."""
        ...
