"""Where traces come from: the small one of the repository, and real ones where TIERKV_TRACES names their folder."""

import os
from pathlib import Path

import pytest

from tierkv.simulator.trace import read_trace

CHAT_TRACE = Path(__file__).parents[2] / "data" / "chat_trace.jsonl"


@pytest.fixture(scope="session")
def chat_trace():
    return read_trace(CHAT_TRACE)


@pytest.fixture(scope="session")
def real_trace():
    """Reads a real trace by name, once; skips the test where there is none."""
    folder, read = os.environ.get("TIERKV_TRACES"), {}
    if not folder:
        pytest.skip("TIERKV_TRACES names no folder of real traces")

    def by_name(name):
        if name not in read:
            read.clear()  # one at a time: they are large
            read[name] = read_trace(Path(folder) / f"{name}.jsonl.xz")
        return read[name]

    return by_name
