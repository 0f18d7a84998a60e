"""The arena's index: an LMDB environment in the same tmpfs folder, so that RAM content survives the process (not a reboot).

It is never synced: tmpfs keeps what was written through kill -9. What it says is a claim; checksums decide what is believed
(`docs/format.md`, "Arena and arena index"). It may know less than the arena holds, never anything that was forgotten: where a change
cannot be written, everything in it goes.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb

from tierkv.errors import DataError
from tierkv.model.outcomes import Extent
from tierkv.tiers.environment import open_environment
from tierkv.tiers.extents import ALIGNMENT_BYTES, round_up
from tierkv.tiers.records import Placed, RecordReader, collector_paused, pack_record, resolve_overlaps

ARENA_INDEX_VERSION = 1
_FOLDER = "index"
_MIN_MAP_BYTES = 16 << 20
_BYTES_PER_RECORD = 512
_log = logging.getLogger(__name__)


class ArenaIndex:
    """Records of the blocks in the arena.

    folder — the arena's; store_id — 16 bytes of the data folder it belongs to; arena_bytes — its length. An index that belongs to
    something else, has another version or is damaged is started anew, and the log says why. Raises DataError where none can be made.
    """

    def __init__(self, folder: Path, *, store_id: bytes, arena_bytes: int) -> None:
        self._path = folder / _FOLDER
        self._map_bytes = max(_MIN_MAP_BYTES, arena_bytes // ALIGNMENT_BYTES * _BYTES_PER_RECORD)
        self._meta = {
            b"format": ARENA_INDEX_VERSION.to_bytes(4, "little"),
            b"store": store_id,
            b"arena_bytes": arena_bytes.to_bytes(8, "little"),
        }
        self._env: lmdb.Environment | None = None
        self.degraded: str | None = None
        try:
            self._open()
            reason = self._mismatch()
        except (DataError, lmdb.Error) as error:
            reason = str(error)
        if reason is not None:
            if reason:
                _log.warning("the arena index starts empty: %s", reason)
            self._start_anew()

    def _open(self) -> None:
        self._env, (self._blocks, self._meta_db) = open_environment(
            self._path, [b"blocks", b"meta"], map_bytes=self._map_bytes, is_durable=False
        )

    def _environment(self) -> lmdb.Environment:
        assert self._env is not None
        return self._env

    @contextmanager
    def _writing(self, db: lmdb._Database) -> Iterator[lmdb.Transaction]:
        """A transaction without which there is no index. Raises DataError."""
        try:
            with self._environment().begin(write=True, db=db) as txn:
                yield txn
        except lmdb.Error as error:
            raise DataError("the arena index cannot be written; its tmpfs is full", path=self._path, error=error) from error

    def _mismatch(self) -> str | None:
        """Why it cannot be used: None when it can, empty when it is new."""
        with self._environment().begin(db=self._meta_db) as txn:
            found = {bytes(name): bytes(value) for name, value in txn.cursor()}
        if not found:
            return ""
        wrong = sorted(name.decode() for name in self._meta if found.get(name) != self._meta[name])
        return f"another {', '.join(wrong)}" if wrong else None

    def _start_anew(self) -> None:
        self.close()
        shutil.rmtree(self._path, ignore_errors=True)
        self._open()
        with self._writing(self._meta_db) as txn:
            for name, value in self._meta.items():
                txn.put(name, value)

    def load(self, fits: Callable[[Extent], bool]) -> list[Placed]:
        """Every record whose place `fits` and that no later one claims, oldest generation first; the others are forgotten."""
        with collector_paused():
            return self._load(fits)

    def _load(self, fits: Callable[[Extent], bool]) -> list[Placed]:
        try:
            placed, unreadable = self._read_all()
        except lmdb.Error as error:
            _log.warning("the arena index starts empty: %s", error)
            self._start_anew()
            return []
        right = [item for item in placed if item[1].length == round_up(item[0].payload_bytes)]
        _, dropped = resolve_overlaps(((record.key, extent, record.generation) for record, extent in right), fits)
        kept = {record.key for record, _ in right}.difference(dropped)
        gone = [record.key for record, _ in placed if record.key not in kept] + unreadable
        if gone:
            _log.warning("%d records of the arena index cannot be right and are dropped", len(gone))
            self.update([], gone)
        return sorted((item for item in right if item[0].key in kept), key=lambda item: item[0].generation)

    def _read_all(self) -> tuple[list[Placed], list[bytes]]:
        reader = RecordReader()
        placed: list[Placed] = []
        unreadable: list[bytes] = []
        with self._environment().begin(db=self._blocks) as txn:
            for key, value in txn.cursor():
                try:
                    placed.append(reader.unpack(bytes(key), bytes(value)))
                except DataError:
                    unreadable.append(bytes(key))
        return placed, unreadable

    def keys(self) -> set[bytes]:
        """Every key it knows; for self-checks."""
        if self._env is None:
            return set()
        with self._env.begin(db=self._blocks) as txn:
            return {bytes(key) for key in txn.cursor().iternext(values=False)}

    def update(self, puts: Sequence[Placed], forgets: Iterable[bytes]) -> None:
        """Writes and forgets records in one transaction, at memory speed.

        Where it cannot (tmpfs full), the index empties itself rather than remember what was forgotten; `degraded` says so.
        """
        if self._env is None:
            return
        try:
            with self._env.begin(write=True, db=self._blocks) as txn:
                for key in forgets:
                    txn.delete(key)
                for record, extent in puts:
                    txn.put(record.key, pack_record(record, extent))
        except lmdb.Error as error:
            self.degraded = f"the arena index cannot be written ({error}); a restart begins with less in RAM"
            _log.warning("%s", self.degraded)
            self._empty()

    def _empty(self) -> None:
        try:
            self._start_anew()
        except (DataError, lmdb.Error, OSError):
            self.close()
            shutil.rmtree(self._path, ignore_errors=True)

    def clear(self) -> None:
        """Forgets everything. Raises DataError where that cannot be written."""
        with self._writing(self._blocks) as txn:
            txn.drop(self._blocks, delete=False)

    def close(self) -> None:
        """May be called twice."""
        if self._env is not None:
            self._env.close()
            self._env = None
