"""The disk reference moves every byte it claims, and leaves no file."""

import pytest

from tierkv_bench.plain_files import CHUNK_BYTES, PlainFile, drop_cached


@pytest.mark.parametrize("direct", [True, False])
def test_writes_and_reads_the_whole_file(tmp_path, direct):
    path = tmp_path / "reference"
    file = PlainFile(path, 2 * CHUNK_BYTES, direct=direct)
    try:
        assert file.write_s(sync_every_bytes=CHUNK_BYTES) > 0
        written = path.read_bytes()
        assert len(written) == 2 * CHUNK_BYTES
        assert written[:CHUNK_BYTES] == written[CHUNK_BYTES:]
        assert any(written[:64])
        assert file.read_s() > 0
        assert file.is_direct <= direct
    finally:
        file.close()
    file.close()
    assert not path.exists()


def test_a_part_of_a_chunk_is_refused(tmp_path):
    with pytest.raises(ValueError, match="multiple"):
        PlainFile(tmp_path / "reference", CHUNK_BYTES + 1, direct=False)
    assert list(tmp_path.iterdir()) == []


def test_dropping_caches_changes_no_byte(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "segment").write_bytes(b"kept")
    drop_cached(tmp_path)
    assert (tmp_path / "below" / "segment").read_bytes() == b"kept"
