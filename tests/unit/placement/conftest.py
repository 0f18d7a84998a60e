"""Books over a small real arena and a dictionary for a disk."""

import threading

import pytest

from tierkv.codecs.checksum import checksum
from tierkv.index.block_index import BlockIndex
from tierkv.index.trail import Trail
from tierkv.model.outcomes import TierName
from tierkv.placement.residency import Residency
from tierkv.policies import LruPolicy
from tierkv.testing.clock import ManualClock
from tierkv.tiers.host import HostTier
from tierkv.tiers.memory import MemoryTier

BLOCK_BYTES = 4096
ROOM_BLOCKS = 8


def use_host_policy(books, policy):
    """Another policy for a host tier that is empty."""
    assert len(books.host_policy) == 0
    books.host_policy = books._room._policy = policy


@pytest.fixture
def disk():
    return MemoryTier(64 * BLOCK_BYTES, checksum, name=TierName.DISK)


@pytest.fixture
def books(tmp_path, disk):
    host = HostTier(tmp_path / "arena", ROOM_BLOCKS * BLOCK_BYTES, store_id=bytes(16), checksum=checksum)
    index = BlockIndex(history_limit=16)
    yield Residency(
        index=index,
        host=host,
        host_policy=LruPolicy(ROOM_BLOCKS * BLOCK_BYTES, index.chains),
        disk=disk,
        disk_policy=LruPolicy(disk.capacity_bytes, index.chains),
        is_disk_writable=lambda: True,
        trail=Trail(events=64, keys=1024, clock=ManualClock(), lock=threading.RLock()),
    )
    host.close(discard=True)
