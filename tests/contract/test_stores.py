"""The contract suite of stores, on the fake, on the store in this process, and on a daemon's clients with and without shared memory."""

import pytest

from tierkv.assemble import open_tiered_store
from tierkv.client import connect
from tierkv.embedded import EmbeddedStore
from tierkv.settings import MIB, DiskSettings, HostSettings, LimitSettings, PolicyName, StoreSettings
from tierkv.testing.clock import ManualClock
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv.testing.fake_store import FakeBlockStore
from tierkv.testing.store_suite import BLOCK_BYTES, StoreContract, StoreRig

HOST_BYTES = 64 * BLOCK_BYTES * 16


class TestFake(StoreContract):
    @pytest.fixture
    def rig(self):
        clock = ManualClock()
        store = FakeBlockStore(clock=clock)
        limits = LimitSettings()

        def expire():
            clock.advance(limits.lease_ttl_s + limits.reservation_ttl_s + 1)

        yield StoreRig(store, another=store.another, expire=expire, has_disk=False)
        store.close()


@pytest.mark.parametrize("policy", list(PolicyName), scope="class")
class TestEmbedded(StoreContract):
    @pytest.fixture
    def rig(self, tmp_path, policy):
        clock = ManualClock()
        settings = StoreSettings(
            data_folder=tmp_path / "data",
            host=HostSettings(memory_bytes=MIB, folder=tmp_path / "arena", prefault=False),
            disk=DiskSettings(capacity_bytes=8 * MIB, segment_bytes=MIB, interval_s=0.0),
            policy=policy,
        )
        tiered = open_tiered_store(settings, clock)
        store = EmbeddedStore(tiered, clock=clock, discard_arena=True)

        def expire():
            clock.advance(settings.limits.lease_ttl_s + 1)
            tiered.expire()
            clock.advance(settings.limits.reservation_ttl_s + 1)
            tiered.expire()

        yield StoreRig(store, expire=expire, room_blocks=MIB // BLOCK_BYTES)
        if not tiered._is_closed:
            tiered.check_integrity()
        store.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    root = tmp_path_factory.mktemp("daemon")
    options = DaemonOptions(
        data=root / "data",
        run_dir=root / "run",
        host_memory=str(HOST_BYTES),
        disk="64MiB",
        arena_folder=root / "arena",
        extra=("--listen", "127.0.0.1:0"),
    )
    with start_daemon(options, log=root / "log") as running:
        yield running


class TestClient(StoreContract):
    @pytest.fixture
    def rig(self, daemon):
        store = connect(daemon.options.run_dir)
        yield StoreRig(store, another=lambda: connect(daemon.options.run_dir), room_blocks=HOST_BYTES // BLOCK_BYTES)
        store.close()


class TestClientWithoutSharedMemory(StoreContract):
    @pytest.fixture
    def rig(self, daemon):
        address = next(event["listen"] for event in daemon.log_events() if event.get("event") == "ready")
        store = connect(address)
        yield StoreRig(store, another=lambda: connect(address), is_shared_memory=False)
        store.close()
