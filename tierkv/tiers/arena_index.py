"""The arena's index: an LMDB environment in the same tmpfs folder, so that RAM content survives the process (not a reboot).

It is never synced: tmpfs keeps what was written through kill -9. It is written by one thread. What it says is a claim; checksums
decide what is believed (`docs/format.md`, "Arena and arena index").
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import lmdb

from tierkv.errors import DataError
from tierkv.model.outcomes import Extent
from tierkv.tiers.extents import ALIGNMENT_BYTES
from tierkv.tiers.records import Placed, RecordReader, pack_record, resolve_overlaps

ARENA_INDEX_VERSION = 1
_FOLDER = "index"
_MIN_MAP_BYTES = 16 << 20
_BYTES_PER_RECORD = 512
_log = logging.getLogger(__name__)


class ArenaIndex:
    """Records of the blocks in the arena.

    folder — the arena's; store_id — 16 bytes of the data folder it belongs to; arena_bytes — its length. An index that belongs to
    something else, has another version or is damaged is started anew.
    """

    def __init__(self, folder: Path, *, store_id: bytes, arena_bytes: int) -> None:
        self._path = folder / _FOLDER
        self._map_bytes = max(_MIN_MAP_BYTES, arena_bytes // ALIGNMENT_BYTES * _BYTES_PER_RECORD)
        self._meta = {
            b"format": ARENA_INDEX_VERSION.to_bytes(4, "little"),
            b"store": store_id,
            b"arena_bytes": arena_bytes.to_bytes(8, "little"),
        }
        try:
            self._open()
            found = self._read_meta()
        except lmdb.Error as error:
            _log.warning("the arena index is damaged and starts anew: %s", error)
            found = {b"damaged": b""}
            self._env = None
        if found != self._meta:
            self._start_anew()

    def _open(self) -> None:
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._env: lmdb.Environment | None = lmdb.open(
            str(self._path), map_size=self._map_bytes, max_dbs=2, sync=False, metasync=False, mode=0o600, max_readers=64
        )
        self._blocks = self._env.open_db(b"blocks")
        self._meta_db = self._env.open_db(b"meta")

    def _environment(self) -> lmdb.Environment:
        assert self._env is not None
        return self._env

    def _read_meta(self) -> dict[bytes, bytes]:
        with self._environment().begin(db=self._meta_db) as txn:
            return {bytes(name): bytes(value) for name, value in txn.cursor()}

    def _start_anew(self) -> None:
        if self._env is not None:
            self._env.close()
        shutil.rmtree(self._path, ignore_errors=True)
        self._open()
        with self._environment().begin(write=True, db=self._meta_db) as txn:
            for name, value in self._meta.items():
                txn.put(name, value)

    def load(self, fits: Callable[[Extent], bool]) -> list[Placed]:
        """Every record whose place `fits` and that no later one claims, oldest generation first; the others are forgotten."""
        reader = RecordReader()
        placed: list[Placed] = []
        with self._environment().begin(db=self._blocks) as txn:
            for key, value in txn.cursor():
                try:
                    placed.append(reader.unpack(bytes(key), bytes(value)))
                except DataError:
                    _log.warning("a damaged record of the arena index is dropped")
        _, dropped = resolve_overlaps(((record.key, extent, record.generation) for record, extent in placed), fits)
        gone = set(dropped)
        self.update([], gone)
        kept = [item for item in placed if item[0].key not in gone]
        kept.sort(key=lambda item: item[0].generation)
        return kept

    def update(self, puts: Sequence[Placed], forgets: Iterable[bytes]) -> None:
        """Writes and forgets records in one transaction."""
        with self._environment().begin(write=True, db=self._blocks) as txn:
            for key in forgets:
                txn.delete(key)
            for record, extent in puts:
                txn.put(record.key, pack_record(record, extent))

    def clear(self) -> None:
        """Forgets everything."""
        with self._environment().begin(write=True) as txn:
            txn.drop(self._blocks, delete=False)

    def close(self) -> None:
        """May be called twice."""
        if self._env is not None:
            self._env.close()
            self._env = None
