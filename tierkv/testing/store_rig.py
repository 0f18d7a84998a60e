"""What the contract suite of stores works with: the store under test, keys and contents that derive from each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tierkv.errors import ConflictError
from tierkv.interface import BlockStore, Reservation
from tierkv.model.hints import NO_HINTS
from tierkv.model.keys import BlockKey, NamespaceId, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import ReserveOutcome

BLOCK_BYTES = 8192
BLOCK_TOKENS = 4
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=BLOCK_TOKENS)
VERBS_WITH_KEYS = ("lookup", "reserve", "acquire", "prefetch", "put", "get", "advise", "delete")
GRANTED, PRESENT, PENDING, REFUSED = ReserveOutcome.GRANTED, ReserveOutcome.PRESENT, ReserveOutcome.PENDING, ReserveOutcome.REFUSED


@dataclass(frozen=True, slots=True)
class StoreRig:
    """A store under test.

    another — opens a second handle on the same blocks; None where there is only one. expire — lets every lease and reservation
    expire, the reservations' extents included; None where time cannot be moved. room_blocks — blocks that fit in the fastest tier
    together; 0 where that is not to be filled. is_shared_memory — reservations and leases hold the store's own memory. has_disk —
    there is a disk tier to flush to.
    """

    store: BlockStore
    another: Callable[[], BlockStore] | None = None
    expire: Callable[[], None] | None = None
    room_blocks: int = 0
    is_shared_memory: bool = True
    has_disk: bool = True


def content_of(key: BlockKey) -> bytes:
    """The bytes every test stores under `key`."""
    return key * (BLOCK_BYTES // len(key))


def sources_of(keys: Sequence[BlockKey]) -> list[memoryview]:
    return [memoryview(content_of(key)) for key in keys]


def targets_for(keys: Sequence[BlockKey]) -> list[memoryview]:
    return [memoryview(bytearray(BLOCK_BYTES)) for _ in keys]


class StoreCases:
    """Fixtures and helpers; `rig` is the subclass's fixture."""

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
    def put(
        store: BlockStore, namespace: Namespace, keys: Sequence[BlockKey], *, parent: BlockKey | None = None
    ) -> tuple[ReserveOutcome, ...]:
        return store.put(namespace.namespace_id, keys, sources_of(keys), parent=parent)

    @staticmethod
    def held(store: BlockStore, namespace: Namespace, keys: Sequence[BlockKey]) -> int:
        """Length of the leading run that comes back, with its content checked."""
        targets = targets_for(keys)
        count = store.get(namespace.namespace_id, keys, targets)
        assert [bytes(target) for target in targets[:count]] == [content_of(key) for key in keys[:count]]
        return count

    @staticmethod
    def call(store: BlockStore, verb: str, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> object:
        """One of `VERBS_WITH_KEYS`, with what else it takes (buffers of the right size, hints): only the keys can be wrong."""
        block = memoryview(bytearray(BLOCK_BYTES))
        others: dict[str, list[object]] = {"put": [[block] * len(keys)], "get": [[block] * len(keys)], "advise": [NO_HINTS]}
        return getattr(store, verb)(namespace_id, keys, *others.get(verb, []))

    @staticmethod
    def fill(reservation: Reservation) -> None:
        """Writes every granted buffer."""
        for grant in reservation.grants:
            if grant.buffer is not None:
                grant.buffer[:] = content_of(grant.key)

    @staticmethod
    def outcomes(reservation: Reservation) -> list[ReserveOutcome]:
        return [grant.outcome for grant in reservation.grants]

    @staticmethod
    def needs_shared_memory(rig: StoreRig) -> None:
        if not rig.is_shared_memory:
            pytest.skip("without shared memory reservations and leases are copies, and hold nothing of the store's")

    @staticmethod
    def can_delete(store: BlockStore, namespace: Namespace, keys: Sequence[BlockKey]) -> bool:
        with contextlib.suppress(ConflictError):
            return store.delete(namespace.namespace_id, keys) == len(keys)
        return False

    @contextlib.contextmanager
    def second(self, rig: StoreRig):  # type: ignore[no-untyped-def]  # noqa: ANN201 - a context manager of a BlockStore
        if rig.another is None:
            pytest.skip("this store has one handle")
        other = rig.another()
        try:
            yield other
        finally:
            other.close()
