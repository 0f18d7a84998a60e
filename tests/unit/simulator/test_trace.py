"""Trace files: what is read, what is refused and how, which blocks are full, and what the writer writes."""

import gzip
import json
import lzma

import pytest
import zstandard

from tests.data.make_chat_trace import make
from tests.unit.simulator.conftest import CHAT_TRACE
from tierkv.errors import CapacityError, InvalidRequestError
from tierkv.simulator import files
from tierkv.simulator.block_size import BlockSizeGuess
from tierkv.simulator.trace import NO_PARENT, BlockSizeSource, OnError, TraceWriter, read_trace

GOOD = {"timestamp": 0, "input_length": 20, "hash_ids": [7, 8]}


def line(**changes):
    return json.dumps({name: value for name, value in {**GOOD, **changes}.items() if value is not None}).encode()


@pytest.fixture
def read(tmp_path):
    """Reads lines as a trace."""

    def reading(*lines, name="t.jsonl", **options):
        path = tmp_path / name
        path.write_bytes(b"\n".join(lines))
        return read_trace(path, **options)

    return reading


def test_ids_and_sessions_become_small_integers_in_order_of_appearance(read):
    trace = read(line(hash_ids=["a", 900], session="x"), line(hash_ids=["a", "b"], session=4), line(hash_ids=[5], session="x"))
    assert [request.keys for request in trace.requests] == [(0, 1), (0, 2), (3,)]
    assert [request.session for request in trace.requests] == [0, 1, 0]
    assert trace.parents == [NO_PARENT, 0, 0, NO_PARENT]
    assert (trace.num_unique, trace.num_accesses, trace.num_sessions) == (4, 5, 2)


@pytest.mark.parametrize(
    ("bad", "because"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe\xfa", "not JSON"),
        (b"[" * 100_000, "nested"),
        (b"[1]", "not a JSON object"),
        (line(hash_ids=None), "hash_ids"),
        (line(hash_ids=[]), "hash_ids"),
        (line(hash_ids={"a": 1}), "hash_ids"),
        (line(hash_ids=[1, 2.5]), "neither an integer nor a string"),
        (line(hash_ids=[True]), "neither an integer nor a string"),
        (line(hash_ids=[[1]]), "neither an integer nor a string"),
        (line(hash_ids=[7, 8, 7]), "twice"),
        (line(hash_ids=[8, 7]), "behind another"),
        (line(hash_ids=[1, 8]), "behind another"),
        (line(hash_ids=[7, 9, 8]), "behind another"),
        (line(input_length=None), "input_length"),
        (line(input_length=0), "input_length"),
        (line(input_length=1.5), "input_length"),
        (line(timestamp=None), "timestamp"),
        (line(timestamp="now"), "timestamp"),
        (line(timestamp=True), "timestamp"),
        (line(timestamp=float("nan")), "timestamp"),
        (line(timestamp=10**400), "timestamp"),
        (line(session=[1]), "session"),
        (line(block_tokens=[16]), "block_tokens"),
        (line(block_tokens=[16, 0]), "block_tokens"),
        (line(block_tokens=16), "block_tokens"),
    ],
)
def test_a_malformed_line_is_named_or_skipped(read, bad, because):
    with pytest.raises(InvalidRequestError) as caught:
        read(line(), bad)
    assert because in str(caught.value.context["because"])
    assert caught.value.context["line"] == 2
    assert "hash_ids" in caught.value.context["expected"]
    assert "t.jsonl" in str(caught.value)
    trace = read(line(), bad, line(hash_ids=[7, 10]), on_error=OnError.SKIP)
    assert trace.num_malformed == 1
    assert [request.keys for request in trace.requests] == [(0, 1), (0, 2)]


def test_the_expected_form_is_told_whole():
    """Errors show 200 characters of a value."""
    from tierkv.simulator.lines import EXPECTED_FORM

    assert len(EXPECTED_FORM) <= 200


def test_a_huge_line_is_malformed_and_its_rest_is_not_taken_for_lines(read, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 200)
    huge = line(hash_ids=list(range(100, 400)))
    trace = read(line(), huge, line(), on_error=OnError.SKIP)
    assert (len(trace.requests), trace.num_malformed) == (2, 1)
    with pytest.raises(InvalidRequestError, match="longer than"):
        read(line(), huge)


def test_empty_lines_are_nothing(read):
    assert len(read(line(), b"", b"  ", line(), b"").requests) == 2


