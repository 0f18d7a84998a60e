"""The numbers of the error classes on the wire. They never change meaning; docs/protocol.md, "Errors" lists them."""

from __future__ import annotations

from enum import IntEnum

from tierkv.errors import (
    CapacityError,
    ClosedError,
    ConflictError,
    DataError,
    InternalError,
    InvalidRequestError,
    TierKVError,
    UnavailableError,
)


class ErrorKind(IntEnum):
    INVALID_REQUEST = 1
    CAPACITY = 2
    UNAVAILABLE = 3
    CONFLICT = 4
    DATA = 5
    CLOSED = 6
    INTERNAL = 7


CLASS_OF_KIND: dict[ErrorKind, type[TierKVError]] = {
    ErrorKind.INVALID_REQUEST: InvalidRequestError,
    ErrorKind.CAPACITY: CapacityError,
    ErrorKind.UNAVAILABLE: UnavailableError,
    ErrorKind.CONFLICT: ConflictError,
    ErrorKind.DATA: DataError,
    ErrorKind.CLOSED: ClosedError,
    ErrorKind.INTERNAL: InternalError,
}


def kind_of(error: TierKVError) -> ErrorKind:
    """The number of the most specific class in the table that `error` is."""
    return next((kind for kind, cls in CLASS_OF_KIND.items() if isinstance(error, cls)), ErrorKind.INTERNAL)
