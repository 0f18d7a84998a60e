"""`PageStore`: pages of the device tier, for engines whose attention reads blocks where they lie.

A page is a block's place on a device: page `i` of a pool is bytes [i·page_bytes, (i+1)·page_bytes) of its memory. An engine opens the
pool of its device once, takes free pages ahead of need, fills them, and commits each full one under the key of its block; from then on
any engine on the device finds it with `acquire_pages` and reads it in place.

Offered by the daemon's client (`tierkv.connect`), by the embedded store (`tierkv.open_store`) and, for an engine that has neither, by
`tierkv.paging.private_pages`.

Holds. Every page that `reserve_pages` or `acquire_pages` names is held once more by the session, until `release_pages` names it once.
A page is read and written by nobody else, and keeps its bytes, while it is held. `commit_pages` changes no hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, MissReason, TierName


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The page pool of one device, as this process has mapped it.

    device — "cpu", "cuda:0", …; buffer — all of its bytes, writable, on device "cpu", and None elsewhere; ipc_handle — what
    `tierkv.tiers.cuda` maps the pool of a CUDA device from. Valid until the store or client that opened it is closed.
    """

    device: str
    page_bytes: int
    num_pages: int
    buffer: memoryview | None
    ipc_handle: bytes = b""


class PageOutcome(StrEnum):
    """What became of one page of a commit."""

    COMMITTED = "committed"
    """The page is the block's place on this device now; it must not be written any more."""
    PRESENT = "present"
    """Another page of this device holds the block already; this one stays the caller's own, unnamed, until it is released."""
    REFUSED = "refused"
    """The block that it follows is not held; the page stays the caller's own, unnamed, until it is released."""


@dataclass(frozen=True, slots=True)
class PageRun:
    """Consecutive blocks of one sequence and the pages that hold them; parent — key of the block before the first, None at the start."""

    keys: Sequence[BlockKey]
    pages: Sequence[int]
    parent: BlockKey | None = None


class PageLease(Protocol):
    """The longest held prefix, in pages of the device.

    Blocks that lay on the device are readable at once and were not copied. The others are on their way into pages of their own; one that
    cannot be brought ends the lease there. The caller releases every page of `pages` with `release_pages` when it is done with it, those
    at and behind `num_blocks` too; it may do so at any time.
    """

    @property
    def pages(self) -> tuple[int, ...]:
        """One for each block of the prefix that was promised, head first. Never changes."""
        ...

    @property
    def tiers(self) -> tuple[TierName, ...]:
        """Where each block of `pages` was found."""
        ...

    @property
    def miss(self) -> MissReason | None:
        """Why the lease is shorter than the request, or shorter than it was promised."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks held; at most len(pages), final once `is_settled`."""
        ...

    @property
    def num_ready(self) -> int:
        """Leading blocks whose pages may be read now. Does not block."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way any more: num_ready == num_blocks. Does not block."""
        ...

    def wait(self, timeout_s: float | None = None) -> int:
        """Blocks until the lease is settled, or the deadline of its call (or `timeout_s`) ends it where it stands; num_blocks."""
        ...


class PageStore(Protocol):
    """Pages of one device for one engine process.

    The caller guarantees:
    1. `open_pool` comes first, once; one session uses the pool of one device.
    2. It writes only into pages that `reserve_pages` gave it and that are not COMMITTED, and only while it holds them; on a CUDA device
       its writes are complete (synchronised) before `commit_pages`.
    3. Pages of a run are distinct, held, and full.

    The implementation must:
    1. Serve only bytes that were committed under exactly that key, or none.
    2. Hand a page to somebody else only when every hold of every session on it is over.
    3. Return what a session holds when its process is gone, and not before nobody of it can write any more.
    4. Let committed blocks sink to the host tier and the disk as their namespace's durability promises, and keep a block that nobody
       holds on the device until the policy needs its page.
    5. Refuse bad input with InvalidRequestError before anything changed.
    """

    def register(
        self, identity: Identity, layout: Layout, *, durability: Durability | None = None, timeout_s: float | None = None
    ) -> Namespace:
        """As `BlockStore.register`."""
        ...

    def open_pool(self, namespace_id: NamespaceId, device: str, *, timeout_s: float | None = None) -> Pool:
        """Maps the pool of `device`, cut into pages of the namespace's block size.

        A pool has pages of one size at a time: where another size is in use by somebody this raises ConflictError with both sizes;
        where it is only cached, those blocks leave the device. Raises UnavailableError while such blocks are still being copied down (ask
        again), InvalidRequestError for a device that the store does not have, naming those it has, and for a pool smaller than one page.
        """
        ...

    def reserve_pages(self, count: int, *, timeout_s: float | None = None) -> list[int]:
        """Up to `count` free pages, content undefined; fewer, or none, when everything is held or on its way down."""
        ...

    def commit_pages(
        self,
        namespace_id: NamespaceId,
        runs: Sequence[PageRun],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> list[tuple[PageOutcome, ...]]:
        """Makes full pages the places of their blocks; one outcome per key, run by run. Under `strict` it returns when they are on disk."""
        ...

    def acquire_pages(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> PageLease:
        """Holds the longest held prefix in pages, and starts to bring what is not on the device. One access per block and request.

        Where pages run out the prefix ends (MissReason.CAPACITY). Returns at once; what is on its way is the lease's to tell.
        """
        ...

    def release_pages(self, pages: Sequence[int]) -> None:
        """Ends one hold on each; a page may stand there as often as it is held. Pages that are not held are ignored. Never waits."""
        ...

    def close(self) -> None:
        """Ends the session: everything it holds returns, and the pool's memory must not be touched any more. May be called twice."""
        ...
