"""The save path's decisions: extents for what is not held, commit of what was filled, and what becomes of what never was.

Called with the store's lock held. A reserved block is in the index but not held: nobody finds it before its commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierkv.answers import ReserveResult
from tierkv.clock import Clock
from tierkv.errors import ConflictError, InvalidRequestError
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import HoldTable, Reservation, SessionId
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import KEY_BYTES, BlockKey
from tierkv.model.lifecycle import BlockEvent
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import MissReason, ReserveOutcome
from tierkv.placement.advice import Adviser
from tierkv.placement.planner import plan_chains
from tierkv.placement.requests import RequestTable
from tierkv.placement.residency import Residency
from tierkv.settings import LimitSettings


class Saver:
    """Reservations and commits."""

    def __init__(
        self, *, residency: Residency, clock: Clock, limits: LimitSettings, requests: RequestTable, adviser: Adviser
    ) -> None:
        self._books = residency
        self._requests = requests
        self._adviser = adviser
        self._clock = clock
        self._ttl_s = limits.reservation_ttl_s
        # What living clients of an earlier process were writing rests at most as long as their reservations would have.
        self._rest_until_s = clock.monotonic_s() + 2 * self._ttl_s
        self.reservations: HoldTable[Reservation] = HoldTable(limit=limits.reservations, noun="reservation")

    def reserve(
        self,
        session: SessionId,
        namespace: Namespace,
        keys: Sequence[BlockKey],
        parent: BlockKey | None,
        hints: Hints = NO_HINTS,
    ) -> ReserveResult:
        """One outcome per key; where there is no room for a key, all later ones that are not held are refused too.

        Nothing is granted behind a parent that is not held: nobody could ever find it. Hints wait for the commit; where nothing is
        granted there will be none, so that they are taken for what is held.
        """
        if parent is not None and len(parent) != KEY_BYTES:
            raise InvalidRequestError("a parent key has 32 bytes", length=len(parent), parent=parent)
        books = self._books
        reservation_id = self.reservations.next_id()
        outcomes, fresh, present = self._classify(namespace, keys, parent)
        head = books.index.ancestors(parent)
        is_orphan = parent is not None and not head
        spent = self._requests.spent(session, hints.request_id)
        placed = 0 if is_orphan else books.reserve(self._loopless(fresh), head + present, spent=spent)
        granted = {entry.key: entry for entry in fresh[:placed]}
        for entry in fresh[:placed]:
            books.index.add(entry)
        if granted:
            expires_at_s = self._clock.monotonic_s() + self._ttl_s
            self.reservations.add(Reservation(reservation_id, session, dict(granted), expires_at_s, hints=hints))
            self._note_request(session, hints.request_id, fresh[:placed])
        else:
            self._adviser.take(present, hints)
        books.host.grant([entry.placed_at() for entry in granted.values()])
        books.counters["reserve_refused"] += len(fresh) - placed
        if is_orphan:
            books.counters["reserve_orphans"] += len(fresh)
        for idx, key in enumerate(keys):
            if outcomes[idx] is ReserveOutcome.GRANTED and key not in granted:
                outcomes[idx] = ReserveOutcome.REFUSED
        extents = tuple(granted[key].placed_at() if key in granted else None for key in keys)
        return ReserveResult(reservation_id, tuple(outcomes), extents)

    def _loopless(self, fresh: list[BlockEntry]) -> list[BlockEntry]:
        """The leading ones that do not follow themselves, whatever their callers claim.

        Only a block that is gone while reserved ones still follow it can come back below them.
        """
        index = self._books.index
        claimed: dict[BlockKey, BlockKey | None] = {}
        for idx, entry in enumerate(fresh):
            above = entry.parent if index.chains.children(entry.key) else None
            while above is not None and above != entry.key:
                above = claimed[above] if above in claimed else index.parent_of(above)
            if above is not None:
                return fresh[:idx]
            claimed[entry.key] = entry.parent
        return fresh

    def _note_request(self, session: SessionId, request_id: str, placed: Sequence[BlockEntry]) -> None:
        """To save a block is its request's access to it, and what it adds to the host tier counts against its share."""
        if not request_id:
            return
        for chain in plan_chains(placed):  # what others are writing may stand between them
            self._requests.first_accesses(session, request_id, [entry.key for entry in chain])
        weight = sum(self._books.host.footprint_bytes(entry.block_bytes) for entry in placed if not entry.is_passing)
        self._requests.add_spent(session, request_id, weight)

    def _classify(
        self, namespace: Namespace, keys: Sequence[BlockKey], parent: BlockKey | None
    ) -> tuple[list[ReserveOutcome], list[BlockEntry], list[BlockEntry]]:
        """Outcome of each key if there is room, the entries to make for those not held, and the entries of those held."""
        outcomes: list[ReserveOutcome] = []
        fresh: list[BlockEntry] = []
        present: list[BlockEntry] = []
        block_bytes = namespace.layout.block_bytes
        previous = parent
        for key in keys:
            entry = self._books.index.get(key)
            if entry is None:
                fresh.append(BlockEntry(key, namespace.namespace_id, previous, block_bytes))
                outcomes.append(ReserveOutcome.GRANTED)
            elif entry.namespace_id != namespace.namespace_id:
                raise InvalidRequestError("this key belongs to another namespace", key=key, namespace=entry.namespace_id)
            elif entry.is_held:
                present.append(entry)
                outcomes.append(ReserveOutcome.PRESENT)
            else:
                outcomes.append(ReserveOutcome.PENDING)
            previous = key
        return outcomes, fresh, present

    def commit(self, session: SessionId, reservation_id: int, keys: Sequence[BlockKey] | None) -> list[BlockEntry]:
        """Makes granted blocks visible and hands them to the scribe; all of the keys or, with an error, none."""
        reservation = self._live_reservation(reservation_id, session)
        chosen = list(reservation.granted) if keys is None else list(keys)
        self._check_granted(reservation, chosen)
        wanted = set(chosen)
        in_order = [key for key in reservation.granted if key in wanted]  # a chain stays one, however its keys were named
        entries = [reservation.granted.pop(key) for key in in_order]
        reservation.committed.update(chosen)
        if not reservation.granted:
            self.reservations.remove(reservation)
        self._books.host.settle([entry.placed_at() for entry in entries])
        for entry in entries:
            entry.generation = self._books.index.next_generation()
            entry.is_verified = True
            entry.moves += 1  # the scribe's
            self._books.became_readable(entry, BlockEvent.COMMIT)
        self._books.to_seal.extend(entries)
        self._drop_orphans(entries)
        self._adviser.take([entry for entry in entries if self._books.index.is_current(entry)], reservation.hints)
        return entries

    def hints_of(self, session: SessionId, reservation_id: int) -> Hints:
        """What the call that reserved said of its blocks."""
        reservation = self.reservations.get(reservation_id, session)
        return NO_HINTS if reservation is None else reservation.hints

    def _drop_orphans(self, entries: Sequence[BlockEntry]) -> None:
        """What follows a block that went while this one was written could never be found: it goes too."""
        index = self._books.index
        for entry in entries:
            if entry.parent is not None and index.get(entry.parent) is None and index.is_current(entry):
                self._books.drop(entry, MissReason.EVICTED)

    def _live_reservation(self, reservation_id: int, session: SessionId) -> Reservation:
        reservation = self.reservations.get(reservation_id, session)
        if reservation is None or reservation.is_expired or reservation.expires_at_s <= self._clock.monotonic_s():
            raise ConflictError("this reservation has expired or is finished; reserve again", reservation=reservation_id)
        return reservation

    @staticmethod
    def _check_granted(reservation: Reservation, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            if key in reservation.committed:
                raise InvalidRequestError("this key is committed already", key=key, reservation=reservation.reservation_id)
            if key not in reservation.granted:
                raise InvalidRequestError("this key was not granted here", key=key, reservation=reservation.reservation_id)
        if len(set(keys)) != len(keys):
            raise InvalidRequestError("a key stands twice in one commit", reservation=reservation.reservation_id)

    def abort(self, session: SessionId, reservation_id: int, keys: Sequence[BlockKey] | None) -> int:
        """Takes extents back unwritten; a reservation that is gone is no error."""
        reservation = self.reservations.get(reservation_id, session)
        if reservation is None:
            return 0
        chosen = [key for key in (keys or reservation.granted) if key in reservation.granted]
        self._drop(reservation, chosen)
        return len(chosen)

    def end_session(self, session: SessionId) -> None:
        """The client is gone, and its map with it: nothing of it can still be written."""
        for reservation in self.reservations.of_session(session):
            self._drop(reservation, list(reservation.granted))

    def expire(self) -> None:
        """Commits of an expired reservation conflict from now on.

        The client may still be writing through its map, so the extents rest for as long again before anybody else gets them.
        """
        now_s = self._clock.monotonic_s()
        for reservation in self.reservations.expired(now_s):
            if reservation.is_expired:
                self._drop(reservation, list(reservation.granted))
            else:
                reservation.is_expired = True
                reservation.expires_at_s = now_s + self._ttl_s
                self._books.counters["reservations_expired"] += 1
        self._books.host.release_resting(is_over=now_s >= self._rest_until_s)

    def _drop(self, reservation: Reservation, keys: Sequence[BlockKey]) -> None:
        entries = [reservation.granted.pop(key) for key in keys]
        self._books.host.settle([entry.placed_at() for entry in entries])
        for entry in entries:
            self._books.abandon(entry, None)
        if not reservation.granted:
            self.reservations.remove(reservation)

    def check_integrity(self) -> None:
        for reservation in self.reservations:
            for key, entry in reservation.granted.items():
                assert self._books.index.get(key) is entry, key.hex()
