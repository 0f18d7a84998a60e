"""The contract suite of page stores on a daemon's clients."""

import contextlib

import pytest

from tierkv.client import connect
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv.testing.page_suite import BLOCK_BYTES, PageContract, PageRig

POOL_BYTES = 64 * BLOCK_BYTES


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    root = tmp_path_factory.mktemp("daemon")
    options = DaemonOptions(
        data=root / "data",
        run_dir=root / "run",
        host_memory="16MiB",
        disk="64MiB",
        arena_folder=root / "arena",
        extra=("--device", f"cpu:{POOL_BYTES}"),
    )
    with start_daemon(options, log=root / "log") as running:
        yield running


class TestClient(PageContract):
    @pytest.fixture
    def rig(self, daemon):
        with contextlib.closing(connect(daemon.options.run_dir)) as store:
            yield PageRig(store, another=lambda: connect(daemon.options.run_dir), blocks=store)
