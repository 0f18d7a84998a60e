"""`TieredStore`: sessions, reservations and leases over the tiers. Every verb returns at memory speed; I/O hides behind futures.

The embedded facade (`tierkv.embedded`) and the daemon's servicer (`tierkvd.servicer`) are thin shells around it. It leaves
residency to `placement.residency`, bytes to `placement.mover` and who-holds-what to `index.holds`. One lock guards them all, and
no I/O happens under it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Future

from tierkv.answers import (
    Acquisition,
    CommitResult,
    Explanation,
    ReserveResult,
)
from tierkv.errors import ConflictError, InvalidRequestError, UnavailableError
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import Lease, SessionId
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import Durability, MissReason, PrefixMatch
from tierkv.observe.explain import explain_key, explain_request
from tierkv.placement import planner
from tierkv.placement.waiting import after_all, promised
from tierkv.store.page_verbs import PageVerbs


class TieredStore(PageVerbs):
    """The store. Built by `tierkv.assemble`; `start` and `close` frame its life. Safe to call from several threads."""

    # -- save ------------------------------------------------------------------------------------------------------------

    def reserve(
        self,
        session: SessionId,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        parent: BlockKey | None = None,
        hints: Hints = NO_HINTS,
    ) -> ReserveResult:
        """Extents for the keys that are not held; making room may start demotions but waits for none of them."""
        namespace = self._checked(namespace_id, keys)
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            if self._is_draining:
                raise UnavailableError("the store is draining: it takes nothing new")
            result = self._saver.reserve(session, namespace, keys, parent, hints)
            self._notes.reserved(session, namespace, keys, parent, result, request=hints.request_id)
        self._mover.kick()
        return result

    def commit(
        self,
        session: SessionId,
        reservation_id: int,
        keys: Sequence[BlockKey] | None = None,
        durability: Durability | None = None,
    ) -> CommitResult:
        """Makes granted blocks visible: all the named keys or, with an error, none."""
        if durability is not None:
            durability = Durability(durability)  # a name as text is not the same object, and would promise nothing
        if durability is Durability.STRICT and self._mover.writer is None:
            raise InvalidRequestError("durability 'strict' needs a disk tier; this store has none", durability=durability)
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            hints = self._saver.hints_of(session, reservation_id)
            entries = self._saver.commit(session, reservation_id, keys)
            self._notes.committed(session, entries, hints)
            for entry in entries:
                entry.durability = durability or self._namespaces.get(entry.namespace_id).durability
            strict = [entry for entry in entries if entry.durability is Durability.STRICT]
            durable = self._mover.write_all([*self._unwritten_before(strict), *strict])
        self._mover.kick()
        return CommitResult(len(entries), durable)

    def abort(self, session: SessionId, reservation_id: int, keys: Sequence[BlockKey] | None = None) -> int:
        """Takes extents back unwritten; a reservation that is gone is no error."""
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            aborted = self._saver.abort(session, reservation_id, keys)
        self._mover.kick()
        return aborted

    # -- load ------------------------------------------------------------------------------------------------------------

    def lookup(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> PrefixMatch:
        """The longest held prefix; pins nothing and is not an access."""
        self._checked(namespace_id, keys)
        with self._lock:
            self._check_open()
            found = self._books.index.match(namespace_id, keys)
            miss = self._books.index.miss_reason(keys[len(found)]) if len(found) < len(keys) else None
            return PrefixMatch(tuple(planner.found_in(entry) for entry in found), miss)

    def acquire(
        self, session: SessionId, namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints = NO_HINTS
    ) -> Acquisition:
        """Pins the longest held prefix and starts promoting what is not in the arena. One access per block and request."""
        namespace = self._checked(namespace_id, keys)
        ttl_s = self._settings.limits.lease_ttl_s
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            lease_id = self._leases.next_id()
            held = self._loader.hold(namespace_id, keys, reader=session, request_id=hints.request_id)
            if held.entries:
                self._leases.add(Lease(lease_id, session, held.entries, self._clock.monotonic_s() + ttl_s, hints.request_id))
            self._observer.count(held.tiers, miss=held.miss, num_missed=len(keys) - len(held.entries))
            self._notes.acquired(session, namespace, keys, held.tiers, held.miss, request=hints.request_id)
            extents = tuple(entry.placed_at() for entry in held.entries)
            self._adviser.take(held.entries, hints, own_pins=1)
            self._notes.advised(namespace_id, held.entries, hints)
        for run in held.pending:
            run_keys = keys[run.start_idx : run.start_idx + run.num_blocks]
            run.done.add_done_callback(functools.partial(self._count_run_miss, namespace_id, run_keys, hints.request_id))
        self._mover.kick()
        return Acquisition(lease_id, held.tiers, extents, held.pending, held.miss, ttl_s)

    def count_late(self, num_blocks: int) -> None:
        """A reader copied this many blocks and found their lease expired afterwards: they count as missed."""
        with self._lock:
            self._observer.count((), miss=MissReason.TIMEOUT, num_missed=num_blocks)

    def release(self, session: SessionId, lease_ids: Sequence[int]) -> None:
        """Ends leases; unknown and expired ones are ignored."""
        with self._lock:
            for lease_id in lease_ids:
                lease = self._leases.get(lease_id, session)
                if lease is not None:
                    self._drop_lease(lease)

    def prefetch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> int:
        """Starts promoting the held prefix; returns how many blocks are on their way. Not an access."""
        self._checked(namespace_id, keys)
        with self._lock:
            self._check_open()
            held = self._loader.hold(namespace_id, keys, reader=None)
            for entry in held.entries:  # moves keep what is under way in place
                self._books.unpin(entry)
        self._mover.kick()
        return sum(run.num_blocks for run in held.pending)

    def advise(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints) -> int:
        """Says what is known of the future of blocks; returns how many of them are held. Not an access."""
        self._checked(namespace_id, keys)
        with self._lock:
            self._check_open()
            known = [entry for key in keys if (entry := self._books.index.get(key)) is not None]
            held = [entry for entry in known if entry.is_held and entry.namespace_id == namespace_id]
            self._adviser.take(held, hints)
            self._notes.advised(namespace_id, held, hints)
            return len(held)

    # -- forget ----------------------------------------------------------------------------------------------------------

    def delete(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> Future[int]:
        """Forgets blocks on every tier; done when no restart brings them back. ConflictError, nothing changed, for a busy one."""
        self._checked(namespace_id, keys)
        with self._lock:
            self._check_open()
            entries = [entry for key in keys if (entry := self._books.index.get(key)) is not None]
            for entry in entries:
                if entry.is_busy:
                    what = "this block is leased, held in a page, or reserved; release it first"
                    raise ConflictError(what, key=entry.key, state=entry.state)
            return self._forget([entry for entry in entries if entry.namespace_id == namespace_id], "a client deleted them")

    def clear(self, namespace_id: NamespaceId) -> Future[int]:
        """Forgets every block of a namespace that is neither leased nor reserved."""
        self._namespaces.get(namespace_id)
        with self._lock:
            self._check_open()
            idle = [entry for entry in self._books.index if entry.namespace_id == namespace_id and not entry.is_busy]
            return self._forget(idle, "a client cleared their namespace")

    def _forget(self, entries: list[BlockEntry], why: str) -> Future[int]:
        """Blocks go from every tier, and what follows them, which nobody could find without them, too."""
        everything = [entry for entry in self._books.index.with_descendants(entries) if entry.is_held]
        self._notes.deleted(everything, why)
        on_disk = [entry.key for entry in everything if entry.is_on_disk]
        in_arena = [entry.key for entry in everything if entry.has_host_copy]
        for entry in reversed(entries):
            if self._books.index.is_current(entry):
                self._books.drop(entry, None)
        forgotten = [self._mover.forget(in_arena)]
        if on_disk and self._mover.writer is not None:
            forgotten.append(_without_result(self._mover.writer.delete(on_disk)))
        self._mover.kick()
        count = len(entries)
        return after_all(forgotten, lambda: count)

    # -- what happened ---------------------------------------------------------------------------------------------------

    def explain(self, subject: bytes | str, token_ids: Sequence[int] = ()) -> Explanation:
        """Why a block (its key, or the leading 4 bytes or more) or a request (its id) hit or missed.

        token_ids — of the first block of the subject: then what is held under other namespaces is known for certain. Takes tens of
        milliseconds, for an abbreviated key some hundreds, hardly any of them under the lock. Raises InvalidRequestError for what
        cannot be a key, a request id or token ids, and for an abbreviated key that is not unique. Answers after `close` too.
        """
        if isinstance(subject, str):
            return explain_request(self._recall, subject, token_ids)
        return explain_key(self._recall, subject, token_ids)

    def note_timeout(self, session: SessionId, lease_id: int, start_idx: int) -> None:
        """A reader gave up waiting for the blocks of its lease from `start_idx` on."""
        with self._lock:
            lease = self._leases.get(lease_id, session)
            if lease is not None and lease.entries:
                keys = [entry.key for entry in lease.entries[start_idx:]]
                namespace_id, request = lease.entries[0].namespace_id, lease.request_id
                self._notes.missed(namespace_id, keys, MissReason.TIMEOUT, request=request, session=session)

    def count(self, counter: str, amount: int) -> None:
        """Adds to a counter of `stats` that a shell keeps, e.g. of bytes that it streamed."""
        with self._lock:
            self._books.counters[counter] += amount


def _without_result(future: Future[int]) -> Future[None]:
    done: Future[None] = promised()
    future.add_done_callback(lambda _: done.set_result(None))
    return done
