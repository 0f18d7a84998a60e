"""The contract suite of `tierkv.interface.BlockStore`: subclass it, supply `rig`, and every sentence of the contract has a test.

```python
class TestMyStore(StoreContract):
    @pytest.fixture
    def rig(self) -> Iterator[StoreRig]: ...
```

Values derive from keys, so that any answer can be judged; each test has a namespace of its own, so that one store serves them all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tierkv.errors import ClosedError, ConflictError, InvalidRequestError
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey, NamespaceId, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, MissReason, ReserveOutcome
from tierkv.testing.deadline import wait_until

BLOCK_BYTES = 8192
BLOCK_TOKENS = 4
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=BLOCK_TOKENS)
GRANTED, PRESENT, PENDING, REFUSED = ReserveOutcome.GRANTED, ReserveOutcome.PRESENT, ReserveOutcome.PENDING, ReserveOutcome.REFUSED


@dataclass(frozen=True, slots=True)
class StoreRig:
    """A store under test.

    another — opens a second handle on the same blocks; None where there is only one. expire — lets every lease and reservation
    expire, the reservations' extents included; None where time cannot be moved. room_blocks — blocks that fit in the fastest tier
    together; 0 where that is not to be filled.
    """

    store: BlockStore
    another: Callable[[], BlockStore] | None = None
    expire: Callable[[], None] | None = None
    room_blocks: int = 0
    is_shared_memory: bool = True


def content_of(key: BlockKey) -> bytes:
    """The bytes every test stores under `key`."""
    return key * (BLOCK_BYTES // len(key))


def sources_of(keys: Sequence[BlockKey]) -> list[memoryview]:
    return [memoryview(content_of(key)) for key in keys]


def targets_for(keys: Sequence[BlockKey]) -> list[memoryview]:
    return [memoryview(bytearray(BLOCK_BYTES)) for _ in keys]


class StoreContract:
    """The tests. `rig` is the subclass's fixture."""

    @pytest.fixture
    def store(self, rig: StoreRig) -> BlockStore:
        return rig.store

    @pytest.fixture
    def namespace(self, store: BlockStore, request: pytest.FixtureRequest) -> Namespace:
        return store.register(Identity(weights=f"weights of {request.node.nodeid}"), LAYOUT)

    @pytest.fixture
    def keys(self, namespace: Namespace) -> list[BlockKey]:
        return self.chain(namespace.namespace_id, 6)

    @staticmethod
    def chain(namespace_id: NamespaceId, blocks: int, *, seed: int = 0) -> list[BlockKey]:
        tokens = [seed * 100_000 + idx for idx in range(blocks * BLOCK_TOKENS)]
        return chain_keys(namespace_id, tokens, block_tokens=BLOCK_TOKENS)

    @staticmethod
    def put(store: BlockStore, namespace: Namespace, keys: Sequence[BlockKey]) -> tuple[ReserveOutcome, ...]:
        return store.put(namespace.namespace_id, keys, sources_of(keys))

    @staticmethod
    def held(store: BlockStore, namespace: Namespace, keys: Sequence[BlockKey]) -> int:
        """Length of the leading run that comes back, with its content checked."""
        targets = targets_for(keys)
        count = store.get(namespace.namespace_id, keys, targets)
        assert [bytes(target) for target in targets[:count]] == [content_of(key) for key in keys[:count]]
        return count

    # -- namespaces ------------------------------------------------------------------------------------------------------

    def test_register_gives_the_fingerprint_and_is_idempotent(self, store: BlockStore) -> None:
        identity = Identity(weights="twice")
        first = store.register(identity, LAYOUT, durability=Durability.VOLATILE)
        again = store.register(identity, LAYOUT, durability=Durability.VOLATILE)
        assert first == again
        assert first.namespace_id == identity.fingerprint(LAYOUT)
        assert first.durability is Durability.VOLATILE

    def test_another_layout_is_another_namespace(self, store: BlockStore) -> None:
        other = Layout(shape=(2 * BLOCK_BYTES,), dtype="uint8", block_tokens=BLOCK_TOKENS)
        identity = Identity(weights="two layouts")
        assert store.register(identity, LAYOUT).namespace_id != store.register(identity, other).namespace_id

    @pytest.mark.parametrize("verb", ["lookup", "reserve", "acquire", "get", "put", "delete"])
    def test_a_namespace_that_was_not_registered_is_refused(self, store: BlockStore, verb: str) -> None:
        stranger = Identity(weights=f"stranger to {verb}").fingerprint(LAYOUT)
        keys = self.chain(stranger, 1)
        arguments: dict[str, tuple[object, ...]] = {"get": (targets_for(keys),), "put": (sources_of(keys),)}
        with pytest.raises(InvalidRequestError):
            getattr(store, verb)(stranger, keys, *arguments.get(verb, ()))

    # -- saving ----------------------------------------------------------------------------------------------------------

    def test_what_was_put_comes_back_byte_for_byte(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        assert set(self.put(store, namespace, keys)) == {GRANTED}
        assert self.held(store, namespace, keys) == len(keys)

    def test_a_second_put_finds_the_blocks_present(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys[:3])
        assert self.put(store, namespace, keys) == (PRESENT,) * 3 + (GRANTED,) * 3

    def test_nothing_is_visible_before_its_commit(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        reservation = store.reserve(namespace.namespace_id, keys)
        for grant in reservation.grants:
            assert grant.outcome is GRANTED
            assert grant.buffer is not None
            assert grant.buffer.nbytes == BLOCK_BYTES
            grant.buffer[:] = content_of(grant.key)
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 0
        assert self.held(store, namespace, keys) == 0
        assert store.commit(reservation) == len(keys)
        assert self.held(store, namespace, keys) == len(keys)

    def test_a_commit_of_some_keys_shows_those(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        reservation = store.reserve(namespace.namespace_id, keys)
        for grant in reservation.grants:
            assert grant.buffer is not None
            grant.buffer[:] = content_of(grant.key)
        assert store.commit(reservation, keys[:2]) == 2
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 2
        assert store.commit(reservation) == 4
        assert self.held(store, namespace, keys) == 6

    def test_a_commit_of_keys_that_were_not_granted_changes_nothing(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        reservation = store.reserve(namespace.namespace_id, keys[:2])
        with pytest.raises(InvalidRequestError):
            store.commit(reservation, [keys[0], keys[5]])
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 0
        assert store.abort(reservation) == 2

    def test_a_key_is_committed_once(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        reservation = store.reserve(namespace.namespace_id, keys[:2])
        assert store.commit(reservation, keys[:1]) == 1
        with pytest.raises(InvalidRequestError):
            store.commit(reservation, keys[:1])
        assert store.commit(reservation) == 1
        assert store.commit(reservation) == 0

    def test_abort_gives_back_and_may_be_called_again(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        reservation = store.reserve(namespace.namespace_id, keys)
        assert store.abort(reservation, keys[4:]) == 2
        assert store.abort(reservation) == 4
        assert store.abort(reservation) == 0
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 0
        assert set(self.put(store, namespace, keys)) == {GRANTED}

    def test_a_strict_commit_is_kept(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        store.put(namespace.namespace_id, keys, sources_of(keys), durability=Durability.STRICT)
        assert self.held(store, namespace, keys) == len(keys)

    def test_flush_writes_what_was_committed_before_it(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        store.put(namespace.namespace_id, keys, sources_of(keys), durability=Durability.VOLATILE)
        assert store.flush() >= 0
        assert store.flush() == 0
        assert self.held(store, namespace, keys) == len(keys)

    def test_a_reserve_of_nothing_and_a_put_of_nothing_are_fine(self, store: BlockStore, namespace: Namespace) -> None:
        reservation = store.reserve(namespace.namespace_id, [])
        assert reservation.grants == ()
        assert store.commit(reservation) == 0
        assert store.put(namespace.namespace_id, [], []) == ()
        assert store.get(namespace.namespace_id, [], []) == 0

    # -- loading ---------------------------------------------------------------------------------------------------------

    def test_lookup_tells_the_prefix_its_tiers_and_why_it_ends(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        self.put(store, namespace, keys[:4])
        match = store.lookup(namespace.namespace_id, keys)
        assert (match.num_blocks, len(match.tiers), match.miss) == (4, 4, MissReason.NEVER_SEEN)
        assert store.lookup(namespace.namespace_id, keys[:4]).miss is None

    def test_a_hole_ends_the_prefix(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys)
        store.delete(namespace.namespace_id, [keys[2]])
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 2
        assert self.held(store, namespace, keys) == 2
        assert self.held(store, namespace, keys[3:]) == 3

    def test_a_lease_reads_in_place(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys)
        lease = store.acquire(namespace.namespace_id, keys)
        assert [bytes(block) for block in lease.blocks()] == [content_of(key) for key in keys]
        assert lease.blocks() == lease.blocks()
        assert (lease.num_blocks, len(lease.tiers), lease.miss, lease.is_valid) == (6, 6, None, True)
        store.release(lease)
        assert not lease.is_valid

    def test_runs_bring_every_block_once_in_order(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys)
        lease = store.acquire(namespace.namespace_id, keys)
        seen: list[bytes] = []
        for run in lease.runs():
            assert run.start_idx == len(seen)
            seen.extend(bytes(block) for block in run.blocks)
        assert seen == [content_of(key) for key in keys]
        store.release(lease)

    def test_an_acquire_is_as_long_as_what_is_held(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys[:2])
        lease = store.acquire(namespace.namespace_id, keys)
        assert (len(lease.blocks()), lease.num_blocks, lease.miss) == (2, 2, MissReason.NEVER_SEEN)
        store.release(lease)
        empty = store.acquire(namespace.namespace_id, keys[3:])
        assert (empty.blocks(), empty.num_blocks, empty.tiers) == ((), 0, ())
        store.release(empty)

    def test_release_may_be_called_again(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys)
        lease = store.acquire(namespace.namespace_id, keys)
        store.release(lease)
        store.release(lease)
        assert self.held(store, namespace, keys) == len(keys)

    def test_get_fills_the_leading_targets_only(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys[:3])
        targets = targets_for(keys)
        assert store.get(namespace.namespace_id, keys, targets) == 3
        assert not any(bytes(target).strip(b"\0") for target in targets[3:])

    def test_prefetch_is_harmless(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys)
        assert 0 <= store.prefetch(namespace.namespace_id, keys) <= len(keys)
        assert self.held(store, namespace, keys) == len(keys)

    # -- forgetting ------------------------------------------------------------------------------------------------------

    def test_delete_counts_what_was_held(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys[:4])
        assert store.delete(namespace.namespace_id, keys) == 4
        assert store.delete(namespace.namespace_id, keys) == 0
        assert self.held(store, namespace, keys) == 0
        assert set(self.put(store, namespace, keys)) == {GRANTED}
        assert self.held(store, namespace, keys) == len(keys)

    def test_a_leased_block_is_not_deleted_and_nothing_else_is(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        if not rig.is_shared_memory:
            pytest.skip("a lease without shared memory holds copies, and pins nothing")
        self.put(store, namespace, keys)
        lease = store.acquire(namespace.namespace_id, keys[:1])
        assert len(lease.blocks()) == 1
        with pytest.raises(ConflictError):
            store.delete(namespace.namespace_id, [*keys[1:], keys[0]])
        assert self.held(store, namespace, keys) == len(keys)
        store.release(lease)
        wait_until(lambda: self.can_delete(store, namespace, keys), timeout_s=5, what="the lease to be released")

    @staticmethod
    def can_delete(store: BlockStore, namespace: Namespace, keys: Sequence[BlockKey]) -> bool:
        with contextlib.suppress(ConflictError):
            return store.delete(namespace.namespace_id, keys) == len(keys)
        return False

    def test_clear_forgets_one_namespace(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        other = store.register(Identity(weights="untouched", salt=namespace.namespace_id.hex()), LAYOUT)
        others = self.chain(other.namespace_id, 2)
        self.put(store, other, others)
        self.put(store, namespace, keys)
        assert store.clear(namespace.namespace_id) == len(keys)
        assert self.held(store, namespace, keys) == 0
        assert self.held(store, other, others) == 2

    # -- several handles -------------------------------------------------------------------------------------------------

    def test_handles_share_blocks(self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        with self.second(rig) as other:
            other.register(namespace.identity, LAYOUT)
            self.put(store, namespace, keys)
            assert self.held(other, namespace, keys) == len(keys)

    def test_a_key_that_another_handle_writes_is_pending(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        if not rig.is_shared_memory:
            pytest.skip("a reservation without shared memory holds nothing at the daemon")
        with self.second(rig) as other:
            other.register(namespace.identity, LAYOUT)
            reservation = store.reserve(namespace.namespace_id, keys[:2])
            grants = other.reserve(namespace.namespace_id, keys[:3]).grants
            assert [grant.outcome for grant in grants] == [PENDING, PENDING, GRANTED]
            assert [grant.buffer is None for grant in grants] == [True, True, False]
            store.abort(reservation)

    def test_a_handle_that_closes_gives_back_what_it_reserved(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        with self.second(rig) as other:
            other.register(namespace.identity, LAYOUT)
            other.reserve(namespace.namespace_id, keys)
        wait_until(lambda: self.put(store, namespace, keys[:1]) == (GRANTED,), timeout_s=5, what="the reservation to end")
        assert self.held(store, namespace, keys) == 1

    @contextlib.contextmanager
    def second(self, rig: StoreRig):  # type: ignore[no-untyped-def]  # noqa: ANN201 - a context manager of a BlockStore
        if rig.another is None:
            pytest.skip("this store has one handle")
        other = rig.another()
        try:
            yield other
        finally:
            other.close()

    # -- bounds and expiry -----------------------------------------------------------------------------------------------

    def test_with_everything_pinned_a_reserve_is_refused_and_says_so(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace
    ) -> None:
        if not rig.room_blocks:
            pytest.skip("this store is not to be filled")
        keys = self.chain(namespace.namespace_id, rig.room_blocks + 8)
        reservation = store.reserve(namespace.namespace_id, keys)
        outcomes = [grant.outcome for grant in reservation.grants]
        num_granted = outcomes.count(GRANTED)
        assert 0 < num_granted <= rig.room_blocks
        assert outcomes == [GRANTED] * num_granted + [REFUSED] * (len(keys) - num_granted)
        assert store.abort(reservation) == num_granted
        more = store.reserve(namespace.namespace_id, keys[:1])
        assert more.grants[0].outcome is GRANTED
        store.abort(more)

    def test_an_expired_reservation_conflicts_and_its_keys_are_free(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        if rig.expire is None:
            pytest.skip("time cannot be moved here")
        reservation = store.reserve(namespace.namespace_id, keys)
        rig.expire()
        with pytest.raises(ConflictError):
            store.commit(reservation)
        assert set(self.put(store, namespace, keys)) == {GRANTED}

    def test_an_expired_lease_says_so(self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        if rig.expire is None:
            pytest.skip("time cannot be moved here")
        self.put(store, namespace, keys)
        lease = store.acquire(namespace.namespace_id, keys)
        validity = [lease.is_valid]
        rig.expire()
        validity.append(lease.is_valid)
        assert validity == [True, False]
        store.release(lease)
        assert store.delete(namespace.namespace_id, keys) == len(keys)

    # -- bad input -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("verb", ["lookup", "reserve", "acquire", "delete", "prefetch"])
    def test_a_malformed_key_is_refused(self, store: BlockStore, namespace: Namespace, verb: str) -> None:
        with pytest.raises(InvalidRequestError):
            getattr(store, verb)(namespace.namespace_id, [BlockKey(b"short")])

    @pytest.mark.parametrize("verb", ["reserve", "acquire"])
    def test_a_key_twice_in_a_call_is_refused(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey], verb: str
    ) -> None:
        if not rig.is_shared_memory and verb == "reserve":
            pytest.skip("found out by the commit")
        with pytest.raises(InvalidRequestError):
            getattr(store, verb)(namespace.namespace_id, [keys[0], keys[0]])

    def test_too_many_keys_are_refused(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        with pytest.raises(InvalidRequestError):
            store.lookup(namespace.namespace_id, keys[:1] * 65_537)

    def test_buffers_of_the_wrong_size_or_number_are_refused(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        short = memoryview(bytearray(BLOCK_BYTES - 1))
        with pytest.raises(InvalidRequestError):
            store.put(namespace.namespace_id, keys[:1], [short])
        with pytest.raises(InvalidRequestError):
            store.put(namespace.namespace_id, keys[:2], sources_of(keys[:1]))
        with pytest.raises(InvalidRequestError):
            store.get(namespace.namespace_id, keys[:1], [short])
        with pytest.raises(InvalidRequestError):
            store.get(namespace.namespace_id, keys[:1], [memoryview(bytes(BLOCK_BYTES))])
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 0

    def test_leases_and_reservations_of_others_are_refused(self, store: BlockStore) -> None:
        with pytest.raises(InvalidRequestError):
            store.commit(object())  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError):
            store.release(object())  # type: ignore[arg-type]

    # -- care ------------------------------------------------------------------------------------------------------------

    def test_stats_count_hits_and_misses(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        before = store.stats()
        self.put(store, namespace, keys[:4])
        assert self.held(store, namespace, keys) == 4
        after = store.stats()
        assert sum(after.hits.values()) - sum(before.hits.values()) == 4
        assert after.misses.get(MissReason.NEVER_SEEN, 0) - before.misses.get(MissReason.NEVER_SEEN, 0) == 2
        assert after.sessions >= 1
        assert all(tier.used_bytes <= tier.capacity_bytes for tier in after.tiers)

    def test_a_closed_handle_says_so_and_closes_again(self, rig: StoreRig, namespace: Namespace, keys: list[BlockKey]) -> None:
        with self.second(rig) as other:
            other.register(namespace.identity, LAYOUT)
            other.close()
            other.close()
            with pytest.raises(ClosedError):
                other.lookup(namespace.namespace_id, keys)
