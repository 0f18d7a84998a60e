"""`BlockStore`: the one interface of the embedded store (`tierkv.open_store`) and of the daemon's client (`tierkv.connect`).

Integrations and engines are written against this and cannot tell which of the two they hold. `AsyncClient` in
`tierkv.client.aio` has the same verbs as coroutines, over either.

Stations of a save: `reserve` → fill the buffers → `commit` (or `abort`). Of a load: `lookup` → `acquire` → read in place → `release`.
Every verb takes many keys, head of the sequence first, of one namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, MissReason, PrefixMatch, ReserveOutcome, StoreStats, TierName


@dataclass(frozen=True, slots=True)
class Grant:
    """What became of one reserved key; `buffer` is the block's place, writable until commit or abort, only when GRANTED."""

    key: BlockKey
    outcome: ReserveOutcome
    buffer: memoryview | None


class Reservation(Protocol):
    """Extents that the caller fills. Expires `reservation_ttl_s` after the call; then its extents return and commit conflicts."""

    @property
    def grants(self) -> tuple[Grant, ...]:
        """One per requested key, in order. Refusals never raise: the caller saves what it can."""
        ...


@dataclass(frozen=True, slots=True)
class ReadyRun:
    """Consecutive blocks that became readable: blocks[start_idx : start_idx + len(blocks)], in place, read-only by agreement."""

    start_idx: int
    blocks: tuple[memoryview, ...]


class Lease(Protocol):
    """A pin on the leading resident blocks, with an expiry, bound to the session.

    A block whose promotion fails (checksum, no room, deadline) ends the lease at that block: `num_blocks` shrinks, nothing raises.
    """

    @property
    def num_blocks(self) -> int:
        """Blocks held; final once `blocks()` returned or `runs()` is exhausted."""
        ...

    @property
    def tiers(self) -> tuple[TierName, ...]:
        """Where each block was found (not where it is now)."""
        ...

    @property
    def miss(self) -> MissReason | None:
        """Why the lease is shorter than the request."""
        ...

    @property
    def is_valid(self) -> bool:
        """False once the lease was released or has expired: what was read since may be another block's bytes.

        A reader that copies checks this after the copy, and counts a miss if it is False.
        """
        ...

    def runs(self) -> Iterator[ReadyRun]:
        """Blocks in order, as they become ready; waits at most until the deadline of the acquire call. Iterate once."""
        ...

    def blocks(self) -> tuple[memoryview, ...]:
        """Every block, after waiting for all of them. May be called any number of times until release."""
        ...


class BlockStore(Protocol):
    """A store of KV blocks.

    The caller guarantees:
    1. Keys come from `tierkv.model.keys.chain_keys` for the namespace, head first; `parent` is the key before the first one.
    2. It writes only into granted buffers and only until commit or abort; it reads leased blocks only until release.
    3. Buffers given to `put` and `get` have `layout.block_bytes` bytes, contiguous.

    The implementation must:
    1. Serve only bytes that were committed under exactly that key, or none.
    2. Never block past `timeout_s` (None: the store's default); raise UnavailableError then.
    3. Show no block before its commit, and no half of a commit call: all of its keys or an error that names the first bad one.
    4. Give back reservations and leases of a session when it ends, however it ends, and when they expire.
    5. Refuse bad input with InvalidRequestError before anything changed.
    """

    def register(
        self, identity: Identity, layout: Layout, *, durability: Durability | None = None, timeout_s: float | None = None
    ) -> Namespace:
        """Registers (or finds) the namespace of `identity` with blocks of `layout`. Idempotent.

        durability — promise of its commits; None: the store's default. Raises InvalidRequestError for a layout that cannot be,
        CapacityError when the table of namespaces is full.
        """
        ...

    def lookup(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> PrefixMatch:
        """The longest resident prefix. Pins nothing and is not an access; the answer may be stale at once."""
        ...

    def reserve(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        *,
        parent: BlockKey | None = None,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> Reservation:
        """Extents for the keys that are not held. One outcome per key; a refused key refuses all later ones (no orphans).

        A key is REFUSED where everything else is pinned, where `parent` is neither held nor pending (then every key is), and in a
        full tier beyond the share that one request may add to it, where those blocks cannot go straight to disk. Nothing is wrong
        then: the caller saves what was granted. What was committed behind a block that is aborted goes with it.
        """
        ...

    def commit(
        self,
        reservation: Reservation,
        keys: Sequence[BlockKey] | None = None,
        *,
        durability: Durability | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Makes granted blocks visible (None: all of them); returns how many. Under `strict` it returns when they are on disk.

        Raises InvalidRequestError for a key that was not granted here or was committed before, ConflictError after expiry,
        CapacityError when `strict` cannot be kept (the blocks are then visible but not durable).
        """
        ...

    def abort(self, reservation: Reservation, keys: Sequence[BlockKey] | None = None, *, timeout_s: float | None = None) -> int:
        """Returns granted extents unwritten (None: those not committed yet); returns how many. Idempotent."""
        ...

    def acquire(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> Lease:
        """Pins the longest resident prefix and promotes what is not in the host tier.

        Counts as one access per block; calls of one `hints.request_id` are one access together.
        """
        ...

    def release(self, lease: Lease) -> None:
        """Ends a lease; its blocks must not be read afterwards. Idempotent; an expired lease is no error."""
        ...

    def prefetch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        """Starts promoting the resident prefix and returns how many blocks are on their way; not an access."""
        ...

    def put(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        sources: Sequence[memoryview],
        *,
        parent: BlockKey | None = None,
        durability: Durability | None = None,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> tuple[ReserveOutcome, ...]:
        """reserve, copy, commit in one. GRANTED means stored by this call."""
        ...

    def get(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        targets: Sequence[memoryview],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> int:
        """acquire, copy, release in one: fills the leading targets, returns how many."""
        ...

    def advise(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints, *, timeout_s: float | None = None) -> int:
        """Says what is known of the future of blocks; returns how many of `keys` are held and took the advice. Not an access.

        Keys that are not held are left out. Advice moves blocks up or down in the order in which they leave, never fails for what it
        says, and does not survive a restart. What each hint does: `tierkv.model.hints.Hints`; its request id names no access here.
        """
        ...

    def delete(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        """Forgets blocks on every tier, and what follows them; returns how many of `keys` were held.

        Leased or pending ones among `keys` raise ConflictError, and nothing changes. A pending block that follows stays until its
        commit, and goes then.
        """
        ...

    def clear(self, namespace_id: NamespaceId, *, timeout_s: float | None = None) -> int:
        """Forgets every block of a namespace that is not leased or pending; returns how many went."""
        ...

    def stats(self, *, timeout_s: float | None = None) -> StoreStats:
        """A snapshot."""
        ...

    def flush(self, *, timeout_s: float | None = None) -> int:
        """Returns when everything committed before the call is on disk (volatile blocks too); the number of blocks written."""
        ...

    def close(self) -> None:
        """Ends the session: releases all it held. May be called twice."""
        ...
