"""Asyncio: the verbs of any `BlockStore` as coroutines.

Every verb runs in one of a few threads of the client's own, so that a slow daemon never holds the event loop; nothing else is
different, and nothing is written twice. A verb takes at most its deadline, and so does its thread: cancelling the coroutine stops the
waiting, not the call. gRPC for Python answers a thread sooner than a coroutine, so this costs no speed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Self, TypeVar

from tierkv.client.sync import DEFAULT_TIMEOUT_S, Client
from tierkv.client.sync import connect as connect_sync
from tierkv.interface import BlockStore, Lease, ReadyRun, Reservation
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability, MissReason, PrefixMatch, ReserveOutcome, StoreStats, TierName

_THREADS = 8
"""Verbs of one client that run at the same time; more wait their turn."""
P = ParamSpec("P")
T = TypeVar("T")


async def connect(
    address: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    label: str = "",
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> AsyncClient:
    """`tierkv.connect` for asyncio."""

    def attach() -> Client:
        return connect_sync(address, timeout_s=timeout_s, label=label, token=token, ca_file=ca_file)

    return AsyncClient(await asyncio.to_thread(attach))


class AsyncLease:
    """`tierkv.interface.Lease` with `async for run in lease.runs()` and `await lease.blocks()`."""

    def __init__(self, lease: Lease, threads: ThreadPoolExecutor) -> None:
        self.lease = lease
        self._threads = threads

    @property
    def num_blocks(self) -> int:
        return self.lease.num_blocks

    @property
    def tiers(self) -> tuple[TierName, ...]:
        return self.lease.tiers

    @property
    def miss(self) -> MissReason | None:
        return self.lease.miss

    @property
    def is_valid(self) -> bool:
        return self.lease.is_valid

    async def runs(self) -> AsyncIterator[ReadyRun]:
        """Blocks in order, as they become ready."""
        loop = asyncio.get_running_loop()
        runs = self.lease.runs()
        while (run := await loop.run_in_executor(self._threads, next, runs, None)) is not None:
            yield run

    async def blocks(self) -> tuple[memoryview, ...]:
        """Every block, after waiting for all of them."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.lease.blocks)


class AsyncClient:
    """The verbs of a `BlockStore`, a daemon's or one in this process, as coroutines. Contract of each verb: `tierkv.interface`."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tierkv-aio")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: verb(*args, **kwargs))

    async def register(
        self, identity: Identity, layout: Layout, *, durability: Durability | None = None, timeout_s: float | None = None
    ) -> Namespace:
        return await self._run(self.store.register, identity, layout, durability=durability, timeout_s=timeout_s)

    async def lookup(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> PrefixMatch:
        return await self._run(self.store.lookup, namespace_id, keys, timeout_s=timeout_s)

    async def reserve(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        *,
        parent: BlockKey | None = None,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> Reservation:
        return await self._run(self.store.reserve, namespace_id, keys, parent=parent, hints=hints, timeout_s=timeout_s)

    async def commit(
        self,
        reservation: Reservation,
        keys: Sequence[BlockKey] | None = None,
        *,
        durability: Durability | None = None,
        timeout_s: float | None = None,
    ) -> int:
        return await self._run(self.store.commit, reservation, keys, durability=durability, timeout_s=timeout_s)

    async def abort(
        self, reservation: Reservation, keys: Sequence[BlockKey] | None = None, *, timeout_s: float | None = None
    ) -> int:
        return await self._run(self.store.abort, reservation, keys, timeout_s=timeout_s)

    async def acquire(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, hints: Hints = NO_HINTS, timeout_s: float | None = None
    ) -> AsyncLease:
        lease = await self._run(self.store.acquire, namespace_id, keys, hints=hints, timeout_s=timeout_s)
        return AsyncLease(lease, self._threads)

    async def release(self, lease: AsyncLease) -> None:
        await self._run(self.store.release, lease.lease)

    async def prefetch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        return await self._run(self.store.prefetch, namespace_id, keys, timeout_s=timeout_s)

    async def put(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        sources: Sequence[memoryview],
        *,
        parent: BlockKey | None = None,
        durability: Durability | None = None,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> tuple[ReserveOutcome, ...]:
        return await self._run(
            self.store.put, namespace_id, keys, sources, parent=parent, durability=durability, hints=hints, timeout_s=timeout_s
        )

    async def get(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        targets: Sequence[memoryview],
        *,
        hints: Hints = NO_HINTS,
        timeout_s: float | None = None,
    ) -> int:
        return await self._run(self.store.get, namespace_id, keys, targets, hints=hints, timeout_s=timeout_s)

    async def advise(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], hints: Hints, *, timeout_s: float | None = None
    ) -> int:
        return await self._run(self.store.advise, namespace_id, keys, hints, timeout_s=timeout_s)

    async def delete(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, timeout_s: float | None = None) -> int:
        return await self._run(self.store.delete, namespace_id, keys, timeout_s=timeout_s)

    async def clear(self, namespace_id: NamespaceId, *, timeout_s: float | None = None) -> int:
        return await self._run(self.store.clear, namespace_id, timeout_s=timeout_s)

    async def stats(self, *, timeout_s: float | None = None) -> StoreStats:
        return await self._run(self.store.stats, timeout_s=timeout_s)

    async def flush(self, *, timeout_s: float | None = None) -> int:
        return await self._run(self.store.flush, timeout_s=timeout_s)

    async def close(self) -> None:
        """Closes the store too. May be called twice."""
        await asyncio.to_thread(self.store.close)
        self._threads.shutdown(wait=False)
