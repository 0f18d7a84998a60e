"""The trace file that `tierkv record` writes: the Mooncake form, one JSON object a request, compressed as the suffix says."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Hashable, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

import zstandard

from tierkv.errors import CapacityError, InvalidRequestError

MAX_WRITTEN_IDS = 10_000_000
"""Different ids a writer can number: its table then takes about 1.5 GB."""


class TraceWriter:
    """Writes requests; ids are replaced by small integers, which say nothing of content. Complete once `close` has returned."""

    def __init__(self, path: Path, *, max_ids: int = MAX_WRITTEN_IDS) -> None:
        """path — made anew; its suffix chooses the compression. InvalidRequestError where it cannot be written."""
        try:
            self._stream = _open_for_writing(path)
        except OSError as error:
            raise InvalidRequestError("the trace cannot be written", path=path, error=error.strerror or error) from error
        self._max_ids = max_ids
        self._ids: dict[Hashable, int] = {}
        self._sessions: dict[Hashable, int] = {}

    @property
    def num_unique(self) -> int:
        """Different blocks so far."""
        return len(self._ids)

    def append(
        self,
        ids: Sequence[Hashable],
        *,
        timestamp_ms: int,
        input_tokens: int,
        output_tokens: int = 0,
        session: Hashable | None = None,
        block_tokens: Sequence[int] | None = None,
    ) -> None:
        """Adds one request; O(ids).

        ids — the prompt's blocks, head first; block_tokens — tokens of each, where all of them are full. Raises CapacityError, and
        writes nothing, where there are more different blocks than can be numbered.
        """
        if not ids:
            return
        num_new = sum(block_id not in self._ids for block_id in ids)
        if len(self._ids) + num_new > self._max_ids or len(self._sessions) >= self._max_ids:
            raise CapacityError("the trace has as many different blocks as its writer can number", max_ids=self._max_ids)
        fields: dict[str, object] = {
            "timestamp": timestamp_ms,
            "input_length": input_tokens,
            "output_length": output_tokens,
            "hash_ids": [self._ids.setdefault(block_id, len(self._ids)) for block_id in ids],
        }
        if session is not None:
            fields["session"] = self._sessions.setdefault(session, len(self._sessions))
        if block_tokens is not None:
            fields["block_tokens"] = list(block_tokens)
        self._stream.write(json.dumps(fields).encode() + b"\n")

    def close(self) -> None:
        """Completes the file; may be called twice."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _open_for_writing(path: Path) -> BinaryIO:
    match path.suffix:
        case ".gz":
            return cast("BinaryIO", gzip.open(path, "wb"))
        case ".xz":
            return cast("BinaryIO", lzma.open(path, "wb"))
        case ".zst":
            return cast("BinaryIO", zstandard.ZstdCompressor().stream_writer(path.open("wb"), closefd=True))
        case _:
            return path.open("wb")
