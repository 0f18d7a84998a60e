"""`TieredStore`: sessions, reservations and leases over the tiers. Every verb returns at memory speed; I/O hides behind futures.

The embedded facade (`tierkv.embedded`) and the daemon's servicer (`tierkvd.servicer`) are thin shells around it. It leaves
residency to `placement.residency`, bytes to `placement.mover` and who-holds-what to `index.holds`. One lock guards them all, and
no I/O happens under it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from tierkv.answers import Acquisition, CommitResult, DamagedFrame, PendingRun, ReserveResult, RunResult, VerifyReport
from tierkv.clock import Clock
from tierkv.errors import ClosedError, ConflictError, InvalidRequestError, UnavailableError
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import HoldTable, Lease, SessionId, SessionTable
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import KEY_BYTES, BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, Extent, MissReason, PrefixMatch, StoreStats
from tierkv.namespaces import NamespaceTable
from tierkv.observe import Observer
from tierkv.placement import planner
from tierkv.placement.advice import Adviser
from tierkv.placement.loader import Loader
from tierkv.placement.mover import Mover
from tierkv.placement.requests import RequestTable
from tierkv.placement.residency import Residency
from tierkv.placement.saver import Saver
from tierkv.placement.waiting import after_all, promised, resolved
from tierkv.scrub import Checksum, Finding, scrub
from tierkv.settings import StoreSettings

__all__ = [
    "Acquisition",
    "CommitResult",
    "DamagedFrame",
    "PendingRun",
    "ReserveResult",
    "RunResult",
    "SessionId",
    "TieredStore",
    "VerifyReport",
]
_SESSION_SECRET_BYTES = 32


class TieredStore:
    """The store. Built by `tierkv.assemble`; `start` and `close` frame its life. Safe to call from several threads."""

    def __init__(
        self,
        *,
        settings: StoreSettings,
        clock: Clock,
        lock: threading.RLock,
        residency: Residency,
        mover: Mover,
        namespaces: NamespaceTable,
        checksum: Checksum,
        disk_scrub: Callable[[], Iterable[Finding]] | None,
        on_close: Callable[[bool], None],
    ) -> None:
        limits = settings.limits
        self._settings = settings
        self._clock = clock
        self._lock = lock
        self._books = residency
        self._mover = mover
        self._namespaces = namespaces
        self._checksum = checksum
        self._disk_scrub = disk_scrub
        self._on_close = on_close
        self._requests = RequestTable(limit=limits.requests, parent_of=residency.index.parent_of)
        self._adviser = Adviser(residency, clock)
        self._loader = Loader(
            lock=lock,
            residency=residency,
            mover=mover,
            requests=self._requests,
            run_blocks=settings.promote_run_blocks,
            verify_every_hit=settings.verify_every_hit,
        )
        self._sessions = SessionTable(limit=limits.sessions)
        self._leases: HoldTable[Lease] = HoldTable(limit=limits.leases, noun="lease")
        self._saver = Saver(residency=residency, clock=clock, limits=limits, requests=self._requests, adviser=self._adviser)
        self._observer = Observer(residency, clock)
        self._is_draining = False
        self._is_closing = False
        self._is_closed = False

    # -- sessions and namespaces -----------------------------------------------------------------------------------------

    def open_session(self, label: str) -> SessionId:
        """A new session; its id is its secret. Raises CapacityError when there are too many."""
        session = SessionId(self._clock.random_bytes(_SESSION_SECRET_BYTES))
        with self._lock:
            self._check_open()
            self._sessions.open(session, label)
        return session

    def close_session(self, session: SessionId) -> None:
        """Releases its leases and takes back its reservations. A session that is not open is no error."""
        with self._lock:
            if not self._sessions.close(session):
                return
            self._drop_leases(session)
            self._saver.end_session(session)
            self._requests.end_session(session)
        self._mover.kick()

    def has_reservations(self, session: SessionId) -> bool:
        """Whether a session holds extents that it may still commit."""
        with self._lock:
            return bool(self._saver.reservations.of_session(session))

    def check_session(self, session: SessionId) -> None:
        """Raises ClosedError for a session that is not open."""
        with self._lock:
            self._sessions.check(session)

    def register(self, identity: Identity, layout: Layout, durability: Durability | None = None) -> Namespace:
        """Finds or adds a namespace; may wait for the disk when it is new."""
        promise = durability or self._settings.durability
        if promise is Durability.STRICT and self._books.disk is None:
            raise InvalidRequestError("durability 'strict' needs a disk tier; this store has none", durability=promise)
        self._check_open()
        footprint = self._books.host.footprint_bytes(layout.block_bytes)
        if footprint > self._books.host_policy.capacity:
            raise InvalidRequestError(
                "a block is larger than the host tier; give it more memory",
                block_bytes=layout.block_bytes,
                host_bytes=self._books.host_policy.capacity,
            )
        return self._namespaces.register(identity, layout, promise)

    def namespace(self, namespace_id: NamespaceId) -> Namespace:
        """Raises InvalidRequestError for an id that is not registered."""
        return self._namespaces.get(namespace_id)

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
        if durability is Durability.STRICT and self._mover.writer is None:
            raise InvalidRequestError("durability 'strict' needs a disk tier; this store has none", durability=durability)
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            entries = self._saver.commit(session, reservation_id, keys)
            for entry in entries:
                entry.durability = durability or self._namespaces.get(entry.namespace_id).durability
            durable = self._mover.write_all([entry for entry in entries if entry.durability is Durability.STRICT])
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
        self._checked(namespace_id, keys)
        ttl_s = self._settings.limits.lease_ttl_s
        with self._lock:
            self._check_open()
            self._sessions.check(session)
            lease_id = self._leases.next_id()
            held = self._loader.hold(namespace_id, keys, reader=session, request_id=hints.request_id)
            if held.entries:
                self._leases.add(Lease(lease_id, session, held.entries, self._clock.monotonic_s() + ttl_s))
            self._observer.count(held.tiers, miss=held.miss, num_missed=len(keys) - len(held.entries))
            extents = tuple(entry.placed_at() for entry in held.entries)
            self._adviser.take(held.entries, hints, own_pins=1)
        for run in held.pending:
            run.done.add_done_callback(self._count_run_miss)
        self._mover.kick()
        return Acquisition(lease_id, held.tiers, extents, held.pending, held.miss, ttl_s)

    def _count_run_miss(self, done: Future[RunResult]) -> None:
        result = done.result()
        if result.miss is not None:
            with self._lock:
                self._observer.count((), miss=result.miss, num_missed=1)

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
                    raise ConflictError("this block is leased or reserved; release it first", key=entry.key, state=entry.state)
            return self._forget([entry for entry in entries if entry.namespace_id == namespace_id])

    def clear(self, namespace_id: NamespaceId) -> Future[int]:
        """Forgets every block of a namespace that is neither leased nor reserved."""
        self._namespaces.get(namespace_id)
        with self._lock:
            self._check_open()
            return self._forget([entry for entry in self._books.index if entry.namespace_id == namespace_id and not entry.is_busy])

    def _forget(self, entries: list[BlockEntry]) -> Future[int]:
        """Blocks go from every tier, and what follows them, which nobody could find without them, too."""
        below = [follower for entry in entries for follower in self._books.index.descendants(entry.key)]
        everything = list(dict.fromkeys([*entries, *below]))
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

    # -- care ------------------------------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """A snapshot."""
        books = self._books
        disk_blocks = 0 if books.disk is None else len(books.disk)  # asks the disk's index, so not under the lock
        with self._lock:
            writer = self._mover.writer
            return self._observer.snapshot(
                sessions=len(self._sessions),
                leases=len(self._leases),
                reservations=self._saver.reservations,
                disk_blocks=disk_blocks,
                disk_failure=None if writer is None else writer.failure,
            )

    def flush(self) -> Future[int]:
        """Done when everything committed before the call is on disk; how many blocks had to be written. Never fails."""
        with self._lock:
            if self._mover.writer is None or self._is_closed:
                return resolved(0)
            dirty = [entry for entry in self._books.index if entry.has_host_copy and not entry.is_on_disk]
            written: Future[int] = promised()
            self._mover.write_each(dirty, lambda failures: written.set_result(len(dirty) - failures))
            self._mover.writer.hurry()
        self._mover.kick()
        return written

    def drain(self) -> Future[int]:
        """Refuses reservations from now on, and flushes."""
        with self._lock:
            self._is_draining = True
        return self.flush()

    def verify(self, progress: Callable[[int, int, int], None] | None = None) -> VerifyReport:
        """Reads and checks every frame of every tier; blocks (minutes). progress(frames, frames_total, bytes)."""
        self._check_open()
        books = self._books
        disk_findings = () if self._disk_scrub is None else self._disk_scrub()
        disk_frames = 0 if books.disk is None else len(books.disk)
        report = progress or (lambda *_: None)
        return scrub(disk_findings, disk_frames, books, self._lock, self._checksum, report, self._mover.end_move)

    def expire(self) -> None:
        """Returns what expired leases and reservations held, and retries a disk that failed; about once a second."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if self._is_closed:
                return
            for lease in self._leases.expired(now_s):
                self._books.counters["leases_expired"] += 1
                self._drop_lease(lease)
            self._saver.expire()
            self._adviser.tick()
            writer = self._mover.writer
            if writer is not None and (writer.owes_writes or writer.failure is not None) and writer.is_writable:
                writer.owes_writes = False
                self._write_unwritten()
        self._mover.kick()

    def _write_unwritten(self) -> None:
        if self._mover.writer is None:
            return
        for entry in self._books.index:
            is_unwritten = entry.has_host_copy and not entry.is_on_disk and entry.moves == 0
            if is_unwritten and planner.is_written_through(entry.durability):
                self._mover.write(entry, lambda _ok: None)

    # -- the arena, for shells -------------------------------------------------------------------------------------------

    def arena_fd(self) -> int:
        """Descriptor of the arena file, for clients to map; owned by the store."""
        return self._books.host.fd

    def arena_bytes(self) -> int:
        return self._books.host.arena_bytes

    def prefaulted_bytes(self) -> int:
        """How much of the arena has memory behind it already, from offset 0."""
        return self._books.host.prefaulted_bytes

    def view(self, extent: Extent) -> memoryview:
        """The bytes of an extent, writable, in this process's map."""
        return self._books.host.view(extent)

    @property
    def reservation_ttl_s(self) -> float:
        """How long a reservation may be committed."""
        return self._settings.limits.reservation_ttl_s

    @property
    def is_closing(self) -> bool:
        """Whether `close` has begun: no lease holds anything any more."""
        return self._is_closing

    # -- life ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the mover's threads; blocks that survived in the arena alone go on to disk where their namespace promises it."""
        self._mover.start()
        with self._lock:
            for entry in self._books.index:
                entry.durability = self._namespaces.durability_of(entry.namespace_id)
            self._write_unwritten()

    def close(self, *, discard_arena: bool = False) -> None:
        """Flushes, ends every session, closes everything; may be called twice. What the disk refuses stays in a kept arena."""
        with self._lock:
            if self._is_closing:
                return
            self._is_draining = True
            self._is_closing = True
            # Reservations stay: their clients may still be writing, and a kept arena must remember where.
            for session in self._sessions.all():
                self._sessions.close(session)
                self._drop_leases(session)
        self.flush().result()
        with self._lock:
            self._is_closed = True
        self._mover.stop()
        self._on_close(discard_arena)

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant of books, holds or tiers does not hold."""
        with self._lock:
            self._books.check_integrity()
            pins: Counter[int] = Counter()
            for lease in self._leases:
                pins.update(id(entry) for entry in lease.entries)
            for entry in self._books.index:
                assert entry.pins == pins[id(entry)], (entry.pins, entry.key.hex())
            self._saver.check_integrity()

    # -- helpers; lock held ----------------------------------------------------------------------------------------------

    def _drop_leases(self, session: SessionId) -> None:
        for lease in self._leases.of_session(session):
            self._drop_lease(lease)

    def _drop_lease(self, lease: Lease) -> None:
        self._leases.remove(lease)
        for entry in lease.entries:
            self._books.unpin(entry)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the store is closed")

    def _checked(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> Namespace:
        if len(keys) > self._settings.limits.keys_per_call:
            raise InvalidRequestError("too many keys in one call", keys=len(keys), limit=self._settings.limits.keys_per_call)
        for key in keys:
            if len(key) != KEY_BYTES:
                raise InvalidRequestError("a block key has 32 bytes", length=len(key), key=key)
        if len(set(keys)) != len(keys):
            raise InvalidRequestError("a key stands twice in one call", keys=len(keys))
        return self._namespaces.get(namespace_id)


def _without_result(future: Future[int]) -> Future[None]:
    done: Future[None] = promised()
    future.add_done_callback(lambda _: done.set_result(None))
    return done
