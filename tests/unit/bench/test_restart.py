"""Resident pages are told apart by the file they map."""

from pathlib import Path

import pytest

from tierkv.errors import InvalidRequestError
from tierkv_bench import restart

SMAPS = """\
55e0a0000000-55e0a0200000 r-xp 00001000 08:01 1311 /usr/bin/python3.11
Size:               2048 kB
Rss:                1000 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0010000000 rw-s 00000000 00:1a 42 /dev/shm/bench x/arena
Size:             262144 kB
Rss:              262144 kB
7f0020000000-7f0020100000 rw-s 00000000 00:1a 43 /dev/shm/bench x/index/data.mdb
Rss:                  64 kB
7f0030000000-7f0030100000 rw-p 00000000 00:00 0
Rss:                 500 kB
7f0040000000-7f0050000000 rw-s 00000000 00:1a 42 /dev/shm/bench x/arena (deleted)
Rss:                   4 kB
"""


def test_only_maps_of_the_arena_are_left_out():
    rss = restart.resident_bytes(SMAPS.splitlines(), Path("/dev/shm/bench x/arena"))
    assert rss == restart.ResidentBytes(arena_bytes=262_148 * 1024, beside_bytes=1_564 * 1024)


def test_this_process_has_memory_beside_an_arena_it_does_not_map():
    rss = restart.resident_bytes(Path("/proc/self/smaps").read_text().splitlines(), Path("/nowhere/arena"))
    assert rss.arena_bytes == 0
    assert rss.beside_bytes > 1 << 20


@pytest.mark.parametrize(("blocks", "block_bytes"), [(1, 2048), (1000, 1 << 20)])
def test_sizes_that_cannot_be_measured_are_refused(blocks, block_bytes):
    with pytest.raises(InvalidRequestError, match="restart benchmark"):
        restart.measure(blocks=blocks, block_bytes=block_bytes, say=lambda _: None)
