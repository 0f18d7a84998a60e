"""The host tier: blocks in the arena, with in-place access for the store and the copying interface of every tier.

In place (the store's path): `reserve` extents, fill them, `adopt` them into the index; `forget` and `release_extents` when they go.
The two are separate on purpose: an extent may outlive its block while somebody still looks at it.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import BlockRecord, Extent, TierName
from tierkv.tiers.arena import Arena
from tierkv.tiers.arena_index import ArenaIndex
from tierkv.tiers.base import Buffer, GetOutcome, PutOutcome
from tierkv.tiers.extents import round_up
from tierkv.tiers.lock import FolderLock
from tierkv.tiers.records import Placed, collector_paused


class HostTier:
    """Blocks in RAM that outlives the process.

    folder — in tmpfs, private to this store; store_id — 16 bytes that tell stores apart; checksum — XXH3-128 of a buffer.
    Raises ConflictError when another process holds the folder, InvalidRequestError when it cannot be made.
    """

    name = TierName.HOST

    def __init__(self, folder: Path, memory_bytes: int, *, store_id: bytes, checksum: Callable[[memoryview], bytes]) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequestError("the arena's folder cannot be made", folder=folder, error=error.strerror) from error
        _check_private(folder)
        self._folder = folder
        self._checksum = checksum
        self._lock = threading.Lock()
        with ExitStack() as opened:
            self._folder_lock = FolderLock(folder)
            opened.callback(self._folder_lock.close)
            self._arena = Arena(folder, memory_bytes)
            opened.callback(self._arena.close)
            self._index = ArenaIndex(folder, store_id=store_id, arena_bytes=self._arena.size_bytes)
            opened.callback(self._index.close)
            if self._arena.is_new:
                self._index.clear()
            with collector_paused():
                if not self._arena.is_mapped_elsewhere():
                    self._arena.grants.clear(self._arena.grants.runs())
                recovered = self._index.load(self._can_be_believed)
                self._resting = self._arena.grants.runs()
                self._arena.claim([extent for _, extent in recovered] + self._resting)
                self._table: dict[BlockKey, Placed] = {placed[0].key: placed for placed in recovered}
            opened.pop_all()
        self.capacity_bytes = self._arena.size_bytes

    @property
    def used_bytes(self) -> int:
        return self._arena.used_bytes

    @property
    def degraded(self) -> str | None:
        return self._arena.degraded or self._index.degraded

    def footprint_bytes(self, payload_bytes: int) -> int:
        return round_up(payload_bytes)

    # -- in place

    @property
    def fd(self) -> int:
        """Descriptor of the arena file; owned by the tier."""
        return self._arena.fd

    @property
    def arena_bytes(self) -> int:
        return self._arena.size_bytes

    @property
    def prefaulted_bytes(self) -> int:
        return self._arena.prefaulted_bytes

    def prefault(self, should_stop: Callable[[], bool]) -> None:
        """See `Arena.prefault`."""
        self._arena.prefault(should_stop)

    def reserve(self, count: int, block_bytes: int) -> list[Extent]:
        """Up to `count` extents for blocks of `block_bytes`; fewer when room is short. Lengths are rounded up to 4 KiB."""
        return self._arena.reserve(count, block_bytes)

    def release_extents(self, extents: Sequence[Extent]) -> None:
        """Returns extents to the allocator; their blocks must have been forgotten, or be about to."""
        self._arena.release(extents)

    def grant(self, extents: Sequence[Extent]) -> None:
        """A client may write into these extents from now on; a restart will know it."""
        self._arena.grants.mark(extents)

    def settle(self, extents: Sequence[Extent]) -> None:
        """No client writes into these extents any more."""
        self._arena.grants.clear(extents)

    def release_resting(self, *, is_over: bool) -> None:
        """Takes back what clients of an earlier process may have been writing, once none of them maps the arena.

        is_over — they had time enough: it is taken back in any case.
        """
        if not self._resting or not (is_over or not self._arena.is_mapped_elsewhere()):
            return
        resting, self._resting = self._resting, []
        self._arena.grants.clear(resting)
        self._arena.release(resting)

    def _can_be_believed(self, extent: Extent) -> bool:
        """Whether a block may lie there: a client that still writes would change it after its checksum was seen."""
        return self._arena.fits(extent) and not self._arena.grants.touches(extent)

    def view(self, extent: Extent) -> memoryview:
        """The bytes of an extent, writable."""
        return self._arena.view(extent)

    def adopt(self, items: Sequence[Placed]) -> None:
        """Indexes blocks that lie in their extents already."""
        self.update(items, ())

    def forget(self, keys: Iterable[BlockKey]) -> None:
        """Takes blocks out of the index; their extents are not freed. Unknown keys are fine."""
        self.update((), keys)

    def update(self, items: Sequence[Placed], forgets: Iterable[BlockKey]) -> None:
        """`forget` and `adopt` in one transaction."""
        gone = list(forgets)
        if not items and not gone:
            return
        with self._lock:
            self._update(items, gone)

    def _update(self, items: Sequence[Placed], gone: Sequence[BlockKey]) -> None:
        # The index lies in memory, so the lock is held over it: two changes of one key must reach both in one order.
        self._index.update(items, gone)
        for key in gone:
            self._table.pop(key, None)
        for record, extent in items:
            self._table[record.key] = (record, extent)

    def recovered(self) -> list[Placed]:
        """What an earlier process left, oldest generation first; to be believed only after a look at the checksums."""
        with self._lock:
            return sorted(self._table.values(), key=lambda item: item[0].generation)

    # -- copying: the Tier protocol --------------------------------------------------------------------------------------

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._table

    def __len__(self) -> int:
        return len(self._table)

    def record(self, key: BlockKey) -> BlockRecord | None:
        placed = self._table.get(key)
        return None if placed is None else placed[0]

    def records(self) -> Iterator[BlockRecord]:
        return iter([record for record, _ in self.recovered()])

    def put(self, items: Sequence[tuple[BlockRecord, Buffer]]) -> list[PutOutcome]:
        return [self._put_one(record, payload) for record, payload in items]

    def _put_one(self, record: BlockRecord, payload: Buffer) -> PutOutcome:
        if record.key in self._table:
            return PutOutcome.ALREADY
        extents = self._arena.reserve(1, record.payload_bytes)
        if not extents:
            return PutOutcome.NO_SPACE
        self._arena.view(extents[0])[: record.payload_bytes] = payload
        with self._lock:
            is_first = record.key not in self._table  # another thread may have put it meanwhile
            if is_first:
                self._update([(record, extents[0])], ())
        if not is_first:
            self._arena.release(extents)
        return PutOutcome.STORED if is_first else PutOutcome.ALREADY

    def get(self, keys: Sequence[BlockKey], targets: Sequence[Buffer]) -> list[GetOutcome]:
        return [self._get_one(key, target) for key, target in zip(keys, targets, strict=True)]

    def _get_one(self, key: BlockKey, target: Buffer) -> GetOutcome:
        with self._lock:  # over the copy: nobody may delete the block and reuse its extent meanwhile
            placed = self._table.get(key)
            if placed is None:
                return GetOutcome.MISS
            record, extent = placed
            target[:] = self._arena.view(extent)[: record.payload_bytes]
        if self._checksum(target) == record.payload_checksum:
            return GetOutcome.HIT
        self._drop([key], only=placed)
        return GetOutcome.DAMAGED

    def delete(self, keys: Iterable[BlockKey]) -> int:
        return self._drop(keys)

    def _drop(self, keys: Iterable[BlockKey], only: Placed | None = None) -> int:
        """Forgets blocks and frees their extents. only — nothing happens unless this is what the key still stands for."""
        with self._lock:
            held = [self._table[key] for key in dict.fromkeys(keys) if key in self._table]
            gone = [placed for placed in held if only is None or placed is only]
            self._update((), [record.key for record, _ in gone])
        self._arena.release([extent for _, extent in gone])
        return len(gone)

    def check_integrity(self) -> None:
        """An extent of the table may be free for a moment: the store gives extents back before it forgets their blocks."""
        self._arena.check_integrity()
        with self._lock:
            assert self._index.keys() <= self._table.keys()
            assert all(self._arena.fits(extent) for _, extent in self._table.values())
            assert all(key == record.key for key, (record, _) in self._table.items())

    def close(self, *, discard: bool = False) -> None:
        """Lets go. discard — the content goes too; otherwise it waits for the next process. May be called twice."""
        self._index.close()
        self._arena.close(discard=discard)
        self._folder_lock.close()
        if discard:
            shutil.rmtree(self._folder, ignore_errors=True)


def _check_private(folder: Path) -> None:
    """Shared memory is everybody's place: a folder that a stranger made first under our name must not get our bytes."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise DataError("the arena's folder must be a folder of this user alone (mode 700)", folder=folder, owner=found.st_uid)
