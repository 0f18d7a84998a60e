"""Hints: what a caller knows of the future of blocks. Advice, never a condition: a call does not fail for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from tierkv.errors import InvalidRequestError

REQUEST_ID_BYTES = 64


class Priority(StrEnum):
    """How much a block is worth beside others of its age."""

    LOW = "low"
    """Of no use once the request is over: first to leave."""
    NORMAL = "normal"
    HIGH = "high"
    """Kept before others, within a share of the tier."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What a call says of its blocks beside their keys. Nothing of it survives a restart of the store.

    request_id — names the request that the call belongs to, at most 64 bytes of UTF-8, unique within the session: calls of one
    request are one access to each block and share its part of a full tier; `explain` finds it by this name.
    session_closed — the conversation is over: its blocks that no other conversation shares leave first.
    expected_idle_s — seconds until the blocks are wanted again. pin_until_s — keeps them until then, seconds since 1970; pins and
    high priority hold within a share of the tier, what is beyond it is treated as any other block.
    Raises InvalidRequestError for a value that cannot be.
    """

    request_id: str = ""
    session_closed: bool = False
    expected_idle_s: float | None = None
    priority: Priority = Priority.NORMAL
    pin_until_s: float | None = None

    def __post_init__(self) -> None:
        if len(self.request_id.encode()) > REQUEST_ID_BYTES:
            raise InvalidRequestError("a request id has at most 64 bytes", length=len(self.request_id.encode()))
        for name, value in (("expected_idle_s", self.expected_idle_s), ("pin_until_s", self.pin_until_s)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InvalidRequestError(f"{name} is a finite number of seconds, not below zero", **{name: value})


NO_HINTS = Hints()
