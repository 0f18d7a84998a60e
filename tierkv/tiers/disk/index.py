"""The disk's index: an LMDB environment that says which block lies where. Every change is one synced transaction.

LMDB has no checksums: what it says is a claim that the frame confirms. Layout: `docs/format.md`, "Disk index". Any method may raise
`lmdb.Error` (the disk is full or fails); nothing has changed then, and `DiskTier` says what that means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lmdb

from tierkv.errors import DataError
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import Extent
from tierkv.tiers.environment import open_environment
from tierkv.tiers.extents import ALIGNMENT_BYTES
from tierkv.tiers.records import RECORD_BYTES, Placed, RecordReader, collector_paused, pack_record, unpack_place

DISK_INDEX_VERSION = 1
_MIN_MAP_BYTES = 64 << 20
_BYTES_PER_RECORD = 640
"""Room in the map for one record, with LMDB's page overhead and copy-on-write; the file grows only as it is used."""
_SMALLEST_FRAME_BYTES = 8192
_KEY_BYTES = 32
Commit = Callable[[Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A copy that could not be believed: where it lies and why."""

    number: int
    placed: Placed
    problem: str


class DiskIndex:
    """commit — runs the commit of a transaction (`SegmentIO.commit`).

    Raises DataError for an environment of a newer format or one that cannot be read.
    """

    def __init__(self, path: Path, *, capacity_bytes: int, segment_bytes: int, commit: Commit) -> None:
        map_bytes = max(_MIN_MAP_BYTES, capacity_bytes // _SMALLEST_FRAME_BYTES * _BYTES_PER_RECORD)
        self._env, (self._blocks, self._namespaces, self._quarantine, self._meta) = open_environment(
            path, [b"blocks", b"namespaces", b"quarantine", b"meta"], map_bytes=map_bytes, is_durable=True
        )
        self._commit = commit
        self._reader = RecordReader()
        self._is_closed = False
        try:
            self.segment_bytes = self._check_meta(segment_bytes)
        except BaseException:
            self.close()
            raise

    @classmethod
    def extent_of_data(cls, path: Path) -> int:
        """The capacity that every record of an existing index fits in, in whole segments; at least one."""
        index = cls(path, capacity_bytes=0, segment_bytes=1, commit=lambda commit: commit())
        try:
            ends = [extent.end for _, extent, _ in index.places()]
            ends += [item.placed[1].end for item in index.quarantined()]
            return max(1, -(-max(ends, default=0) // index.segment_bytes)) * index.segment_bytes
        finally:
            index.close()

    def _check_meta(self, segment_bytes: int) -> int:
        """The segment size that the index was made with."""
        with self._env.begin(db=self._meta) as txn:
            version = txn.get(b"format")
            stored = txn.get(b"segment_bytes")
        if version is None:
            with self._write(self._meta) as txn:
                txn.put(b"format", DISK_INDEX_VERSION.to_bytes(4, "little"))
                txn.put(b"segment_bytes", segment_bytes.to_bytes(8, "little"))
            return segment_bytes
        if int.from_bytes(version, "little") > DISK_INDEX_VERSION:
            raise DataError("the disk index has a newer format; upgrade tierkv", version=int.from_bytes(version, "little"))
        found = int.from_bytes(stored or b"", "little")
        if found <= 0 or found % ALIGNMENT_BYTES:
            raise DataError("the disk index states an impossible segment size; delete it to start empty", segment_bytes=found)
        return found

    @contextmanager
    def _write(self, db: lmdb._Database) -> Iterator[lmdb.Transaction]:
        """One transaction, durable when the block ends; nothing of it remains when it ends with an error."""
        txn = self._env.begin(write=True, db=db)
        try:
            yield txn
            self._commit(txn.commit)
        except BaseException:
            txn.abort()
            raise

    # -- blocks

    def __len__(self) -> int:
        if self._is_closed:
            return 0
        with self._env.begin(db=self._blocks) as txn:
            return int(txn.stat(self._blocks)["entries"])

    def get(self, keys: Sequence[BlockKey]) -> list[Placed | None]:
        """Records of keys, None where there is none or it cannot be read. One read transaction."""
        with self._env.begin(db=self._blocks) as txn:
            values = [txn.get(key) for key in keys]
        return [None if value is None else self._unpack(key, value) for key, value in zip(keys, values, strict=True)]

    def _unpack(self, key: bytes, value: bytes) -> Placed | None:
        try:
            return self._reader.unpack(key, value)
        except DataError:
            return None

    def places(self) -> list[tuple[BlockKey, Extent, int]]:
        """(key, extent, generation) of every record; a record of the wrong length has an impossible extent."""
        rows: list[tuple[BlockKey, Extent, int]] = []
        with self._env.begin(db=self._blocks) as txn:
            for key, value in txn.cursor():
                extent, generation = unpack_place(value) if len(value) == RECORD_BYTES else (Extent(-1, 0), 0)
                rows.append((BlockKey(bytes(key)), extent, generation))
        return rows

    def all(self) -> list[Placed]:
        """Every record, oldest generation first. About 3 µs each."""
        with collector_paused(), self._env.begin(db=self._blocks) as txn:
            placed = [item for key, value in txn.cursor() if (item := self._unpack(bytes(key), bytes(value))) is not None]
        placed.sort(key=lambda item: item[0].generation)
        return placed

    def put(self, items: Sequence[Placed]) -> None:
        """Durable on return."""
        with self._write(self._blocks) as txn:
            for record, extent in items:
                txn.put(record.key, pack_record(record, extent))

    def delete(self, keys: Iterable[BlockKey]) -> list[Extent]:
        """Forgets keys, durably on return; the extents of those that were held, whichever of several callers took them."""
        with self._write(self._blocks) as txn:
            values = [txn.pop(key) for key in keys]
        return [unpack_place(bytes(value))[0] for value in values if value is not None and len(value) == RECORD_BYTES]

    # -- quarantine

    def quarantine(self, items: Sequence[tuple[Placed, str]], *, limit: int) -> list[Extent]:
        """Moves records that still stand as given out of `blocks`, in one durable transaction.

        The oldest entries beyond `limit` are forgotten; their extents are returned, to be freed.
        """
        with self._write(self._quarantine) as txn:
            with txn.cursor() as cursor:
                number = int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 0
            for (record, extent), problem in items:
                packed = pack_record(record, extent)
                if txn.get(record.key, db=self._blocks) != packed:
                    continue  # deleted, or moved here by another reader
                txn.delete(record.key, db=self._blocks)
                txn.put(number.to_bytes(8, "big"), record.key + packed + problem.encode()[:1024])
                number += 1
            surplus = int(txn.stat(self._quarantine)["entries"]) - limit
            return self._pop_oldest(txn, surplus)

    def forget_oldest_quarantined(self) -> list[Extent]:
        """The extent of the oldest entry, which is forgotten durably; empty when there is none."""
        with self._write(self._quarantine) as txn:
            return self._pop_oldest(txn, 1)

    def _pop_oldest(self, txn: lmdb.Transaction, count: int) -> list[Extent]:
        extents: list[Extent] = []
        with txn.cursor(self._quarantine) as cursor:
            for _ in range(count):
                if not cursor.first():
                    break
                value = bytes(cursor.value())
                extents.append(unpack_place(value[_KEY_BYTES : _KEY_BYTES + RECORD_BYTES])[0])
                cursor.delete()
        return extents

    def quarantined(self) -> list[Quarantined]:
        """Oldest first; what cannot be read is left out."""
        with self._env.begin(db=self._quarantine) as txn:
            rows = [(int.from_bytes(key, "big"), bytes(value)) for key, value in txn.cursor()]
        found: list[Quarantined] = []
        for number, value in rows:
            placed = self._unpack(value[:_KEY_BYTES], value[_KEY_BYTES : _KEY_BYTES + RECORD_BYTES])
            if placed is not None:
                found.append(Quarantined(number, placed, value[_KEY_BYTES + RECORD_BYTES :].decode("utf-8", "replace")))
        return found

    def quarantine_numbers(self) -> list[int]:
        """The number of every entry, readable or not."""
        with self._env.begin(db=self._quarantine) as txn:
            return [int.from_bytes(key, "big") for key in txn.cursor().iternext(values=False)]

    def forget_quarantined(self, numbers: Iterable[int]) -> None:
        """Durable on return."""
        with self._write(self._quarantine) as txn:
            for number in numbers:
                txn.delete(number.to_bytes(8, "big"))

    # -- namespaces

    def put_namespace(self, namespace_id: NamespaceId, canonical: bytes, durability: str) -> None:
        """Durable on return. canonical — the identity's canonical JSON."""
        value = json.dumps({"durability": durability, "identity": json.loads(canonical)}).encode()
        with self._write(self._namespaces) as txn:
            txn.put(namespace_id, value)

    def namespaces(self) -> list[tuple[NamespaceId, bytes, str]]:
        """(id, canonical identity, durability). Raises DataError for a row that is no such thing."""
        with self._env.begin(db=self._namespaces) as txn:
            rows = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
        try:
            return [_namespace_row(key, value) for key, value in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError("a stored namespace cannot be read") from error

    def close(self) -> None:
        """May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._env.close()


def _namespace_row(key: bytes, value: bytes) -> tuple[NamespaceId, bytes, str]:
    row = json.loads(value)
    canonical = json.dumps(row["identity"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return NamespaceId(key), canonical, str(row["durability"])