@pytest.mark.parametrize("lines", [[], [b""], [b"{"]])
def test_a_trace_without_a_request_is_refused(read, lines):
    with pytest.raises(InvalidRequestError, match="no request"):
        read(*lines, on_error=OnError.SKIP)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path in (tmp_path / "missing.jsonl", tmp_path, tmp_path / "missing.zst"):
        with pytest.raises(InvalidRequestError, match=path.name):
            read_trace(path)


COMPRESSED = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_files_are_read_and_damaged_ones_named(tmp_path, suffix):
    path = tmp_path / f"t.jsonl{suffix}"
    whole = COMPRESSED[suffix](b"\n".join([line()] * 50_000))
    path.write_bytes(whole)
    assert len(read_trace(path).requests) == 50_000
    for damaged in (whole[: len(whole) // 2], b"no such form", whole[:40] + bytes(20) + whole[60:]):
        path.write_bytes(damaged)
        with pytest.raises(InvalidRequestError, match=path.name):
            read_trace(path)


class TestFullBlocks:
    def full(self, trace):
        return [request.num_full for request in trace.requests]

    def test_told_from_the_prompts(self, read):
        trace = read(line(input_length=40, hash_ids=[1, 2, 3]), line(input_length=32, hash_ids=[1, 2]))
        assert (trace.block_tokens, trace.block_size_source) == (16, BlockSizeSource.INFERRED)
        assert self.full(trace) == [2, 2]

    def test_given(self, read):
        trace = read(line(input_length=40, hash_ids=[1, 2, 3]), block_tokens=20)
        assert (trace.block_tokens, trace.block_size_source) == (20, BlockSizeSource.GIVEN)
        assert self.full(trace) == [2]

    def test_line_by_line(self, read):
        trace = read(line(block_tokens=[3, 1], input_length=None), block_tokens=16)
        assert (trace.block_tokens, trace.block_size_source) == (None, BlockSizeSource.LINES)
        assert self.full(trace) == [2]

    def test_unknown_counts_as_full(self, read):
        trace = read(line(input_length=10, hash_ids=[1, 2]), line(input_length=10, hash_ids=[1, 2, 3, 4]))
        assert trace.block_size_source is BlockSizeSource.UNKNOWN
        assert self.full(trace) == [2, 4]

    @pytest.mark.parametrize("size", [1, 7, 16, 48, 100, 512])
    @pytest.mark.parametrize("is_rest_listed", [True, False])
    def test_a_guess_fits_what_it_saw(self, size, is_rest_listed):
        guess = BlockSizeGuess()
        for tokens in range(size, 40 * size):
            guess.see(tokens, -(-tokens // size) if is_rest_listed else tokens // size)
        assert guess.block_tokens() == size


class TestWriter:
    @pytest.mark.parametrize("suffix", ["", *COMPRESSED])
    def test_what_is_written_is_read(self, tmp_path, suffix):
        path = tmp_path / f"t.jsonl{suffix}"
        with TraceWriter(path) as writer:
            writer.append([b"a", b"b"], timestamp_ms=3, input_tokens=32, output_tokens=2, session="s")
            writer.append([], timestamp_ms=4, input_tokens=3)
            writer.append([b"a", b"c"], timestamp_ms=5, input_tokens=20)
            writer.close()
        trace = read_trace(path, block_tokens=16)
        assert [(request.keys, request.num_full, request.timestamp_ms, request.session) for request in trace.requests] == [
            ((0, 1), 2, 3.0, 0),
            ((0, 2), 1, 5.0, None),
        ]

    def test_it_says_nothing_of_content(self, tmp_path):
        with TraceWriter(tmp_path / "t") as writer:
            writer.append(["secret"], timestamp_ms=0, input_tokens=1, session="name")
        assert json.loads((tmp_path / "t").read_text()) == {
            "timestamp": 0,
            "input_length": 1,
            "output_length": 0,
            "hash_ids": [0],
            "session": 0,
        }

    def test_its_table_is_bounded(self, tmp_path):
        with TraceWriter(tmp_path / "t", max_ids=2) as writer:
            writer.append([1, 2], timestamp_ms=0, input_tokens=2)
            with pytest.raises(CapacityError, match="max_ids='2'"):
                writer.append([1, 3], timestamp_ms=0, input_tokens=2)
            writer.append([1, 2], timestamp_ms=1, input_tokens=2)
        assert len(read_trace(tmp_path / "t").requests) == 2

    def test_a_folder_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(InvalidRequestError, match="missing"):
            TraceWriter(tmp_path / "missing" / "t.gz")


def test_the_small_trace_is_what_its_script_makes(tmp_path):
    make(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == CHAT_TRACE.read_bytes()
    assert len(CHAT_TRACE.read_bytes()) <= 100_000
