"""The contract of stores: bounds, expiry, bad input, care."""

from __future__ import annotations

import pytest

from tierkv.errors import ClosedError, ConflictError, InvalidRequestError
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import MissReason
from tierkv.testing.store_rig import BLOCK_BYTES, GRANTED, LAYOUT, REFUSED, StoreCases, StoreRig, sources_of


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

    # -- bad input -------------------------------------------------------------------------------------------------------------

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

    def test_a_closed_handle_says_so_and_closes_again(self, rig: StoreRig, namespace: Namespace, keys: list[BlockKey]) -> None:
        with self.second(rig) as other:
            other.register(namespace.identity, LAYOUT)
            other.close()
            other.close()
            with pytest.raises(ClosedError):
                other.lookup(namespace.namespace_id, keys)
