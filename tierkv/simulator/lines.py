"""One line of a trace: what must be there, and what is said of a line where it is not.

The form is that of the Mooncake traces (Qin et al., FAST 2025), one JSON object a request; `docs/simulate.md` describes it.
Whether lines agree with each other is `tierkv.simulator.trace`'s matter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

EXPECTED_FORM = (
    '{"timestamp": ms, "input_length": tokens, "hash_ids": [id, …]}; tokens at least 1, no id twice, each id always behind the same '
    'one; optional: "session", "block_tokens": [tokens, …], "save": true'
)

_MAX_TIMESTAMP_MS = 10**15
"""Some 30,000 years."""


class MalformedLineError(Exception):
    """A line is no request; the text says why. Never leaves the package: whoever reads the file adds where it stands."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request as its line gives it."""

    timestamp_ms: float
    input_tokens: int | None
    """None only where every block says how many tokens it has."""
    ids: list[int | str]
    session: int | str | None
    has_block_tokens: bool
    is_save: bool = False
    """Its blocks were saved, not asked for: no access."""


def parse_line(text: bytes) -> Line:
    """Reads one line; MalformedLineError with what is wrong with it."""
    try:
        fields = json.loads(text)
    except RecursionError:
        raise MalformedLineError("it is nested too deeply") from None
    except ValueError as error:
        raise MalformedLineError(f"it is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise MalformedLineError("it is not a JSON object")
    ids = _ids(fields.get("hash_ids"))
    has_block_tokens = _has_block_tokens(fields.get("block_tokens"), len(ids))
    input_tokens = fields.get("input_length")
    if not (_is_count(input_tokens) or (input_tokens is None and has_block_tokens)):
        raise MalformedLineError("input_length is not an integer of at least 1")
    timestamp = fields.get("timestamp")
    if (
        isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or not abs(timestamp) <= _MAX_TIMESTAMP_MS
    ):  # so written, it refuses NaN too
        raise MalformedLineError("timestamp is not a number of milliseconds")
    session = fields.get("session")
    if session is not None and not _is_id(session):
        raise MalformedLineError("session is neither an integer nor a string")
    is_save = fields.get("save", False)
    if type(is_save) is not bool:
        raise MalformedLineError("save is neither true nor false")
    return Line(float(timestamp), input_tokens, ids, session, has_block_tokens, is_save)


def _ids(ids: object) -> list[int | str]:
    if not isinstance(ids, list) or not ids:
        raise MalformedLineError("hash_ids is not a list of at least one id")
    if not all(map(_is_id, ids)):
        raise MalformedLineError("an id is neither an integer nor a string")
    if len(set(ids)) < len(ids):
        raise MalformedLineError("an id stands twice in the line")
    return ids


def _has_block_tokens(block_tokens: object, num_blocks: int) -> bool:
    if block_tokens is None:
        return False
    if not isinstance(block_tokens, list) or len(block_tokens) != num_blocks or not all(map(_is_count, block_tokens)):
        raise MalformedLineError("block_tokens is not a list of one positive integer for each id")
    return True


def _is_id(value: object) -> bool:
    kind = type(value)
    return kind is int or kind is str


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1
