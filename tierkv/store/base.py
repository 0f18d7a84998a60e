"""What the verbs of a store stand on: its parts, its sessions and namespaces, the leases it gave, and the arena it shows to shells."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from tierkv.clock import Clock
from tierkv.errors import ClosedError, InvalidRequestError
from tierkv.index.holds import HoldTable, Lease, SessionId, SessionTable
from tierkv.index.trail import Trail
from tierkv.model.keys import KEY_BYTES, BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, Extent
from tierkv.namespaces import NamespaceTable
from tierkv.observe.notes import Notes
from tierkv.observe.recall import Recall
from tierkv.observe.recorder import Recorder
from tierkv.observe.snapshot import Observer
from tierkv.placement.advice import Adviser
from tierkv.placement.device_room import DeviceRoom
from tierkv.placement.loader import Loader
from tierkv.placement.mover import Mover
from tierkv.placement.page_books import PageBooks
from tierkv.placement.page_loader import PageLoader
from tierkv.placement.page_mover import PageMover
from tierkv.placement.page_saver import PageSaver
from tierkv.placement.requests import RequestTable
from tierkv.placement.residency import Residency
from tierkv.placement.saver import Saver
from tierkv.policies.base import Policy
from tierkv.policy_state import PolicyKeeper
from tierkv.scrub import Checksum, Finding
from tierkv.settings import StoreSettings

_SESSION_SECRET_BYTES = 32


class StoreBase:
    """The parts of a store and who holds what. One lock guards all of it, and no I/O happens under it."""

    def __init__(
        self,
        *,
        settings: StoreSettings,
        clock: Clock,
        lock: threading.RLock,
        residency: Residency,
        mover: Mover,
        namespaces: NamespaceTable,
        trail: Trail,
        checksum: Checksum,
        disk_scrub: Callable[[], Iterable[Finding]] | None,
        keeper: PolicyKeeper,
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
        self._page_mover = PageMover(lock=lock, residency=residency, mover=mover, requests=self._requests)
        self._device_room = DeviceRoom(residency, self._page_mover)
        self._page_loader = PageLoader(
            lock=lock,
            residency=residency,
            loader=self._loader,
            mover=self._page_mover,
            room=self._device_room,
            requests=self._requests,
            run_blocks=settings.promote_run_blocks,
        )
        self._page_saver = PageSaver(residency=residency, requests=self._requests)
        self._pool_of: dict[SessionId, PageBooks] = {}
        self._sessions = SessionTable(limit=limits.sessions)
        self._leases: HoldTable[Lease] = HoldTable(limit=limits.leases, noun="lease")
        self._saver = Saver(residency=residency, clock=clock, limits=limits, requests=self._requests, adviser=self._adviser)
        self._observer = Observer(residency, clock, keeper)
        self.trail = trail
        self.recorder = Recorder(clock=clock, lock=lock, index=residency.index)
        self._notes = Notes(trail, self.recorder)
        self._recall = Recall(trail=trail, index=residency.index, namespaces=namespaces, lock=lock)
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
        """Releases its leases and takes back its reservations; its pages rest until `end_pages`. One that is not open is no error."""
        with self._lock:
            if not self._sessions.close(session):
                return
            self._drop_leases(session)
            self._saver.end_session(session)
            self.recorder.end_session(session)
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
        promise = self._settings.durability if durability is None else Durability(durability)
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

    def policies(self) -> list[Policy[BlockKey]]:
        """The policies at work, host first, then the disk's, then the devices'; for measurements."""
        policies = [self._books.host_policy, self._books.disk_policy, *(pool.policy for pool in self._books.pools)]
        return [policy for policy in policies if policy is not None]

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
