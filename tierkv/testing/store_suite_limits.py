"""The contract of stores: bounds, expiry, bad input, care."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tierkv.errors import ClosedError, ConflictError, InvalidRequestError
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import MissReason
from tierkv.settings import LimitSettings
from tierkv.testing.deadline import wait_until
from tierkv.testing.store_rig import (
    BLOCK_BYTES,
    GRANTED,
    LAYOUT,
    PRESENT,
    REFUSED,
    VERBS_WITH_KEYS,
    StoreCases,
    StoreRig,
    content_of,
    sources_of,
)

KEYS_PER_CALL = LimitSettings().keys_per_call


class LimitsContract(StoreCases):
    """What a store does at its bounds, with calls that are wrong, and after its end."""

    # -- bounds and expiry -----------------------------------------------------------------------------------------------------

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

    def test_with_everything_leased_a_reserve_is_refused_and_the_leases_stay_good(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace
    ) -> None:
        if not rig.room_blocks:
            pytest.skip("this store is not to be filled")
        keys = self.chain(namespace.namespace_id, rig.room_blocks + 8)
        outcomes = self.put(store, namespace, keys)
        num_held = outcomes.count(GRANTED)
        assert 0 < num_held <= rig.room_blocks
        lease = store.acquire(namespace.namespace_id, keys)
        num_held = lease.num_blocks
        assert 0 < num_held <= rig.room_blocks
        assert [bytes(block) for block in lease.blocks()] == [content_of(key) for key in keys[:num_held]]
        fresh = self.chain(namespace.namespace_id, 2, seed=1)
        refused = store.reserve(namespace.namespace_id, fresh)
        assert self.outcomes(refused) == [REFUSED] * 2
        assert [grant.buffer for grant in refused.grants] == [None] * 2
        assert store.commit(refused) == 0
        assert [bytes(block) for block in lease.blocks()] == [content_of(key) for key in keys[:num_held]]
        store.release(lease)
        wait_until(lambda: self.put(store, namespace, fresh) == (GRANTED,) * 2, timeout_s=5, what="room after the release")
        assert self.held(store, namespace, fresh) == 2
        store.clear(namespace.namespace_id)

    def test_an_expired_reservation_conflicts_and_its_keys_are_free(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        if rig.expire is None:
            pytest.skip("time cannot be moved here")
        reservation = store.reserve(namespace.namespace_id, keys)
        rig.expire()
        with pytest.raises(ConflictError):
            store.commit(reservation)
        assert store.abort(reservation) == 0
        assert store.stats().reservations == 0
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

    # -- bad input -------------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("verb", VERBS_WITH_KEYS)
    def test_a_malformed_key_is_refused(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey], verb: str) -> None:
        self.put(store, namespace, keys[:2])
        for wrong in (b"", b"short", bytes(33)):
            with pytest.raises(InvalidRequestError):
                self.call(store, verb, namespace.namespace_id, [*keys[:4], BlockKey(wrong)])
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 2
        assert self.put(store, namespace, keys) == (PRESENT,) * 2 + (GRANTED,) * 4

    @pytest.mark.parametrize("verb", VERBS_WITH_KEYS)
    def test_a_key_twice_in_a_call_is_refused(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey], verb: str
    ) -> None:
        self.put(store, namespace, keys[:2])
        with pytest.raises(InvalidRequestError):
            self.call(store, verb, namespace.namespace_id, [*keys[:4], keys[0]])
        assert self.put(store, namespace, keys) == (PRESENT,) * 2 + (GRANTED,) * 4

    @pytest.mark.parametrize("verb", VERBS_WITH_KEYS)
    def test_too_many_keys_are_refused(self, store: BlockStore, namespace: Namespace, verb: str) -> None:
        many = [BlockKey(number.to_bytes(32, "big")) for number in range(KEYS_PER_CALL + 1)]
        with pytest.raises(InvalidRequestError):
            self.call(store, verb, namespace.namespace_id, many)
        assert store.lookup(namespace.namespace_id, many[:-1]).num_blocks == 0

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
        with pytest.raises(InvalidRequestError):
            store.put(namespace.namespace_id, keys[:2], [*sources_of(keys[:1]), short])
        scattered = memoryview(bytearray(2 * BLOCK_BYTES))[::2]
        with pytest.raises(InvalidRequestError):
            store.put(namespace.namespace_id, keys[:1], [scattered])
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 0
        assert set(self.put(store, namespace, keys)) == {GRANTED}

    def test_leases_and_reservations_of_others_are_refused(self, store: BlockStore) -> None:
        with pytest.raises(InvalidRequestError):
            store.commit(object())  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError):
            store.abort(object())  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError):
            store.release(object())  # type: ignore[arg-type]

    # -- care ------------------------------------------------------------------------------------------------------------------

    def test_stats_count_hits_and_misses(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        before = store.stats()
        self.put(store, namespace, keys[:4])
        assert self.held(store, namespace, keys) == 4
        after = store.stats()
        assert sum(after.hits.values()) - sum(before.hits.values()) == 4
        assert after.misses.get(MissReason.NEVER_SEEN, 0) - before.misses.get(MissReason.NEVER_SEEN, 0) == 2
        assert after.sessions >= 1
        assert all(tier.used_bytes <= tier.capacity_bytes for tier in after.tiers)

    def test_stats_count_leases_and_reservations(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        self.needs_shared_memory(rig)
        self.put(store, namespace, keys[:2])
        wait_until(lambda: not store.stats().leases, timeout_s=5, what="earlier handles' leases to be released")
        before = store.stats()
        lease, reservation = store.acquire(namespace.namespace_id, keys[:2]), store.reserve(namespace.namespace_id, keys)
        during = store.stats()
        assert (during.leases - before.leases, during.reservations - before.reservations) == (1, 1)
        store.release(lease)
        store.abort(reservation)
        wait_until(lambda: store.stats().leases == before.leases, timeout_s=5, what="the lease to be released")
        assert store.stats().reservations == before.reservations

    def test_a_closed_handle_says_so_and_closes_again(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys[:1])
        reservation, lease = store.reserve(namespace.namespace_id, keys), store.acquire(namespace.namespace_id, keys)
        store.close()
        store.close()
        assert not lease.is_valid
        store.release(lease)
        for verb in VERBS_WITH_KEYS:
            with pytest.raises(ClosedError):
                self.call(store, verb, namespace.namespace_id, keys)
        calls: list[Callable[[], object]] = [
            lambda: store.register(namespace.identity, LAYOUT),
            lambda: store.commit(reservation),
            lambda: store.clear(namespace.namespace_id),
            store.stats,
            store.flush,
        ]
        for call in calls:
            with pytest.raises(ClosedError):
                call()

    def test_what_a_handle_leased_returns_when_it_closes(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        with self.second(rig) as other:
            other.register(namespace.identity, LAYOUT)
            self.put(store, namespace, keys)
            other.acquire(namespace.namespace_id, keys)
        wait_until(lambda: self.can_delete(store, namespace, keys), timeout_s=5, what="the lease to be released")
