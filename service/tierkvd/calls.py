"""What every call shares: the token, the session, the deadline, and errors as gRPC statuses. One decorator for unary, one for streams."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from tierkv.errors import ClosedError, InternalError, TierKVError, UnavailableError
from tierkv.wire.limits import AUTHORIZATION_METADATA, DEFAULT_DEADLINE_S, SESSION_METADATA
from tierkv.wire.status import code_of, trailing_metadata_of

_log = logging.getLogger(__name__)
_DEADLINE_MARGIN_S = 0.05
Context = grpc.aio.ServicerContext[Any, Any]
S = TypeVar("S")
T = TypeVar("T")
Request = TypeVar("Request")
Reply = TypeVar("Reply")


def unary(
    handler: Callable[[S, Request, Context], Awaitable[Reply]],
) -> Callable[[S, Request, Context], Awaitable[Reply]]:
    """Turns the errors of a unary handler into statuses."""

    @functools.wraps(handler)
    async def handle(self: S, request: Request, context: Context) -> Reply:
        try:
            return await handler(self, request, context)
        except TierKVError as error:
            await _abort(context, error)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            _log.exception("a call failed")
            await _abort(context, InternalError("the daemon failed; its log has the trace", error=type(error).__name__))

    return handle


def streaming(
    handler: Callable[[S, Request, Context], AsyncGenerator[Reply, None]],
) -> Callable[[S, Request, Context], AsyncGenerator[Reply, None]]:
    """Turns the errors of a streaming handler into statuses."""

    @functools.wraps(handler)
    async def handle(self: S, request: Request, context: Context) -> AsyncGenerator[Reply, None]:
        try:
            # Closed here and now, also when the client hangs up during a write: what the handler holds must not wait for a collector.
            async with contextlib.aclosing(handler(self, request, context)) as replies:
                async for reply in replies:
                    yield reply
        except TierKVError as error:
            await _abort(context, error)
        except (asyncio.CancelledError, grpc.aio.AbortError, GeneratorExit):
            raise
        except Exception as error:
            _log.exception("a call failed")
            await _abort(context, InternalError("the daemon failed; its log has the trace", error=type(error).__name__))

    return handle


async def _abort(context: Context, error: TierKVError) -> NoReturn:
    await context.abort(code_of(error), str(error), trailing_metadata_of(error))
    raise AssertionError("abort does not return")


def session_secret(context: Context) -> bytes:
    """The secret in the call's metadata. Raises ClosedError where there is none."""
    for name, value in context.invocation_metadata() or ():
        if name == SESSION_METADATA and isinstance(value, bytes):
            return value
    raise ClosedError("the call carries no session; attach first")


def seconds_left(context: Context) -> float:
    """Seconds to the call's deadline, 30 for a call without one."""
    left = context.time_remaining()
    return DEFAULT_DEADLINE_S if left is None else max(0.0, left)


def answer_by_s(context: Context) -> float:
    """When an answer that waits is sent, in time of the loop: a little before the call's deadline, so that it arrives in time."""
    return asyncio.get_running_loop().time() + max(0.0, seconds_left(context) - _DEADLINE_MARGIN_S)


async def within(future: Future[T], context: Context) -> T:
    """What a future of the store brings, before the call's deadline. Raises UnavailableError then; the work goes on.

    Shielded: a client that hangs up must not cancel a future that the store's threads will complete.
    """
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), seconds_left(context))
    except TimeoutError:
        raise UnavailableError("the deadline passed before the disk was done; the work goes on") from None


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every call, health included, that does not carry the token. For TCP; the Unix socket is guarded by its folder."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

        async def refuse(_request: object, context: Context) -> None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the token is missing or wrong")

        self._refusal: Any = grpc.unary_unary_rpc_method_handler(refuse)

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        for name, value in details.invocation_metadata or ():
            if name == AUTHORIZATION_METADATA:
                given = value if isinstance(value, bytes) else value.encode()
                if hmac.compare_digest(given, self._expected):
                    return await continuation(details)
        return self._refusal
