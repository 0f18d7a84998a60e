"""Error classes ⇄ gRPC codes, one table for both directions. docs/protocol.md, "Errors".

The class travels as the code; the sentence and its values travel as JSON in trailing metadata, so that an error reads the same on
both sides. What does not decode costs the context, never the error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import grpc

from tierkv.errors import InternalError, InvalidRequestError, TierKVError, UnavailableError
from tierkv.wire.kinds import CLASS_OF_KIND, ErrorKind, kind_of
from tierkv.wire.limits import ERROR_CONTEXT_BYTES, ERROR_METADATA

Metadata = tuple[tuple[str, bytes], ...]

CODE_OF_KIND: dict[ErrorKind, grpc.StatusCode] = {
    ErrorKind.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.CAPACITY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.CONFLICT: grpc.StatusCode.ABORTED,
    ErrorKind.DATA: grpc.StatusCode.DATA_LOSS,
    ErrorKind.CLOSED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
}

_CLASS_OF_CODE: dict[grpc.StatusCode, type[TierKVError]] = {
    **{code: CLASS_OF_KIND[kind] for kind, code in CODE_OF_KIND.items()},
    # Codes that the library or a proxy makes by itself.
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.PERMISSION_DENIED: InvalidRequestError,
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequestError,
}


def code_of(error: TierKVError) -> grpc.StatusCode:
    """The gRPC code of an error."""
    return CODE_OF_KIND[kind_of(error)]


def class_of(code: grpc.StatusCode) -> type[TierKVError]:
    """The error class of a gRPC code; codes outside the table are InternalError."""
    return _CLASS_OF_CODE.get(code, InternalError)


def trailing_metadata_of(error: TierKVError) -> Metadata:
    """Sentence and values of an error as trailing metadata; empty where they exceed the bound (the status text remains)."""
    context = {name: _plain(value) for name, value in error.context.items()}
    encoded = json.dumps({"message": error.message, "context": context}, separators=(",", ":")).encode()
    return ((ERROR_METADATA, encoded),) if len(encoded) <= ERROR_CONTEXT_BYTES else ()


def error_of(code: grpc.StatusCode, details: str | None, trailing: Iterable[tuple[str, Any]] | None) -> TierKVError:
    """The error that a status stands for, with sentence and values where they travelled along."""
    cls = class_of(code)
    decoded = _decode_context(trailing)
    if decoded is not None:
        message, context = decoded
        return cls(message, **context)
    return cls(f"the daemon's call ended with {code.name.lower()}", details=details or "")


def error_of_rpc(error: grpc.RpcError) -> TierKVError:
    """Translates what a gRPC call raised, synchronous or asyncio; chain it: `raise error_of_rpc(error) from error`."""
    code = getattr(error, "code", None)
    if not callable(code):
        return InternalError("a call failed without a status", error=type(error).__name__)
    call: Any = error  # the RpcError of every living call has these
    return error_of(code(), call.details(), call.trailing_metadata())


def _plain(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value[:8]).hex()
        return f"{text}…" if len(value) > 8 else text
    text = str(value)
    return f"{text[:197]}…" if len(text) > 200 else text


def _decode_context(trailing: Iterable[tuple[str, Any]] | None) -> tuple[str, dict[str, str]] | None:
    for name, value in trailing or ():
        if name != ERROR_METADATA or not isinstance(value, bytes) or len(value) > ERROR_CONTEXT_BYTES:
            continue
        try:
            parsed = json.loads(value)
            return str(parsed["message"]), {str(key): str(text) for key, text in parsed["context"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
    return None
