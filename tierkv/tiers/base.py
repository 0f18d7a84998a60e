"""What every tier that holds whole blocks is, and what a framer is. Tiers move opaque bytes; they know no codec and no policy.

`Tier` is the copying interface that the mover uses for every hop; the host tier has in-place access beside it (`tiers/arena`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias

from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import BlockRecord, TierName

Buffer: TypeAlias = memoryview
"""A contiguous one-dimensional memoryview of bytes, borrowed for the duration of the call."""


class PutOutcome(StrEnum):
    STORED = "stored"
    ALREADY = "already"
    """The tier holds this key; the bytes were not touched."""
    NO_SPACE = "no_space"
    """The tier, or the medium under it, has no room; nothing was stored for this key."""


class GetOutcome(StrEnum):
    HIT = "hit"
    MISS = "miss"
    DAMAGED = "damaged"
    """The copy could not be believed or read. It is quarantined and not served again; the target's content is undefined."""


class Framer(Protocol):
    """Makes and checks the fixed-size header that stands before a payload at rest (`tierkv.codecs.frame`)."""

    header_bytes: int

    def seal(self, record: BlockRecord) -> bytes:
        """The header of `record`, `header_bytes` long."""
        ...

    def open(self, header: Buffer) -> BlockRecord:
        """The record of a header. Raises DataError for a wrong magic, version, length or header checksum."""
        ...

    def check(self, record: BlockRecord, header: Buffer, payload: Buffer) -> None:
        """Raises DataError unless `header` is that of `record` and `payload` has its checksum. `payload` has exact length."""
        ...


class Tier(Protocol):
    """A tier that holds blocks by key.

    The caller guarantees:
    1. Payload and target buffers have exactly `record.payload_bytes` bytes and stay unchanged (put) or unshared (get) until return.
    2. It makes room with `delete` before `put`; a tier never evicts on its own.

    The implementation must:
    1. Return from `put` only when a persistent tier would show the stored blocks again after a crash (payload, sync, index commit).
    2. Answer HIT only for bytes that are exactly those put under the key; a damaged copy is DAMAGED once and MISS afterwards.
    3. Answer in the order of the request, one outcome a key.
    4. Reuse the place of a deleted block only after its disappearance is as durable as its presence was.
    5. Never hold more than `capacity_bytes`; answer NO_SPACE instead of raising when the medium is full.
    6. Allow calls from several threads.
    """

    name: TierName
    capacity_bytes: int

    @property
    def used_bytes(self) -> int:
        """Bytes taken on the medium, headers and padding included."""
        ...

    def footprint_bytes(self, payload_bytes: int) -> int:
        """Bytes that one payload takes here, headers and padding included."""
        ...

    @property
    def degraded(self) -> str | None:
        """A sentence on what does not work now (medium full, failing); None: all is well."""
        ...

    def __contains__(self, key: BlockKey) -> bool: ...

    def __len__(self) -> int: ...

    def record(self, key: BlockKey) -> BlockRecord | None:
        """The record held under `key`, None where there is none."""
        ...

    def records(self) -> Iterator[BlockRecord]:
        """Every record held, oldest generation first; used once, at start."""
        ...

    def put(self, items: Sequence[tuple[BlockRecord, Buffer]]) -> list[PutOutcome]:
        """Stores payloads. Blocks until done."""
        ...

    def get(self, keys: Sequence[BlockKey], targets: Sequence[Buffer]) -> list[GetOutcome]:
        """Reads payloads into `targets`, verified. Blocks until done."""
        ...

    def delete(self, keys: Iterable[BlockKey]) -> int:
        """Forgets blocks; returns how many were held."""
        ...

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold (free + used = total, no overlap, index = extents)."""
        ...

    def close(self) -> None:
        """Releases files and maps; may be called twice."""
        ...


class PoolMemory(Protocol):
    """The memory of one device, for pages: raw bytes, no books (those are `tierkv.placement.page_books`). Safe to call from several threads.

    The caller guarantees that what it writes is read by nobody at the same time, and the other way round.
    """

    device: str
    memory_bytes: int
    fd: int | None
    """What another process maps it from, owned by the memory; None where it is mapped another way."""
    degraded: str | None
    """A sentence on what does not work now; None: all is well."""

    def ipc_handle(self) -> bytes:
        """What another process maps a CUDA device's memory from; empty elsewhere."""
        ...

    def view(self, offset: int, length: int) -> memoryview | None:
        """A range as this process sees it, writable; None where the processor cannot."""
        ...

    def back(self, offset: int, length: int) -> bool:
        """Sees to memory behind a range before anybody touches it; False where there is none to be had."""
        ...

    def read(self, offset: int, target: Buffer) -> None:
        """Copies `len(target)` bytes from `offset` on into host memory. Blocks; holds no interpreter lock meanwhile."""
        ...

    def write(self, offset: int, source: Buffer) -> None:
        """Copies `source` to `offset`. Blocks; holds no interpreter lock meanwhile."""
        ...

    def pin_host(self, arena: memoryview) -> None:
        """Says which host memory the copies come from and go to: it is pinned by `prefault` where that makes them quicker. Borrowed until
        `close`.
        """
        ...

    def prefault(self, should_stop: Callable[[], bool]) -> None:
        """Puts memory behind all of it, low to high; for a thread of its own."""
        ...

    def close(self) -> None:
        """Lets go of it; who has mapped it keeps it. May be called twice."""
        ...
