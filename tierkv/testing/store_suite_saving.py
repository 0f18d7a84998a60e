"""The contract of stores: namespaces, saving, several handles."""

from __future__ import annotations

import pytest

from tierkv.errors import InvalidRequestError
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey, NamespaceId
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
    REFUSED,
    VERBS_WITH_KEYS,
    StoreCases,
    StoreRig,
    content_of,
    sources_of,
)


class SavingContract(StoreCases):
    """What reserve, commit, abort, put and flush promise."""

    def test_nothing_is_granted_behind_a_parent_that_is_not_held(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        refused = store.reserve(namespace.namespace_id, keys[3:], parent=keys[2])
        assert self.outcomes(refused) == [REFUSED] * 3
        self.put(store, namespace, keys[:3])
        again = self.put(store, namespace, keys[3:], parent=keys[2])
        assert again == (GRANTED,) * 3
        assert self.held(store, namespace, keys) == len(keys)

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

    @pytest.mark.parametrize("verb", VERBS_WITH_KEYS)
    def test_a_namespace_that_was_not_registered_is_refused(self, store: BlockStore, verb: str) -> None:
        stranger = Identity(weights=f"stranger to {verb}").fingerprint(LAYOUT)
        with pytest.raises(InvalidRequestError):
            self.call(store, verb, stranger, self.chain(stranger, 1))

    def test_a_namespace_that_was_not_registered_cannot_be_cleared(self, store: BlockStore) -> None:
        with pytest.raises(InvalidRequestError):
            store.clear(Identity(weights="stranger to clear").fingerprint(LAYOUT))

    @pytest.mark.parametrize("verb", VERBS_WITH_KEYS)
    def test_a_malformed_namespace_is_refused(self, store: BlockStore, keys: list[BlockKey], verb: str) -> None:
        with pytest.raises(InvalidRequestError):
            self.call(store, verb, NamespaceId(b"short"), keys)

    def test_a_block_larger_than_the_memory_is_refused(self, rig: StoreRig, store: BlockStore) -> None:
        if not rig.room_blocks:
            pytest.skip("this store has no bound that is known here")
        huge = Layout(shape=((rig.room_blocks + 1) * BLOCK_BYTES,), dtype="uint8", block_tokens=BLOCK_TOKENS)
        with pytest.raises(InvalidRequestError):
            store.register(Identity(weights="huge"), huge)

    def test_a_key_serves_its_own_namespace_only(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        other = store.register(Identity(weights="neighbour", salt=namespace.namespace_id.hex()), LAYOUT)
        self.put(store, namespace, keys)
        assert store.lookup(other.namespace_id, keys).num_blocks == 0
        assert self.held(store, other, keys) == 0
        assert store.delete(other.namespace_id, keys) == 0
        with pytest.raises(InvalidRequestError):
            self.put(store, other, keys)
        assert self.held(store, namespace, keys) == len(keys)

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
        with pytest.raises(InvalidRequestError, match=keys[4].hex()[:16]):  # the first that is wrong
            store.commit(reservation, [keys[0], keys[4], keys[5]])
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 0
        assert store.abort(reservation) == 2

    def test_a_key_is_committed_once(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        reservation = store.reserve(namespace.namespace_id, keys[:2])
        assert store.commit(reservation, keys[:1]) == 1
        with pytest.raises(InvalidRequestError):
            store.commit(reservation, keys[:1])
        assert store.commit(reservation) == 1
        assert store.commit(reservation) == 0

    def test_a_key_twice_in_a_commit_shows_nothing(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        reservation = store.reserve(namespace.namespace_id, keys[:2])
        self.fill(reservation)
        with pytest.raises(InvalidRequestError):
            store.commit(reservation, [keys[0], keys[0]])
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 0
        assert store.commit(reservation) == 2
        assert self.held(store, namespace, keys) == 2

    def test_an_aborted_key_cannot_be_committed(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        reservation = store.reserve(namespace.namespace_id, keys)
        self.fill(reservation)
        assert store.abort(reservation, keys[3:4]) == 1
        with pytest.raises(InvalidRequestError, match=keys[3].hex()[:16]):
            store.commit(reservation, keys)
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 0
        assert store.commit(reservation) == 5
        assert self.held(store, namespace, keys) == 3

    def test_abort_leaves_what_was_committed_and_what_was_not_granted(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        reservation = store.reserve(namespace.namespace_id, keys[:4])
        self.fill(reservation)
        store.commit(reservation, keys[:2])
        assert store.abort(reservation, [keys[0], keys[5]]) == 0
        assert store.abort(reservation) == 2
        assert self.held(store, namespace, keys) == 2

    def test_a_chain_is_continued_after_its_parent(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys[:3])
        assert store.put(namespace.namespace_id, keys[3:], sources_of(keys[3:]), parent=keys[2]) == (GRANTED,) * 3
        assert self.held(store, namespace, keys) == len(keys)

    def test_a_malformed_parent_is_refused(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        with pytest.raises(InvalidRequestError):
            store.put(namespace.namespace_id, keys, sources_of(keys), parent=BlockKey(b"short"))
        assert set(self.put(store, namespace, keys)) == {GRANTED}

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

    def test_flush_writes_what_was_committed_before_it(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        store.flush()
        store.put(namespace.namespace_id, keys, sources_of(keys), durability=Durability.VOLATILE)
        assert store.flush() == (len(keys) if rig.has_disk else 0)
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
        self.needs_shared_memory(rig)
        with self.second(rig) as other:
            other.register(namespace.identity, LAYOUT)
            reservation = store.reserve(namespace.namespace_id, keys[:2])
            grants = other.reserve(namespace.namespace_id, keys[:3]).grants
            assert [grant.outcome for grant in grants] == [PENDING, PENDING, GRANTED]
            assert [grant.buffer is None for grant in grants] == [True, True, False]
            store.abort(reservation)

    def test_a_key_that_this_handle_writes_is_pending_too(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        self.needs_shared_memory(rig)
        reservation = store.reserve(namespace.namespace_id, keys[:2])
        self.fill(reservation)
        assert self.put(store, namespace, keys) == (PENDING,) * 2 + (GRANTED,) * 4
        assert self.held(store, namespace, keys) == 0
        assert store.commit(reservation) == 2
        assert self.held(store, namespace, keys) == len(keys)

    def test_a_handle_that_closes_gives_back_what_it_reserved(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        with self.second(rig) as other:
            other.register(namespace.identity, LAYOUT)
            other.reserve(namespace.namespace_id, keys)
        wait_until(lambda: self.put(store, namespace, keys[:1]) == (GRANTED,), timeout_s=5, what="the reservation to end")
        assert self.held(store, namespace, keys) == 1
