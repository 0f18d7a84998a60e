"""The trace file of `tierkv record`: its lines, its ids, its compression, its bound."""

import gzip
import json
import lzma

import pytest
import zstandard

from tierkv.cli.trace_file import TraceWriter
from tierkv.errors import CapacityError, InvalidRequestError


def plain(content):
    return content


def unzst(content):
    return zstandard.ZstdDecompressor().decompressobj().decompress(content)


@pytest.mark.parametrize(("suffix", "unpack"), [("", plain), (".gz", gzip.decompress), (".xz", lzma.decompress), (".zst", unzst)])
def test_lines_have_the_mooncake_form_whatever_the_compression(tmp_path, suffix, unpack):
    path = tmp_path / f"trace.jsonl{suffix}"
    with TraceWriter(path) as writer:
        writer.append([2**63, 5], timestamp_ms=3, input_tokens=32, session=70, block_tokens=[16, 16])
        writer.append([], timestamp_ms=4, input_tokens=32)
        writer.append([2**63, 9], timestamp_ms=5, input_tokens=32, output_tokens=7)
        assert writer.num_unique == 3
    writer.close()
    assert [json.loads(line) for line in unpack(path.read_bytes()).splitlines()] == [
        {"timestamp": 3, "input_length": 32, "output_length": 0, "hash_ids": [0, 1], "session": 0, "block_tokens": [16, 16]},
        {"timestamp": 5, "input_length": 32, "output_length": 7, "hash_ids": [0, 2]},
    ]


def test_the_table_of_ids_is_bounded_and_a_refused_request_leaves_nothing(tmp_path):
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, max_ids=2) as writer:
        writer.append([1, 2], timestamp_ms=0, input_tokens=2)
        with pytest.raises(CapacityError):
            writer.append([1, 3], timestamp_ms=1, input_tokens=2)
        writer.append([2, 1], timestamp_ms=2, input_tokens=2)
    assert [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()] == [[0, 1], [1, 0]]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(InvalidRequestError, match="nowhere"):
        TraceWriter(tmp_path / "nowhere" / "trace.jsonl")
