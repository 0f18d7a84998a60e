"""Starting on a disk whose index or folder is not as it was left."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from tierkv.assemble import open_tiered_store
from tierkv.embedded import EmbeddedStore
from tierkv.errors import DataError, InvalidRequestError
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import ReserveOutcome
from tierkv.settings import MIB, DiskSettings, HostSettings, StoreSettings
from tierkv.testing.clock import ManualClock

IDENTITY = Identity(weights="w")
LAYOUT = Layout((4096,), "uint8", 1)
KEYS = chain_keys(IDENTITY.fingerprint(LAYOUT), range(4), block_tokens=1)
PAGE = 4096


def _open(folder: Path) -> EmbeddedStore:
    settings = StoreSettings(
        data_folder=folder / "data",
        host=HostSettings(MIB, folder=folder / "arena", prefault=False),
        disk=DiskSettings(MIB, segment_bytes=MIB, direct_io=False, interval_s=0.0),
    )
    clock = ManualClock()
    return EmbeddedStore(open_tiered_store(settings, clock), clock=clock, discard_arena=True)


def _save(folder: Path) -> None:
    with _open(folder) as store:
        namespace = store.register(IDENTITY, LAYOUT)
        store.put(namespace.namespace_id, KEYS, [memoryview(key * 128) for key in KEYS])


def test_blocks_of_a_namespace_that_the_index_does_not_know_can_be_saved_again(tmp_path: Path) -> None:
    _save(tmp_path)
    with lmdb.open(str(tmp_path / "data" / "index"), max_dbs=4) as environment, environment.begin(write=True) as txn:
        txn.drop(environment.open_db(b"namespaces", txn=txn), delete=False)

    with _open(tmp_path) as store:
        namespace_id = store.register(IDENTITY, LAYOUT).namespace_id
        assert store.lookup(namespace_id, KEYS).num_blocks == 0
        outcomes = store.put(namespace_id, KEYS, [memoryview(key * 128) for key in KEYS])
        assert set(outcomes) == {ReserveOutcome.GRANTED}


def test_a_damaged_index_is_an_error_that_names_it(tmp_path: Path) -> None:
    _save(tmp_path)
    path = tmp_path / "data" / "index" / "data.mdb"
    content = bytearray(path.read_bytes())
    for start in range(2 * PAGE, len(content), PAGE):  # behind the two meta pages
        content[start + 10 : start + 12] = b"\0\0"  # what kind of page it is
    path.write_bytes(content)
    with pytest.raises(DataError, match="index"):
        _open(tmp_path)


def test_a_folder_that_the_system_refuses_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "LOCK").mkdir()
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        _open(tmp_path)
