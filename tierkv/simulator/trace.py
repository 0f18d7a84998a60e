"""Request traces in memory: read, checked line against line, with ids renumbered to small integers; and their writer.

Ids are prefix-chained: an id stands for its block and everything before it, so that it always has the same predecessor. A line that
contradicts an earlier one is malformed. Full blocks only can be kept by a cache (a partial one is never looked up again as such),
so each request knows how many of its blocks are full.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from tierkv.errors import CapacityError, InvalidRequestError
from tierkv.simulator.block_size import BlockSizeGuess
from tierkv.simulator.files import MAX_LINE_BYTES, bounded_lines, open_for_writing
from tierkv.simulator.lines import EXPECTED_FORM, Line, MalformedLineError, parse_line

NO_PARENT = -1
"""The parent of a chain's first block."""

MAX_WRITTEN_IDS = 10_000_000
"""Different ids a writer can number: its table then takes about 1.5 GB."""


class OnError(StrEnum):
    """What to do with a malformed line."""

    STOP = "stop"
    SKIP = "skip"


class BlockSizeSource(StrEnum):
    """How it is known which blocks are full."""

    LINES = "lines"
    """Every line says how many tokens each block has: all are full."""
    GIVEN = "given"
    INFERRED = "inferred"
    UNKNOWN = "unknown"
    """No size fits all prompts: every block counts as full."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its blocks, head first, of which the leading `num_full` are full."""

    keys: tuple[int, ...]
    num_full: int
    timestamp_ms: float
    session: int | None
    is_save: bool = False
    """Its blocks were saved, not asked for: a request's answer. No access."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A trace in memory, the same only as itself. Keys are 0 … num_unique - 1, in order of their first access; `parents` gives each its predecessor."""

    name: str
    requests: Sequence[Request]
    parents: Sequence[int]
    block_tokens: int | None
    block_size_source: BlockSizeSource
    num_accesses: int
    num_malformed: int = 0

    @property
    def num_unique(self) -> int:
        return len(self.parents)

    @property
    def num_requests(self) -> int:
        return sum(not request.is_save for request in self.requests)

    @property
    def num_sessions(self) -> int:
        return len({request.session for request in self.requests} - {None})


def read_trace(
    path: Path,
    *,
    block_tokens: int | None = None,
    on_error: OnError = OnError.STOP,
    progress: Callable[[int], None] = lambda _: None,
) -> Trace:
    """Reads a trace file; O(accesses) in time and memory.

    block_tokens — tokens of a block where lines do not say; None: told from the prompts' lengths. progress — called now and then
    with the number of requests read. Raises InvalidRequestError for a file that cannot be read, a malformed line (file, line
    number, expected form) unless those are skipped, and for a trace without a request.
    """
    reading = _Reading()
    for line_number, text in bounded_lines(path):
        if text is not None and not text.strip():
            continue
        try:
            if text is None:
                raise MalformedLineError(f"it is longer than {MAX_LINE_BYTES >> 20} MiB")
            reading.add(parse_line(text))
        except MalformedLineError as error:
            if on_error is OnError.STOP:
                raise InvalidRequestError(
                    "a line of the trace is malformed; mend it, or skip such lines with --on-error skip",
                    path=path,
                    line=line_number,
                    because=error,
                    expected=EXPECTED_FORM,
                ) from None
            reading.num_malformed += 1
        if line_number % 512 == 0:
            progress(len(reading.lines))
    if not reading.lines:
        raise InvalidRequestError("the trace holds no request", path=path, malformed_lines=reading.num_malformed)
    return reading.finish(str(path), block_tokens)


class _Reading:
    """What has been read so far: ids and sessions get numbers in order of appearance."""

    def __init__(self) -> None:
        self.lines: list[tuple[tuple[int, ...], int | None, float, int | None, bool]] = []
        """Keys, tokens of the prompt (None: every block is full), milliseconds, session, whether it only saves."""
        self.num_malformed = 0
        self._parents: list[int] = []
        self._numbers: dict[int | str, int] = {}
        self._sessions: dict[int | str, int] = {}
        self._guess = BlockSizeGuess()

    def add(self, line: Line) -> None:
        """Takes a line in; MalformedLineError, and nothing of it remembered, where it contradicts an earlier one."""
        keys = self._number(line.ids)
        input_tokens = None if line.has_block_tokens else line.input_tokens
        if input_tokens is not None:
            self._guess.see(input_tokens, len(keys))
        session = None if line.session is None else self._sessions.setdefault(line.session, len(self._sessions))
        self.lines.append((keys, input_tokens, line.timestamp_ms, session, line.is_save))

    def _number(self, ids: Sequence[int | str]) -> tuple[int, ...]:
        """The known ids of a line are its head, each behind the same one as ever; the others are new and get the next numbers."""
        known: list[int] = []
        parent = NO_PARENT
        for block_id in ids:
            number = self._numbers.get(block_id)
            if number is None:
                break
            if self._parents[number] != parent:
                raise MalformedLineError(f"id {block_id!r} stood behind another id before")
            known.append(number)
            parent = number
        fresh = ids[len(known) :]
        for block_id in fresh:
            if block_id in self._numbers:
                raise MalformedLineError(f"id {block_id!r} stood behind another id before")
        first = len(self._parents)
        new = range(first, first + len(fresh))
        self._numbers.update(zip(fresh, new, strict=True))
        if new:
            self._parents.extend((parent, *new[:-1]))
        return (*known, *new)

    def finish(self, name: str, given_block_tokens: int | None) -> Trace:
        """Everything as a trace; which blocks are full is known only now."""
        must_tell = any(input_tokens is not None for _, input_tokens, _, _, _ in self.lines)
        block_tokens, source = None, BlockSizeSource.LINES
        if must_tell and given_block_tokens is not None:
            block_tokens, source = given_block_tokens, BlockSizeSource.GIVEN
        elif must_tell:
            block_tokens = self._guess.block_tokens()
            source = BlockSizeSource.UNKNOWN if block_tokens is None else BlockSizeSource.INFERRED
        requests = [
            Request(keys, _num_full(len(keys), input_tokens, block_tokens), timestamp_ms, session, is_save)
            for keys, input_tokens, timestamp_ms, session, is_save in self.lines
        ]
        num_accesses = sum(len(request.keys) for request in requests if not request.is_save)
        return Trace(name, requests, self._parents, block_tokens, source, num_accesses, self.num_malformed)


def _num_full(num_blocks: int, input_tokens: int | None, block_tokens: int | None) -> int:
    if input_tokens is None or block_tokens is None:
        return num_blocks
    return min(num_blocks, input_tokens // block_tokens)


class TraceWriter:
    """Writes requests as a trace that `read_trace` reads; ids are replaced by small integers, which say nothing of content.

    Not thread-safe. The table of ids is bounded by `max_ids`; the file is complete once `close` has returned.
    """

    def __init__(self, path: Path, *, max_ids: int = MAX_WRITTEN_IDS) -> None:
        """path — made anew; its suffix chooses the compression. InvalidRequestError where it cannot be written."""
        self._stream = open_for_writing(path)
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
        is_save: bool = False,
    ) -> None:
        """Adds one request, or blocks that one has saved without asking for them; O(ids).

        ids — the prompt's blocks, head first, each naming its block and everything before it; no request without a block is
        written. block_tokens — tokens of each, where all of them are full. Raises CapacityError, and writes nothing, where the table is full: close this trace and begin another.
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
        if is_save:
            fields["save"] = True
        self._stream.write(json.dumps(fields).encode() + b"\n")

    def close(self) -> None:
        """Completes the file; may be called twice."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
