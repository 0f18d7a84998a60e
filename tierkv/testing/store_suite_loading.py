"""The contract of stores: loading and forgetting."""

from __future__ import annotations

import pytest

from tierkv.errors import ConflictError
from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import MissReason
from tierkv.testing.deadline import wait_until
from tierkv.testing.store_rig import GRANTED, LAYOUT, StoreCases, StoreRig, content_of, targets_for


class LoadingContract(StoreCases):
    """What lookup, acquire, release, get, prefetch, delete and clear promise."""

    # -- loading ---------------------------------------------------------------------------------------------------------------

    def test_lookup_tells_the_prefix_its_tiers_and_why_it_ends(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        self.put(store, namespace, keys[:4])
        match = store.lookup(namespace.namespace_id, keys)
        assert (match.num_blocks, len(match.tiers), match.miss) == (4, 4, MissReason.NEVER_SEEN)
        assert store.lookup(namespace.namespace_id, keys[:4]).miss is None

    def test_a_deleted_block_takes_along_what_follows_it(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        self.put(store, namespace, keys)
        store.delete(namespace.namespace_id, [keys[2]])
        assert store.lookup(namespace.namespace_id, keys).num_blocks == 2
        assert self.held(store, namespace, keys) == 2
        assert self.held(store, namespace, keys[3:]) == 0

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

    def test_lookup_and_prefetch_are_no_accesses(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys[:3])
        before = store.stats()
        store.lookup(namespace.namespace_id, keys)
        store.prefetch(namespace.namespace_id, keys)
        after = store.stats()
        assert (after.hits, after.misses) == (before.hits, before.misses)

    # -- forgetting ------------------------------------------------------------------------------------------------------------

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
        self.needs_shared_memory(rig)
        self.put(store, namespace, keys)
        lease = store.acquire(namespace.namespace_id, keys[:1])
        assert len(lease.blocks()) == 1
        with pytest.raises(ConflictError):
            store.delete(namespace.namespace_id, [*keys[1:], keys[0]])
        assert self.held(store, namespace, keys) == len(keys)
        store.release(lease)
        wait_until(lambda: self.can_delete(store, namespace, keys), timeout_s=5, what="the lease to be released")

    def test_a_block_that_is_being_written_is_not_deleted_and_nothing_else_is(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        self.needs_shared_memory(rig)
        self.put(store, namespace, keys[:4])
        reservation = store.reserve(namespace.namespace_id, keys[4:])
        self.fill(reservation)
        with pytest.raises(ConflictError):
            store.delete(namespace.namespace_id, keys)
        assert store.commit(reservation) == 2
        assert self.held(store, namespace, keys) == len(keys)
        wait_until(lambda: self.can_delete(store, namespace, keys), timeout_s=5, what="the reader's lease to be released")

    def test_a_block_is_held_until_its_last_lease_ends(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        self.needs_shared_memory(rig)
        self.put(store, namespace, keys)
        first, second = store.acquire(namespace.namespace_id, keys), store.acquire(namespace.namespace_id, keys)
        store.release(first)
        wait_until(lambda: store.stats().leases == 1, timeout_s=5, what="the first lease to be released")
        with pytest.raises(ConflictError):
            store.delete(namespace.namespace_id, keys)
        assert second.is_valid
        assert [bytes(block) for block in second.blocks()] == [content_of(key) for key in keys]
        store.release(second)
        wait_until(lambda: self.can_delete(store, namespace, keys), timeout_s=5, what="the lease to be released")

    def test_clear_leaves_what_is_leased_or_being_written(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        self.needs_shared_memory(rig)
        self.put(store, namespace, keys[:4])
        lease = store.acquire(namespace.namespace_id, keys[:1])
        reservation = store.reserve(namespace.namespace_id, keys[4:])
        self.fill(reservation)
        assert store.clear(namespace.namespace_id) == 3
        assert [bytes(block) for block in lease.blocks()] == [content_of(keys[0])]
        assert store.commit(reservation) == 2
        assert (self.held(store, namespace, keys), self.held(store, namespace, keys[4:])) == (1, 2)
        store.release(lease)

    def test_clear_forgets_one_namespace(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        other = store.register(Identity(weights="untouched", salt=namespace.namespace_id.hex()), LAYOUT)
        others = self.chain(other.namespace_id, 2)
        self.put(store, other, others)
        self.put(store, namespace, keys)
        assert store.clear(namespace.namespace_id) == len(keys)
        assert self.held(store, namespace, keys) == 0
        assert self.held(store, other, others) == 2
