"""The daemon's parts in the test's own process."""

import pytest

from tests.unit.tierkvd.daemon_rig import running


@pytest.fixture
async def rig(tmp_path):
    async with running(tmp_path) as parts:
        yield parts
