"""Stores written by earlier versions stay readable. A failure here means that old data would be lost: move the version instead."""

import shutil
from pathlib import Path

import pytest

from tests.golden.make_store import IDENTITY, KEYS, LAYOUT, content_of, settings_of
from tierkv.assemble import open_tiered_store, verify_folder
from tierkv.clock import SystemClock
from tierkv.embedded import EmbeddedStore
from tierkv.model.outcomes import Durability

STORES = sorted(Path(__file__).parent.glob("store_v*"))


@pytest.fixture(params=STORES, ids=lambda folder: folder.name)
def old_folder(request, tmp_path):
    shutil.copytree(request.param, tmp_path / "data")
    return tmp_path / "data"


def test_there_is_a_stored_example():
    assert STORES


def test_every_block_of_an_old_store_is_read_byte_for_byte(old_folder):
    store = EmbeddedStore(open_tiered_store(settings_of(old_folder), SystemClock()), clock=SystemClock(), discard_arena=True)
    namespace = store.tiered.namespace(IDENTITY.fingerprint(LAYOUT))
    assert (namespace.identity, namespace.layout, namespace.durability) == (IDENTITY, LAYOUT, Durability.STRICT)
    lease = store.acquire(namespace.namespace_id, KEYS)
    assert [bytes(block) for block in lease.blocks()] == [content_of(key) for key in KEYS]
    store.close()


def test_an_old_store_passes_the_scrub(old_folder):
    report = verify_folder(old_folder, lambda *_: None)
    assert (report.frames, report.damaged) == (len(KEYS), ())
