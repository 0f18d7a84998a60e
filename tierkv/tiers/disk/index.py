"""The disk's index: an LMDB environment that says which block lies where. Every change is one synced transaction.

LMDB has no checksums: what it says is a claim that the frame confirms. Layout: `docs/format.md`, "Disk index".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from tierkv.errors import DataError
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import Extent
from tierkv.tiers.records import RECORD_BYTES, Placed, RecordReader, pack_record, unpack_place

DISK_INDEX_VERSION = 1
_MIN_MAP_BYTES = 64 << 20
_BYTES_PER_RECORD = 640
"""Room in the map for one record, with LMDB's page overhead and copy-on-write; the file grows only as it is used."""
_SMALLEST_FRAME_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A copy that could not be believed: where it lies and why."""

    number: int
    placed: Placed
    problem: str


class DiskIndex:
    """Raises DataError for an environment of a newer format or one that LMDB cannot open."""

    def __init__(self, path: Path, *, capacity_bytes: int, segment_bytes: int) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        map_bytes = max(_MIN_MAP_BYTES, capacity_bytes // _SMALLEST_FRAME_BYTES * _BYTES_PER_RECORD)
        try:
            self._env = lmdb.open(str(path), map_size=map_bytes, max_dbs=4, mode=0o600, max_readers=64)
            self._blocks = self._env.open_db(b"blocks")
            self._namespaces = self._env.open_db(b"namespaces")
            self._quarantine = self._env.open_db(b"quarantine", integerkey=False)
            self._meta = self._env.open_db(b"meta")
        except lmdb.Error as error:
            raise DataError("the disk index cannot be opened; delete it to start empty", path=path, error=error) from error
        self._reader = RecordReader()
        self._is_closed = False
        self.segment_bytes = self._check_meta(segment_bytes)

    def _check_meta(self, segment_bytes: int) -> int:
        """The segment size that the index was made with."""
        with self._env.begin(write=True, db=self._meta) as txn:
            version = txn.get(b"format")
            if version is None:
                txn.put(b"format", DISK_INDEX_VERSION.to_bytes(4, "little"))
                txn.put(b"segment_bytes", segment_bytes.to_bytes(8, "little"))
                return segment_bytes
            if int.from_bytes(version, "little") > DISK_INDEX_VERSION:
                raise DataError("the disk index has a newer format", version=int.from_bytes(version, "little"))
            return int.from_bytes(txn.get(b"segment_bytes", b""), "little")

    def __len__(self) -> int:
        if self._is_closed:
            return 0
        with self._env.begin(db=self._blocks) as txn:
            return int(txn.stat(self._blocks)["entries"])

    def get(self, keys: Sequence[BlockKey]) -> list[Placed | None]:
        """Records of keys, None where there is none or it cannot be read. One read transaction."""
        found: list[Placed | None] = []
        with self._env.begin(db=self._blocks) as txn:
            for key in keys:
                value = txn.get(key)
                found.append(self._unpack(key, value) if value is not None else None)
        return found

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
        with self._env.begin(db=self._blocks) as txn:
            placed = [item for key, value in txn.cursor() if (item := self._unpack(bytes(key), bytes(value))) is not None]
        placed.sort(key=lambda item: item[0].generation)
        return placed

    def put(self, items: Sequence[Placed]) -> None:
        """Durable on return."""
        with self._env.begin(write=True, db=self._blocks) as txn:
            for record, extent in items:
                txn.put(record.key, pack_record(record, extent))

    def delete(self, keys: Iterable[BlockKey]) -> None:
        """Durable on return."""
        with self._env.begin(write=True, db=self._blocks) as txn:
            for key in keys:
                txn.delete(key)

    # -- quarantine ------------------------------------------------------------------------------------------------------

    def quarantine(self, items: Sequence[tuple[Placed, str]]) -> None:
        """Moves records out of `blocks`, in one transaction."""
        with self._env.begin(write=True) as txn:
            with txn.cursor(self._quarantine) as cursor:
                number = int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 0
            for (record, extent), problem in items:
                txn.delete(record.key, db=self._blocks)
                value = record.key + pack_record(record, extent) + problem.encode()
                txn.put(number.to_bytes(8, "big"), value, db=self._quarantine)
                number += 1

    def quarantined(self) -> Iterator[Quarantined]:
        """Oldest first."""
        with self._env.begin(db=self._quarantine) as txn:
            rows = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
        for number, value in rows:
            placed = self._unpack(value[:32], value[32 : 32 + RECORD_BYTES])
            if placed is not None:
                problem = value[32 + RECORD_BYTES :].decode("utf-8", "replace")
                yield Quarantined(int.from_bytes(number, "big"), placed, problem)

    def forget_quarantined(self, numbers: Iterable[int]) -> None:
        with self._env.begin(write=True, db=self._quarantine) as txn:
            for number in numbers:
                txn.delete(number.to_bytes(8, "big"))

    # -- namespaces ------------------------------------------------------------------------------------------------------

    def put_namespace(self, namespace_id: NamespaceId, canonical: bytes, durability: str) -> None:
        """Durable on return. canonical — the identity's canonical JSON."""
        value = json.dumps({"durability": durability, "identity": json.loads(canonical)}).encode()
        with self._env.begin(write=True, db=self._namespaces) as txn:
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
