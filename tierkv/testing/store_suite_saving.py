"""The contract of stores: namespaces, saving, several handles."""

from __future__ import annotations

import pytest

from tierkv.errors import InvalidRequestError
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability
from tierkv.testing.deadline import wait_until
from tierkv.testing.store_rig import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    GRANTED,
    LAYOUT,
    PENDING,
    PRESENT,
    StoreCases,
    StoreRig,
    content_of,
    sources_of,
    targets_for,
)


class SavingContract(StoreCases):
    """What reserve, commit, abort, put and flush promise."""

    # -- namespaces ------------------------------------------------------------------------------------------------------------

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

    # -- saving ----------------------------------------------------------------------------------------------------------------

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

    # -- several handles -------------------------------------------------------------------------------------------------------

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
