"""Tokens on their way from the engine's thread to whoever asked: an asyncio task, or a thread that waits for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from queue import SimpleQueue

from tierkv.engine.sequence import FinishReason, Request, Token
from tierkv.model.outcomes import TierName


def posting(queue: asyncio.Queue[Token]) -> Callable[[Token], None]:
    """What puts tokens into a queue of the running loop, from any thread. Knows nothing of who reads, so that a reader who is gone is
    noticed.
    """
    loop = asyncio.get_running_loop()

    def post(token: Token) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(queue.put_nowait, token)

    return post


class TokenStream(AsyncIterator[Token]):
    """Tokens of one request, for one task; ends after the last token of every choice.

    `aclose`, or letting go of it, ends the request and gives its pages back. `request` tells what was found cached.
    """

    def __init__(self, request: Request, queue: asyncio.Queue[Token], cancel: Callable[[], None]) -> None:
        self.request = request
        self._queue = queue
        self._num_open = request.params.n
        self._cancel = cancel

    async def __anext__(self) -> Token:
        if self._num_open <= 0:
            raise StopAsyncIteration
        token = await self._queue.get()
        self._num_open -= token.finish_reason is not None
        return token

    async def aclose(self) -> None:
        """Ends the request, if it has not ended. May be called twice."""
        self._close()

    def _close(self) -> None:
        if self._num_open > 0:
            self._num_open = 0
            self._cancel()

    def __del__(self) -> None:
        self._close()


@dataclass(frozen=True, slots=True)
class Choice:
    """One text. token_ids — all that were drawn, the one that ended it among them. logprobs — where asked for, one a token."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one prompt. cached_tier — the slowest tier that a block of its cached prefix came from."""

    prompt_tokens: int
    choices: tuple[Choice, ...]
    cached_tokens: int = 0
    cached_tier: TierName | None = None


def gathered(request: Request, queue: SimpleQueue[Token]) -> Completion:
    """Waits until every choice of `request` has put its last token into `queue`."""
    choices: list[list[Token]] = [[] for _ in range(request.params.n)]
    num_open = len(choices)
    while num_open:
        token = queue.get()
        choices[token.choice].append(token)
        num_open -= token.finish_reason is not None
    return Completion(len(request.prompt), tuple(map(_choice, choices)), request.cached_tokens, request.cached_tier)


def _choice(tokens: list[Token]) -> Choice:
    reason = tokens[-1].finish_reason
    assert reason is not None
    logprobs = tuple(token.logprob for token in tokens if token.logprob is not None)
    token_ids = tuple(token.token_id for token in tokens if token.token_id >= 0)
    return Choice("".join(token.text for token in tokens), token_ids, reason, logprobs or None)
