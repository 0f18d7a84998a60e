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


_PRIORITIES = tuple(Priority)


@dataclass(frozen=True, slots=True)
class Hints:
    """What a call says of its blocks beside their keys. Nothing of it survives a restart of the store.

    request_id — names the request that the call belongs to, at most 64 bytes of UTF-8, unique within the session: calls of one
    request are one access to each block and share its part of a full tier; `explain` finds it by this name.
    session_closed — the conversation is over: its blocks that no other conversation shares leave first.
    expected_idle_s — seconds until the blocks are wanted again. pin_until_s — keeps them until then, seconds since 1970, and lifts an
    earlier pin where that is over; pins and high priority hold within a share of the tier, what is beyond it is treated as any other
    block. Zero says nothing, as None does.
    Raises InvalidRequestError for a value that cannot be.
    """

    request_id: str = ""
    session_closed: bool = False
    expected_idle_s: float | None = None
    priority: Priority = Priority.NORMAL
    pin_until_s: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.request_id, str):
            raise InvalidRequestError("a request id is text", request_id=repr(self.request_id))
        if len(self.request_id) > REQUEST_ID_BYTES or len(self._encoded_request_id()) > REQUEST_ID_BYTES:
            raise InvalidRequestError("a request id has at most 64 bytes", length=len(self.request_id))
        if self.priority not in _PRIORITIES:
            raise InvalidRequestError("a priority is low, normal or high", priority=self.priority)
        for name, value in (("expected_idle_s", self.expected_idle_s), ("pin_until_s", self.pin_until_s)):
            if value is None:
                continue
            if not isinstance(value, int | float):
                raise InvalidRequestError(f"{name} is a number of seconds", **{name: repr(value)})
            if not (math.isfinite(value) and value >= 0):
                raise InvalidRequestError(f"{name} is a finite number of seconds, not below zero", **{name: value})
            if value == 0:
                object.__setattr__(self, name, None)

    def _encoded_request_id(self) -> bytes:
        try:
            return self.request_id.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError("a request id is text that UTF-8 can say", request_id=ascii(self.request_id)) from error


NO_HINTS = Hints()


def check_request_id(request_id: str) -> None:
    """Raises InvalidRequestError for what cannot name a request."""
    if not request_id:
        raise InvalidRequestError("a request id is not empty", request_id=request_id)
    Hints(request_id=request_id)
