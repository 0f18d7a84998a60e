"""The daemon's parts in the test's own process."""

import os

import pytest

from tests.unit.tierkvd.daemon_rig import running
from tests.unit.tierkvd.fake_pages import FakePages


@pytest.fixture
async def rig(tmp_path):
    async with running(tmp_path) as parts:
        yield parts


@pytest.fixture
def pages(rig):
    """The page verbs of the rig's store, faked."""
    fake = FakePages(rig.store)
    yield fake
    os.close(fake.memory)
