"""Errors, named by what the caller does next.

A class exists only where a caller would act differently; the class is the contract, the text is not. Misses, pending and refused
blocks are outcomes (`tierkv.model.outcomes`), not errors. Each station translates the errors of the library below it; the wire
maps these classes to gRPC codes in one table (`tierkv.wire.status`).

| class | caller does | retry |
|---|---|---|
| InvalidRequestError | corrects the call | no |
| CapacityError | releases or waits | after release |
| UnavailableError | backs off, or recomputes | yes |
| ConflictError | looks up again | the whole operation |
| DataError | drops the block, recomputes | never the same copy |
| ClosedError | opens a new handle | no |
| InternalError | reports it | no |
"""

from __future__ import annotations


class TierKVError(Exception):
    """Base of every error TierKV raises on purpose.

    The text is a lower-case sentence followed by `key='value'` pairs: what was wrong, with what value, and what to do.
    """

    def __init__(self, message: str, /, **context: object) -> None:
        self.message = message
        self.context = context
        pairs = ", ".join(f"{name}={_shown(value)}" for name, value in context.items())
        super().__init__(f"{message}: {pairs}" if pairs else message)


class InvalidRequestError(TierKVError, ValueError):
    """The call is wrong as written; the same call can never succeed."""


class CapacityError(TierKVError):
    """A bound was reached (arena pinned, disk full, table full); retry after something is released."""


class UnavailableError(TierKVError):
    """The other side is away, slow or stopping; back off, or recompute."""


class ConflictError(TierKVError):
    """State moved on (lease expired, stale generation, lock held); look up again and repeat the whole operation."""


class DataError(TierKVError):
    """Stored bytes cannot be believed (checksum, frame, version); drop this copy and recompute."""


class ClosedError(TierKVError):
    """The handle or session is gone; open a new one."""


class InternalError(TierKVError):
    """A bug in TierKV; report it with its text."""


def _shown(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value[:8]).hex()
        return f"'{text}…'" if len(value) > 8 else f"'{text}'"
    text = str(value)
    return f"'{text[:197]}…'" if len(text) > 200 else f"'{text}'"
