"""What `TieredStore` answers: extents and futures, for the shells that turn them into buffers or messages."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import Extent, MissReason, ReserveOutcome, TierName
from tierkv.pages import PageOutcome


@dataclass(frozen=True, slots=True)
class ReserveResult:
    """One outcome and extent per key; extents only where GRANTED."""

    reservation_id: int
    outcomes: tuple[ReserveOutcome, ...]
    extents: tuple[Extent | None, ...]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """durable — for `strict` commits: done when the blocks are on disk (CapacityError when they cannot be), else None."""

    committed: int
    durable: Future[None] | None


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of a pending run: its leading `num_blocks` are readable; miss says why not more (None: all are)."""

    num_blocks: int
    miss: MissReason | None


@dataclass(frozen=True, slots=True)
class PendingRun:
    """Blocks [start_idx, start_idx + num_blocks) of an acquisition that are not readable yet. The future never raises."""

    start_idx: int
    num_blocks: int
    done: Future[RunResult]


@dataclass(frozen=True, slots=True)
class Acquisition:
    """A lease on the resident prefix: where each block was found and its extent (stable until release).

    Blocks outside `pending` are readable now. Pending runs are disjoint and ascending; the first that falls short ends the lease
    there. miss — why the prefix is shorter than the request. expires_in_s — from the moment of the call.
    """

    lease_id: int
    tiers: tuple[TierName, ...]
    extents: tuple[Extent, ...]
    pending: tuple[PendingRun, ...]
    miss: MissReason | None
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool of a device as a session opens it: page i is bytes [i·page_bytes, (i+1)·page_bytes) of its memory.

    fd — what another process maps it from, owned by the store; None on a CUDA device, whose `ipc_handle` is for one mapping.
    """

    device: str
    memory_bytes: int
    page_bytes: int
    num_pages: int
    fd: int | None
    ipc_handle: bytes = b""


@dataclass(frozen=True, slots=True)
class PoolFill:
    """The pages of one pool: num_free — nobody's; num_cached — places of blocks that nobody holds; the others are in use."""

    device: str
    num_pages: int
    num_free: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class PageCommit:
    """outcomes — one for each key, run by run; durable — as `CommitResult.durable`."""

    outcomes: list[tuple[PageOutcome, ...]]
    durable: Future[None] | None


@dataclass(frozen=True, slots=True)
class PageAcquisition:
    """Pages that hold, or will hold, the held prefix: one a block, each held once more by the session, whatever becomes of its block.

    tiers, pending, miss — as `Acquisition`.
    """

    pages: tuple[int, ...]
    tiers: tuple[TierName, ...]
    pending: tuple[PendingRun, ...]
    miss: MissReason | None


@dataclass(frozen=True, slots=True)
class DamagedFrame:
    """A block at rest that does not match its checksum: where (tier, file, offset) and what is wrong."""

    key: BlockKey
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Frames and bytes read by a scrub, and what was damaged."""

    frames: int
    num_bytes: int
    damaged: tuple[DamagedFrame, ...]


@dataclass(frozen=True, slots=True)
class ExplainedEvent:
    """One event of an explanation. at_s — seconds since 1970; what — a name of `tierkv.index.trail.What`; why — a sentence, or empty."""

    at_s: float
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a block or a request hit or missed.

    key — the block's, or as much of it as was asked for where no whole key is known; None for a request. found — whether the block is
    held; whether the request found all of its blocks. tier — where the block is; the slowest tier that served the request. miss,
    reason — why not, as a name and as a sentence. events — oldest first, the latest of them.
    """

    key: bytes | None
    request_id: str
    found: bool
    tier: TierName | None
    miss: MissReason | None
    reason: str
    events: tuple[ExplainedEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a recording: block ids instead of keys, equal for equal blocks within this recording only.

    timestamp_ms — since the recording began; input_length — tokens of its full blocks; session — a small number; dropped — requests
    left out before this one, because the reader was too slow; is_save — blocks that were saved without having been asked for, with
    the head that leads to them: no access.
    """

    timestamp_ms: float
    input_length: int
    hash_ids: tuple[int, ...]
    block_tokens: int
    session: int
    dropped: int
    is_save: bool = False
