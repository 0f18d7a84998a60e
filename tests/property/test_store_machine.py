"""The embedded store against a dictionary, under random verbs, restarts and kills, with `check_integrity()` after each rule.

Keys form trees: pairs of chains begin alike. Blocks are reserved, committed and leased from anywhere in a chain, in parts.

What the model knows: the bytes of every block that was ever committed and not deleted. The store may have forgotten any of them
(it is a cache), but whatever it serves is byte for byte what the model has, and what it must not have it does not serve.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tierkv.assemble import open_tiered_store
from tierkv.embedded import EmbeddedStore
from tierkv.errors import CapacityError, ConflictError
from tierkv.interface import Lease, Reservation
from tierkv.model.hints import NO_HINTS, Hints, Priority
from tierkv.model.keys import BlockKey, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, ReserveOutcome
from tierkv.settings import MIB, DiskSettings, HostSettings, PolicyName, StoreSettings
from tierkv.testing.clock import ManualClock

BLOCK_BYTES = 64 * 1024
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
CHAINS = 6
CHAIN_BLOCKS = 8
SHARED_BLOCKS = 3
"""Leading blocks that a chain has in common with its neighbour."""


def content_of(key: BlockKey) -> bytes:
    """A block's bytes follow from its key, so that any reader can judge any answer."""
    return (key * (BLOCK_BYTES // len(key)))[:BLOCK_BYTES]


class StoreMachine(RuleBasedStateMachine):
    """Host tier of 16 blocks, disk of about 24: evictions on both tiers are common."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tierkv-machine-"))
        self.clock = ManualClock()
        self.committed: set[BlockKey] = set()
        self.leases: list[tuple[Lease, list[BlockKey]]] = []
        self.reservations: list[tuple[Reservation, list[BlockKey]]] = []
        """Each with its keys that are neither committed nor aborted."""

    @initialize(
        policy=st.sampled_from(list(PolicyName)),
        durability=st.sampled_from(list(Durability)),
        budget_bytes=st.sampled_from([0, 0, 24 * BLOCK_BYTES]),
    )
    def open(self, policy: PolicyName, durability: Durability, budget_bytes: int) -> None:
        self.settings = StoreSettings(
            data_folder=self.folder / "data",
            host=HostSettings(memory_bytes=MIB, folder=self.folder / "arena", prefault=False),
            disk=DiskSettings(
                capacity_bytes=3 * MIB // 2,
                segment_bytes=MIB // 2,
                direct_io=False,
                interval_s=0.0,
                write_budget_bytes_per_day=budget_bytes,
            ),
            policy=policy,
            durability=durability,
            promote_run_blocks=3,
        )
        self._start()

    def _start(self) -> None:
        tiered = open_tiered_store(self.settings, self.clock)
        self.store = EmbeddedStore(tiered, clock=self.clock, discard_arena=False)
        self.namespace_id = self.store.register(Identity(weights="machine"), LAYOUT).namespace_id

    def _chain(self, chain: int, length: int) -> list[BlockKey]:
        tokens = [(chain // 2 if idx < 4 * SHARED_BLOCKS else CHAINS + chain) * 1000 + idx for idx in range(4 * length)]
        return chain_keys(self.namespace_id, tokens, block_tokens=4)

    chains = st.integers(0, CHAINS - 1)
    lengths = st.integers(1, CHAIN_BLOCKS)
    places = st.integers(0, CHAIN_BLOCKS - 1)
    # What a rule draws must not depend on what was granted: that depends on how far the disk's thread has come.
    starts = st.just(0) | st.integers(0, CHAIN_BLOCKS)

    hints = st.just(NO_HINTS) | st.builds(
        Hints,
        request_id=st.sampled_from(["", "r", "q"]),
        session_closed=st.booleans(),
        expected_idle_s=st.none() | st.floats(0, 1e6),
        priority=st.sampled_from(list(Priority)),
        pin_until_s=st.none() | st.floats(0, 1e3),
    )

    @rule(chain=chains, length=lengths, durability=st.none() | st.sampled_from(list(Durability)), hints=hints)
    def put(self, chain: int, length: int, durability: Durability | None, hints: Hints) -> None:
        keys = self._chain(chain, length)
        sources = [memoryview(content_of(key)) for key in keys]
        try:
            outcomes = self.store.put(self.namespace_id, keys, sources, durability=durability, hints=hints)
        except CapacityError:  # visible, or gone with their head, but not durable
            self.committed.update(keys)
        else:
            self.committed.update(key for key, outcome in zip(keys, outcomes, strict=True) if outcome is ReserveOutcome.GRANTED)

    @rule(chain=chains, length=lengths)
    def get(self, chain: int, length: int) -> None:
        keys = self._chain(chain, length)
        targets = [bytearray(BLOCK_BYTES) for _ in keys]
        count = self.store.get(self.namespace_id, keys, [memoryview(target) for target in targets])
        for key, target in zip(keys[:count], targets, strict=False):
            assert key in self.committed
            assert bytes(target) == content_of(key)

    @rule(chain=chains, length=lengths, start=starts, hints=hints)
    def acquire(self, chain: int, length: int, start: int, hints: Hints) -> None:
        keys = self._chain(chain, length)[start:]
        lease = self.store.acquire(self.namespace_id, keys, hints=hints)
        blocks = lease.blocks()
        assert len(blocks) == lease.num_blocks == len(lease.tiers)
        self.leases.append((lease, keys[: len(blocks)]))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, keys = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        for key, block in zip(keys, lease.blocks(), strict=True):
            assert bytes(block) == content_of(key)
        self.store.release(lease)

    @rule(chain=chains, length=lengths, hints=hints)
    def advise(self, chain: int, length: int, hints: Hints) -> None:
        keys = self._chain(chain, length)
        assert self.store.advise(self.namespace_id, keys, hints) >= self.store.lookup(self.namespace_id, keys).num_blocks

    @rule(chain=chains, length=lengths, start=starts, hints=hints)
    def reserve(self, chain: int, length: int, start: int, hints: Hints) -> None:
        keys = self._chain(chain, length)
        parent = keys[min(start, length) - 1] if start else None
        reservation = self.store.reserve(self.namespace_id, keys[start:], parent=parent, hints=hints)
        for grant in reservation.grants:
            if grant.buffer is not None:
                grant.buffer[:] = content_of(grant.key)
        self.reservations.append((reservation, [grant.key for grant in reservation.grants if grant.buffer is not None]))

    @rule(which=st.integers(0, 99), is_commit=st.booleans(), picks=st.none() | st.lists(places, min_size=1, unique=True))
    def finish_reservation(self, which: int, is_commit: bool, picks: list[int] | None) -> None:
        if not self.reservations:
            return
        reservation, left = self.reservations.pop(which % len(self.reservations))
        part = left if picks is None else [left[place] for place in picks if place < len(left)]
        if len(part) < len(left):
            self.reservations.append((reservation, [key for key in left if key not in part]))
        if is_commit:
            self.committed.update(part)
            with contextlib.suppress(CapacityError):
                assert self.store.commit(reservation, part) == len(part)
        else:
            assert self.store.abort(reservation, part) == len(part)

    @rule(chain=chains, length=lengths, order=st.permutations(range(CHAIN_BLOCKS)), commits=st.sets(places))
    def save_in_parts(self, chain: int, length: int, order: list[int], commits: set[int]) -> None:
        """What other calls seldom come to in one run: the blocks of a chain are committed or aborted one by one, in any order."""
        reservation = self.store.reserve(self.namespace_id, self._chain(chain, length))
        for place in (place for place in order if place < length):
            key, buffer = reservation.grants[place].key, reservation.grants[place].buffer
            if buffer is None:
                continue
            buffer[:] = content_of(key)
            if place in commits:
                self.committed.add(key)
                with contextlib.suppress(CapacityError):
                    assert self.store.commit(reservation, [key]) == 1
            else:
                assert self.store.abort(reservation, [key]) == 1
            self.books_are_right()

    @rule(chain=chains, length=lengths)
    def delete(self, chain: int, length: int) -> None:
        keys = self._chain(chain, length)
        try:
            self.store.delete(self.namespace_id, keys)
        except ConflictError:
            return
        self.committed.difference_update(keys)
        assert self.store.lookup(self.namespace_id, keys).num_blocks == 0

    @rule(chain=chains, length=lengths)
    def prefetch(self, chain: int, length: int) -> None:
        self.store.prefetch(self.namespace_id, self._chain(chain, length))

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @rule()
    def expire_everything(self) -> None:
        self.clock.advance(self.settings.limits.lease_ttl_s + 1)
        self.store.tiered.expire()
        self.clock.advance(self.settings.limits.reservation_ttl_s + 1)
        self.store.tiered.expire()
        for lease, _ in self.leases:
            assert not lease.is_valid
        for reservation, left in self.reservations:
            if left:
                with pytest.raises(ConflictError):
                    self.store.commit(reservation)
        self.leases.clear()
        self.reservations.clear()

    @rule(keeps_arena=st.booleans())
    def restart(self, keeps_arena: bool) -> None:
        self.leases.clear()
        self.reservations.clear()
        self.store.tiered.close(discard_arena=not keeps_arena)
        self.store.close()
        self._start()

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "store"):
            self.store.tiered.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.folder)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
