"""Trace files: plain, or compressed as their suffix says (.gz, .xz, .zst). Lines come out bounded, errors name the file.

What a line means is `tierkv.simulator.lines`' matter.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from tierkv.errors import InvalidRequestError

MAX_LINE_BYTES = 16 << 20
"""Longest line that is read: about 200,000 blocks named by 64 hexadecimal digits each."""

_MAX_WINDOW_BYTES = 128 << 20
"""A zstd frame that needs more memory than this is refused; the library's own default for what it writes at its highest level."""

_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError)


def open_for_reading(path: Path) -> BinaryIO:
    """Opens a trace; InvalidRequestError where that is impossible."""
    try:
        match path.suffix:
            case ".gz":
                return cast("BinaryIO", gzip.open(path, "rb"))
            case ".xz":
                return cast("BinaryIO", lzma.open(path, "rb"))
            case ".zst":
                decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
                plain = decompressor.stream_reader(path.open("rb"), read_across_frames=True, closefd=True)
                return io.BufferedReader(cast("io.RawIOBase", plain))
            case _:
                return path.open("rb")
    except OSError as error:
        raise _cannot("read", path, error) from error


def open_for_writing(path: Path) -> BinaryIO:
    """Makes a trace file, in place of one that is there; InvalidRequestError where that is impossible."""
    try:
        match path.suffix:
            case ".gz":
                return cast("BinaryIO", gzip.open(path, "wb"))
            case ".xz":
                return cast("BinaryIO", lzma.open(path, "wb"))
            case ".zst":
                return cast("BinaryIO", zstandard.ZstdCompressor().stream_writer(path.open("wb"), closefd=True))
            case _:
                return path.open("wb")
    except OSError as error:
        raise _cannot("written", path, error) from error


def bounded_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yields each line's number, from 1, and its bytes; None for a line of more than MAX_LINE_BYTES.

    Raises InvalidRequestError for a file that cannot be opened, or whose compression is damaged.
    """
    with open_for_reading(path) as stream, _as_caller_mistakes(path):
        line_number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            line_number += 1
            if len(line) <= MAX_LINE_BYTES:
                yield line_number, line
                continue
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_LINE_BYTES)
            yield line_number, None


@contextmanager
def _as_caller_mistakes(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise InvalidRequestError("the trace file is damaged; its compression ends early or is broken", path=path) from error
    except OSError as error:
        raise _cannot("read", path, error) from error


def _cannot(verb: str, path: Path, error: OSError) -> InvalidRequestError:
    return InvalidRequestError(f"the trace cannot be {verb}", path=path, error=error.strerror or error)
