"""The contract of stores: hints and advice. What moves in the order of leaving is seen by pressing on a full tier."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tierkv.errors import InvalidRequestError
from tierkv.interface import BlockStore
from tierkv.model.hints import NO_HINTS, REQUEST_ID_BYTES, Hints, Priority
from tierkv.model.keys import BlockKey
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import TierName
from tierkv.testing.deadline import wait_until
from tierkv.testing.store_rig import GRANTED, PRESENT, StoreCases, StoreRig, content_of, sources_of, targets_for

FAR_FUTURE_S = 1e11
LONG_PAST_S = 1e-3
_SINGLE_SAVES = 24
"""Enough to push out what is to leave first, far too few for anything else."""
EVERYTHING = Hints(
    request_id="r" * REQUEST_ID_BYTES, session_closed=True, expected_idle_s=3.5, priority=Priority.HIGH, pin_until_s=FAR_FUTURE_S
)


class HintsContract(StoreCases):
    """What a store does with hints, and what it never does: fail for them, or count advice as an access."""

    @pytest.mark.parametrize("hints", [NO_HINTS, EVERYTHING, Hints(priority=Priority.LOW), Hints(expected_idle_s=1e9)])
    def test_every_verb_takes_hints_and_does_what_it_does_without(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey], hints: Hints
    ) -> None:
        assert store.put(namespace.namespace_id, keys[:3], sources_of(keys[:3]), hints=hints) == (GRANTED,) * 3
        reservation = store.reserve(namespace.namespace_id, keys, hints=hints)
        self.fill(reservation)
        assert self.outcomes(reservation) == [PRESENT] * 3 + [GRANTED] * 3
        assert store.commit(reservation) == 3
        lease = store.acquire(namespace.namespace_id, keys, hints=hints)
        assert [bytes(block) for block in lease.blocks()] == [content_of(key) for key in keys]
        assert lease.miss is None
        store.release(lease)
        targets = targets_for(keys)
        assert store.get(namespace.namespace_id, keys, targets, hints=hints) == len(keys)
        assert [bytes(target) for target in targets] == [content_of(key) for key in keys]
        wait_until(lambda: self.can_delete(store, namespace, keys), timeout_s=5, what="the leases to be released")

    def test_advice_counts_the_held_blocks_and_is_no_access(
        self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]
    ) -> None:
        self.put(store, namespace, keys[:4])
        before = store.stats()
        assert store.advise(namespace.namespace_id, keys, EVERYTHING) == 4
        assert store.advise(namespace.namespace_id, keys[4:], EVERYTHING) == 0
        assert store.advise(namespace.namespace_id, [], EVERYTHING) == 0
        assert store.advise(namespace.namespace_id, keys[2:], NO_HINTS) == 2
        after = store.stats()
        assert (after.hits, after.misses) == (before.hits, before.misses)
        assert store.clear(namespace.namespace_id) == 4

    def test_advice_leaves_out_what_is_only_reserved(self, store: BlockStore, namespace: Namespace, keys: list[BlockKey]) -> None:
        self.put(store, namespace, keys[:4])
        reservation = store.reserve(namespace.namespace_id, keys)
        assert store.advise(namespace.namespace_id, keys, Hints(session_closed=True)) == 4
        self.fill(reservation)
        assert store.commit(reservation) == 2
        assert store.advise(namespace.namespace_id, keys, Hints(session_closed=True)) == 6

    def test_advice_for_an_unknown_namespace_is_refused(self, store: BlockStore, namespace: Namespace) -> None:
        unknown = type(namespace.namespace_id)(bytes(32))
        with pytest.raises(InvalidRequestError):
            store.advise(unknown, [], EVERYTHING)

    # -- the order of leaving ----------------------------------------------------------------------------------------------------

    def test_a_pinned_chain_stays_while_others_leave(self, rig: StoreRig, store: BlockStore, namespace: Namespace) -> None:
        pinned, other = self._two_chains(rig, namespace)
        self.put(store, namespace, pinned)
        self.put(store, namespace, other)
        assert store.advise(namespace.namespace_id, pinned, Hints(pin_until_s=FAR_FUTURE_S)) == len(pinned)
        self._press(rig, store, namespace)
        assert self._num_in_host(store, namespace, other) == 0
        assert self._num_in_host(store, namespace, pinned) == len(pinned)
        assert store.advise(namespace.namespace_id, pinned, Hints(pin_until_s=LONG_PAST_S)) == len(pinned)
        self._press(rig, store, namespace, seed=1_000)
        assert self._num_in_host(store, namespace, pinned) == 0
        store.clear(namespace.namespace_id)

    def test_a_pin_holds_what_comes_before_its_blocks_too(self, rig: StoreRig, store: BlockStore, namespace: Namespace) -> None:
        pinned, _ = self._two_chains(rig, namespace)
        self.put(store, namespace, pinned[:2])
        hints = Hints(pin_until_s=FAR_FUTURE_S)
        store.put(namespace.namespace_id, pinned[2:], sources_of(pinned[2:]), parent=pinned[1], hints=hints)
        self._press(rig, store, namespace)
        assert self._num_in_host(store, namespace, pinned) == len(pinned)
        store.clear(namespace.namespace_id)

    def test_pins_hold_at_most_half_of_the_tier(self, rig: StoreRig, store: BlockStore, namespace: Namespace) -> None:
        self._two_chains(rig, namespace)
        pinned: list[BlockKey] = []
        for seed in range(16):
            keys = self.chain(namespace.namespace_id, rig.room_blocks // 16, seed=500 + seed)
            store.flush()
            store.put(namespace.namespace_id, keys, sources_of(keys), hints=Hints(pin_until_s=FAR_FUTURE_S))
            pinned += keys
        self._press(rig, store, namespace)
        assert rig.room_blocks // 4 < self._num_in_host(store, namespace, pinned) <= rig.room_blocks // 2
        store.clear(namespace.namespace_id)

    def test_high_priority_stays_while_others_leave(self, rig: StoreRig, store: BlockStore, namespace: Namespace) -> None:
        high, other = self._two_chains(rig, namespace)
        store.put(namespace.namespace_id, high, sources_of(high), hints=Hints(priority=Priority.HIGH))
        self.put(store, namespace, other)
        self._press(rig, store, namespace)
        assert self._num_in_host(store, namespace, other) == 0
        assert self._num_in_host(store, namespace, high) == len(high)
        assert store.advise(namespace.namespace_id, high, Hints(priority=Priority.LOW)) == len(high)
        self._press_until_gone(store, namespace, high)
        store.clear(namespace.namespace_id)

    def test_low_priority_leaves_first(self, rig: StoreRig, store: BlockStore, namespace: Namespace) -> None:
        low, other = self._two_chains(rig, namespace)
        self._press(rig, store, namespace, num_chains=18)
        self.put(store, namespace, other)
        store.put(namespace.namespace_id, low, sources_of(low), hints=Hints(priority=Priority.LOW))
        self._press_until_gone(store, namespace, low)
        assert self._num_in_host(store, namespace, other) == len(other)
        store.clear(namespace.namespace_id)

    @pytest.mark.parametrize("verb", ["advise", "acquire"])
    def test_a_closed_session_leaves_first_but_for_what_others_share(
        self, rig: StoreRig, store: BlockStore, namespace: Namespace, verb: str
    ) -> None:
        first, second = self._two_chains(rig, namespace)
        closed, shared = [*first, *second], first
        beside = self.chain(namespace.namespace_id, 2, seed=7)
        self._press(rig, store, namespace, num_chains=18)
        # Two conversations with one beginning; keys need not be what tokens give for a store to link them.
        self.put(store, namespace, [*shared, *beside])
        self.put(store, namespace, closed)
        if verb == "advise":
            assert store.advise(namespace.namespace_id, closed, Hints(session_closed=True)) == len(closed)
        else:
            store.release(store.acquire(namespace.namespace_id, closed, hints=Hints(session_closed=True)))
        self._press_until_gone(store, namespace, second)
        assert self._num_in_host(store, namespace, [*shared, *beside]) == len(shared) + len(beside)
        store.clear(namespace.namespace_id)

    # -- helpers -----------------------------------------------------------------------------------------------------------------

    def _two_chains(self, rig: StoreRig, namespace: Namespace) -> tuple[list[BlockKey], list[BlockKey]]:
        if not rig.room_blocks:
            pytest.skip("this store is not to be filled")
        return self.chain(namespace.namespace_id, 4, seed=1), self.chain(namespace.namespace_id, 4, seed=2)

    def _press(self, rig: StoreRig, store: BlockStore, namespace: Namespace, *, num_chains: int = 48, seed: int = 100) -> None:
        """Saves chains that nobody asks for again, each a sixteenth of the tier (a request may add an eighth to a full one)."""
        for number in range(num_chains):
            fresh = self.chain(namespace.namespace_id, rig.room_blocks // 16, seed=seed + number)
            store.flush()  # what is on disk leaves at once, so that nobody is refused while a demotion is under way
            assert set(self.put(store, namespace, fresh)) == {GRANTED}

    def _press_until_gone(self, store: BlockStore, namespace: Namespace, keys: Sequence[BlockKey]) -> None:
        """Saves block after block until the first of `keys` is out of the host tier."""
        for number in range(_SINGLE_SAVES):
            if not self._is_in_host(store, namespace, keys[0]):
                return
            store.flush()
            assert self.put(store, namespace, self.chain(namespace.namespace_id, 1, seed=5_000 + number)) == (GRANTED,)
        pytest.fail("the blocks did not leave")

    @staticmethod
    def _is_in_host(store: BlockStore, namespace: Namespace, key: BlockKey) -> bool:
        return store.lookup(namespace.namespace_id, [key]).tiers == (TierName.HOST,)

    def _num_in_host(self, store: BlockStore, namespace: Namespace, keys: Sequence[BlockKey]) -> int:
        return sum(self._is_in_host(store, namespace, key) for key in keys)
