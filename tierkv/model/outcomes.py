"""Outcomes: what a call found or did. A miss is an outcome, not an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tierkv.errors import InvalidRequestError
from tierkv.model.keys import BlockKey, NamespaceId


class TierName(StrEnum):
    """The tiers, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


class Durability(StrEnum):
    """What a commit promises; `docs/format.md`, "Durability", says what each can lose."""

    VOLATILE = "volatile"
    INTERVAL = "interval"
    STRICT = "strict"

    @classmethod
    def _missing_(cls, value: object) -> Durability:
        raise InvalidRequestError("unknown durability", value=value, known=", ".join(cls))


class MissReason(StrEnum):
    """Why a block could not be served."""

    NEVER_SEEN = "never_seen"
    EVICTED = "evicted"
    NAMESPACE = "namespace"
    CHECKSUM = "checksum"
    TIMEOUT = "timeout"
    CAPACITY = "capacity"
    UNAVAILABLE = "unavailable"


class ReserveOutcome(StrEnum):
    """What became of one key of a reserve call."""

    GRANTED = "granted"
    """The caller owns an extent: fill it, then commit or abort."""
    PRESENT = "present"
    """The block is already held; nothing to write."""
    PENDING = "pending"
    """Another session is writing this block; nothing to write."""
    REFUSED = "refused"
    """No room: everything that could make room is pinned or still on its way down."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range [offset, offset + length) of the host arena or of the disk's segment space."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """What is known of a block at rest, beside its bytes.

    block_bytes, checksum — length and XXH3-128 of the exact block; codec, payload_bytes, payload_checksum — the form in which a
    tier holds it (for the identity codec they repeat the block's). generation — grows with every commit of the store, so that of
    two records that claim one place the later wins.
    """

    key: BlockKey
    namespace_id: NamespaceId
    parent: BlockKey | None
    generation: int
    block_bytes: int
    checksum: bytes
    codec: int
    payload_bytes: int
    payload_checksum: bytes


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest resident prefix of a list of keys: the tier of each of its blocks, and why it ends (None: nothing is missing)."""

    tiers: tuple[TierName, ...]
    miss: MissReason | None

    @property
    def num_blocks(self) -> int:
        return len(self.tiers)


@dataclass(frozen=True, slots=True)
class TierStats:
    """Fill of one tier."""

    name: TierName
    capacity_bytes: int
    used_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class PolicyStats:
    """The eviction policy of one tier: weights of its lists in bytes, ghosts in keys; what a policy has not is zero."""

    tier: TierName
    name: str
    t1_bytes: int = 0
    t2_bytes: int = 0
    b1_keys: int = 0
    b2_keys: int = 0
    ghost_hits_b1: int = 0
    ghost_hits_b2: int = 0
    p: float = 0.0
    w: float = 0.0
    waiting_bytes: int = 0
    """Blocks of which somebody has said when they are wanted again, or that they are not."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A snapshot of the store.

    hits by tier, misses by reason, both in blocks; degraded — sentences on what does not work now; write_budget_left_bytes — what may
    still be written to disk before the budget is spent, None where there is no budget.
    """

    version: str
    uptime_s: float
    tiers: tuple[TierStats, ...]
    hits: dict[str, int]
    misses: dict[str, int]
    sessions: int
    leases: int
    reservations: int
    counters: dict[str, int] = field(default_factory=dict)
    degraded: tuple[str, ...] = ()
    policies: tuple[PolicyStats, ...] = ()
    write_budget_left_bytes: int | None = None
