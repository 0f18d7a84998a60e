"""The disk reference moves every byte it claims, and leaves no file."""

import mmap

import pytest

from tierkv_bench.plain_files import CHUNK_BYTES, PlainFile, drop_cached

BLOCK_BYTES = 8 << 20
BLOCKS = 5  # two chunks of two, and one


@pytest.fixture
def blocks():
    with mmap.mmap(-1, BLOCKS * BLOCK_BYTES) as memory, memoryview(memory) as view:
        parts = [view[start : start + BLOCK_BYTES] for start in range(0, len(view), BLOCK_BYTES)]
        for number, part in enumerate(parts):
            part[:] = bytes([number + 1]) * BLOCK_BYTES
        yield parts
        for part in parts:
            part.release()


@pytest.mark.parametrize("direct", [True, False])
def test_writes_and_reads_every_buffer_in_order(tmp_path, blocks, direct):
    path = tmp_path / "reference"
    written = b"".join(blocks)
    file = PlainFile(path, len(written), direct=direct)
    try:
        assert file.is_direct <= direct
        assert file.write_s(blocks, sync_every_bytes=CHUNK_BYTES) > 0
        assert path.read_bytes() == written
        for block in blocks:
            block[:] = bytes(BLOCK_BYTES)
        assert file.read_s(blocks) > 0
        assert b"".join(blocks) == written
    finally:
        file.close()
    file.close()
    assert not path.exists()


def test_a_short_file_is_no_measurement(tmp_path, blocks):
    file = PlainFile(tmp_path / "reference", BLOCK_BYTES, direct=False)
    try:
        with pytest.raises(OSError, match="moved 8388608 of 16777216 bytes"):
            file.read_s(blocks)
    finally:
        file.close()


def test_a_part_of_a_page_is_refused(tmp_path):
    with pytest.raises(ValueError, match="multiple"):
        PlainFile(tmp_path / "reference", CHUNK_BYTES + 1, direct=False)
    assert list(tmp_path.iterdir()) == []


def test_dropping_caches_changes_no_byte(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "segment").write_bytes(b"kept")
    drop_cached(tmp_path)
    assert (tmp_path / "below" / "segment").read_bytes() == b"kept"
