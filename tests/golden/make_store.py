"""Makes the stored example of this format version. Run it once per version, into a new folder; never over an old one.

python -m tests.golden.make_store tests/golden/store_v1
"""

import shutil
import sys
from pathlib import Path

from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.embedded import EmbeddedStore
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability
from tierkv.settings import KIB, MIB, DiskSettings, HostSettings, StoreSettings

LAYOUT = Layout(shape=(2, 2, 1, 4, 64), dtype="float16", block_tokens=4)
IDENTITY = Identity(weights="golden weights", config='{"rope_theta":10000.0}', kv_dtype="float16", tenant="golden")
KEYS = chain_keys(IDENTITY.fingerprint(LAYOUT), range(4 * 3), block_tokens=4)


def content_of(key):
    """The bytes under a key: the key, again and again, every second time with a zero in between so that it compresses."""
    pattern = key + bytes(len(key))
    return (pattern * (LAYOUT.block_bytes // len(pattern) + 1))[: LAYOUT.block_bytes]


def settings_of(folder, *, codec="identity"):
    return StoreSettings(
        data_folder=folder,
        host=HostSettings(memory_bytes=MIB, folder=folder / "arena", prefault=False),
        disk=DiskSettings(capacity_bytes=64 * KIB, segment_bytes=32 * KIB, direct_io=False, codec=codec),
    )


def make(folder):
    for codec, keys, parent in (("identity", KEYS[:2], None), ("planes+zstd", KEYS[2:], KEYS[1])):
        store = EmbeddedStore(
            open_tiered_store(settings_of(folder, codec=codec), SystemClock()), clock=SystemClock(), discard_arena=True
        )
        namespace = store.register(IDENTITY, LAYOUT, durability=Durability.STRICT)
        store.put(namespace.namespace_id, keys, [memoryview(content_of(key)) for key in keys], parent=parent)
        store.close()
    for leftover in ("LOCK", "index/lock.mdb"):
        (folder / leftover).unlink()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if target.exists():
        sys.exit(f"{target} exists; a stored example is never made again")
    make(target)
    shutil.rmtree(target / "arena", ignore_errors=True)
