"""The contract suite of page stores, on the store in this process and on the engine's private pages."""

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.embedded import EmbeddedStore
from tierkv.pages import PageStore
from tierkv.paging.private_pages import PrivatePages
from tierkv.settings import MIB, DeviceSettings, DiskSettings, HostSettings, PolicyName, StoreSettings
from tierkv.testing.page_suite import BLOCK_BYTES, PageContract, PageRig


def as_page_store(store: EmbeddedStore) -> PageStore:
    """Fails the type check when the two part."""
    return store


class Another(EmbeddedStore):
    """A second session on a store that another handle owns."""

    def close(self):
        self._housekeeper.stop()
        self.tiered.close_session(self._session)
        self.tiered.end_pages(self._session)


@pytest.mark.parametrize("policy", [PolicyName.ARC, PolicyName.LRU], scope="class")
class TestEmbedded(PageContract):
    @pytest.fixture
    def rig(self, tmp_path, policy):
        settings = StoreSettings(
            data_folder=tmp_path / "data",
            host=HostSettings(memory_bytes=2 * MIB, folder=tmp_path / "arena", prefault=False),
            disk=DiskSettings(capacity_bytes=8 * MIB, segment_bytes=MIB, interval_s=0.0),
            devices=(DeviceSettings("cpu", 64 * BLOCK_BYTES),),
            policy=policy,
        )
        clock = SystemClock()
        tiered = open_tiered_store(settings, clock)
        store = EmbeddedStore(tiered, clock=clock, discard_arena=True)
        another = lambda: Another(tiered, clock=clock, discard_arena=False)  # noqa: E731
        yield PageRig(as_page_store(store), another=another, blocks=store)
        tiered.check_integrity()
        store.close()
        assert not tiered.has_pages(store._session)


class TestPrivate(PageContract):
    @pytest.fixture
    def rig(self):
        store = PrivatePages(64 * BLOCK_BYTES)
        yield PageRig(store)
        store.check_integrity()
        store.close()
