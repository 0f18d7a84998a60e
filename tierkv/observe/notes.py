"""Notes: what the verbs of a store leave in its trail, and tell those who record. Lock held; a call is noted once, not once a block.

What becomes of blocks between the calls (evictions, demotions, promotions) is noted where it is decided, in `tierkv.placement`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierkv.answers import ReserveResult
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import Lease, Reservation, SessionId
from tierkv.index.trail import Trail, What
from tierkv.model.hints import Hints, Priority
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import MissReason, ReserveOutcome, TierName
from tierkv.observe.recorder import Recorder
from tierkv.pages import PageOutcome, PageRun

_WHY_MISSED = {
    MissReason.NEVER_SEEN: "nothing is remembered of the first of them",
    MissReason.EVICTED: "the first of them was evicted before",
    MissReason.NAMESPACE: "the first of them belongs to another namespace",
    MissReason.CHECKSUM: "the bytes of the first of them did not match their checksum",
    MissReason.TIMEOUT: "reading the first of them took longer than the caller would wait",
    MissReason.CAPACITY: "no room to bring the first of them in: everything on the way is in use",
    MissReason.UNAVAILABLE: "the first of them could not be read",
}

_AS_RESERVED = {
    PageOutcome.COMMITTED: ReserveOutcome.GRANTED,
    PageOutcome.PRESENT: ReserveOutcome.PRESENT,
    PageOutcome.REFUSED: ReserveOutcome.REFUSED,
}


class Notes:
    """Writes to a trail and, while somebody records, to the recorder."""

    def __init__(self, trail: Trail, recorder: Recorder) -> None:
        self._trail = trail
        self._recorder = recorder

    def acquired(
        self,
        session: SessionId,
        namespace: Namespace,
        keys: Sequence[BlockKey],
        tiers: Sequence[TierName],
        miss: MissReason | None,
        *,
        request: str = "",
    ) -> None:
        """An acquire: its hits by tier, then what it missed."""
        namespace_id = namespace.namespace_id
        num_held = len(tiers)
        if num_held and tiers.count(tiers[0]) == num_held:
            self._trail.note(What.HIT, keys[:num_held], tier=tiers[0], request=request, namespace=namespace_id, session=session)
        else:
            for tier in dict.fromkeys(tiers):
                hits = [key for key, found_in in zip(keys, tiers, strict=False) if found_in is tier]
                self._trail.note(What.HIT, hits, tier=tier, request=request, namespace=namespace_id, session=session)
        if miss is not None:
            self.missed(namespace_id, keys[num_held:], miss, request=request, session=session)
        if self._recorder.is_active:
            self._recorder.acquired(session, keys, namespace.layout.block_tokens)

    def missed(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        miss: MissReason,
        *,
        request: str = "",
        session: SessionId | None = None,
    ) -> None:
        """Blocks that a request did not get, the first of them for the reason `miss`."""
        why = _WHY_MISSED[miss]
        self._trail.note(What.MISSED, keys, why, request=request, namespace=namespace_id, miss=miss, session=session)

    def reserved(
        self,
        session: SessionId,
        namespace: Namespace,
        keys: Sequence[BlockKey],
        parent: BlockKey | None,
        result: ReserveResult,
        *,
        request: str = "",
    ) -> None:
        """A reserve: only what was refused is worth a note; what was granted is noted when it is committed."""
        if ReserveOutcome.REFUSED in result.outcomes:
            refused = [key for key, outcome in zip(keys, result.outcomes, strict=True) if outcome is ReserveOutcome.REFUSED]
            why = "no room, or the block before them is not held"
            self._trail.note(What.REFUSED, refused, why, request=request, namespace=namespace.namespace_id, session=session)
        if self._recorder.is_active:
            block_tokens = namespace.layout.block_tokens
            self._recorder.reserved(session, keys, result.outcomes, parent, block_tokens)

    def committed(self, session: SessionId, entries: Sequence[BlockEntry], hints: Hints) -> None:
        """A commit, and what its reservation said of the blocks' future."""
        if entries:
            keys, namespace_id = tuple(entry.key for entry in entries), entries[0].namespace_id
            request = hints.request_id
            self._trail.note(What.SAVED, keys, tier=TierName.HOST, request=request, namespace=namespace_id, session=session)
            self.advised(namespace_id, entries, hints)

    def pages_committed(
        self,
        session: SessionId,
        namespace: Namespace,
        run: PageRun,
        outcomes: Sequence[PageOutcome],
        committed: Sequence[BlockEntry],
        hints: Hints,
    ) -> None:
        """A run of pages: what it brought, and what it could not be kept behind."""
        namespace_id, request = namespace.namespace_id, hints.request_id
        keys = tuple(entry.key for entry in committed)
        self._trail.note(What.SAVED, keys, tier=TierName.DEVICE, request=request, namespace=namespace_id, session=session)
        refused = [key for key, outcome in zip(run.keys, outcomes, strict=True) if outcome is PageOutcome.REFUSED]
        why = "the block before them is not held"
        self._trail.note(What.REFUSED, refused, why, tier=TierName.DEVICE, request=request, namespace=namespace_id, session=session)
        self.advised(namespace_id, committed, hints)
        if self._recorder.is_active:
            as_reserved = [_AS_RESERVED[outcome] for outcome in outcomes]
            self._recorder.reserved(session, run.keys, as_reserved, run.parent, namespace.layout.block_tokens)

    def advised(self, namespace_id: NamespaceId, entries: Sequence[BlockEntry], hints: Hints) -> None:
        """What a call said of the future of blocks, if it said anything."""
        advice = _advice_of(hints)
        if advice:
            what = What.ADVISED if hints.pin_until_s is None else What.PINNED
            keys = tuple(entry.key for entry in entries)
            self._trail.note(what, keys, advice, request=hints.request_id, namespace=namespace_id)

    def deleted(self, entries: Sequence[BlockEntry], why: str) -> None:
        self._trail.note(What.DELETED, tuple(entry.key for entry in entries), why)

    def recovered(self, entries: Sequence[BlockEntry]) -> None:
        """Blocks of an earlier process, by the tier that serves them."""
        why = "survived a restart"
        in_host = tuple(entry.key for entry in entries if entry.has_host_copy)
        on_disk = tuple(entry.key for entry in entries if not entry.has_host_copy)
        self._trail.note(What.RECOVERED, on_disk, why, tier=TierName.DISK)
        self._trail.note(What.RECOVERED, in_host, why, tier=TierName.HOST)

    def lease_expired(self, lease: Lease) -> None:
        self._trail.note(What.EXPIRED, tuple(entry.key for entry in lease.entries), "a lease on them was not released in time")

    def reservation_expired(self, reservation: Reservation) -> None:
        why = "reserved, but not committed in time"
        self._trail.note(What.EXPIRED, tuple(reservation.granted), why, miss=MissReason.TIMEOUT)


def _advice_of(hints: Hints) -> str:
    said = []
    if hints.session_closed:
        said.append("session closed")
    if hints.expected_idle_s is not None:
        said.append(f"wanted again in {hints.expected_idle_s:g} s")
    if hints.priority is not Priority.NORMAL:
        said.append(f"priority {hints.priority}")
    if hints.pin_until_s is not None:
        said.append(f"pinned until {hints.pin_until_s:.0f} s since 1970")
    return ", ".join(said)
