"""Tokens on their way from the engine's thread to whoever asked: an asyncio task, or a thread that waits for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tierkv.engine.sequence import FinishReason, Request, Token
from tierkv.model.outcomes import TierName


class Mailbox:
    """The engine's end of a stream. Knows nothing of who reads, so that a reader who is gone is noticed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pending: list[Token] = []
        self.queue: asyncio.Queue[Token] = asyncio.Queue()

    def put(self, token: Token) -> None:
        """Shown by the next `deliver`."""
        self._pending.append(token)

    def deliver(self) -> None:
        """Once a step: wakes the reader once for all tokens of the step."""
        tokens, self._pending = self._pending, []
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._show, tokens)

    def _show(self, tokens: list[Token]) -> None:
        for token in tokens:
            self.queue.put_nowait(token)


class TokenStream(AsyncIterator[Token]):
    """Tokens of one request, for one task; ends after the last token of every choice.

    `aclose`, or letting go of it, ends the request and gives its pages back. `request` tells what was found cached.
    """

    def __init__(self, request: Request, mailbox: Mailbox, cancel: Callable[[], None]) -> None:
        self.request = request
        self._queue = mailbox.queue
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


@dataclass(slots=True, eq=False)
class Gathering:
    """Gathers the tokens of one request; `wait` for it in another thread."""

    num_choices: int
    tokens: list[Token] = field(default_factory=list)
    _is_done: threading.Event = field(default_factory=threading.Event)
    _num_ended: int = 0

    def put(self, token: Token) -> None:
        self.tokens.append(token)
        self._num_ended += token.finish_reason is not None
        if self._num_ended == self.num_choices:
            self._is_done.set()

    def deliver(self) -> None:
        """Nothing to do: `put` shows a token at once."""

    def wait(self) -> None:
        self._is_done.wait()

    def completion(self, request: Request) -> Completion:
        """What was gathered, once it is all there."""
        tiers = list(TierName)
        slowest = max(request.cached_tiers, key=tiers.index, default=None)
        choices = tuple(self._choice(idx) for idx in range(self.num_choices))
        return Completion(len(request.prompt), choices, request.cached_tokens, slowest)

    def _choice(self, idx: int) -> Choice:
        tokens = [token for token in self.tokens if token.choice == idx]
        reason = tokens[-1].finish_reason
        assert reason is not None
        logprobs = tuple(token.logprob for token in tokens if token.logprob is not None)
        token_ids = tuple(token.token_id for token in tokens if token.token_id >= 0)
        return Choice("".join(token.text for token in tokens), token_ids, reason, logprobs or None)
