"""What one HTTP request has the engine generate: a stream for each prompt, read as one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from tierkv.clock import Clock
from tierkv.engine.sequence import FinishReason, Token
from tierkv.engine.streams import TokenStream
from tierkv.errors import InternalError, UnavailableError
from tierkv.serving.metrics import ServerMetrics
from tierkv.serving.reply import Usage


class Generation:
    """The streams of one HTTP request as one: pairs of a choice's index over all prompts and a token, as they come."""

    def __init__(self, num_choices: int, clock: Clock, metrics: ServerMetrics) -> None:
        self._num_choices = num_choices
        self._clock = clock
        self._metrics = metrics
        self._streams: list[TokenStream] = []
        self._num_tokens = 0
        self._is_cut_off = False
        self._last_at_s: dict[int, float] = {}
        self._arrived_at_s = clock.monotonic_s()

    @property
    def usage(self) -> Usage:
        """So far."""
        requests = [stream.request for stream in self._streams]
        return Usage(
            prompt_tokens=sum(len(request.prompt) for request in requests),
            completion_tokens=self._num_tokens,
            cached_tokens=sum(request.cached_tokens for request in requests),
        )

    def add(self, stream: TokenStream) -> None:
        """Streams are of prompts in their order."""
        self._streams.append(stream)

    async def tokens(self) -> AsyncGenerator[tuple[int, Token]]:
        """Raises UnavailableError when the engine stops meanwhile, InternalError when it fails."""
        async with contextlib.aclosing(_merged(self._streams)) as merged:
            async for place, token in merged:
                index = place * self._num_choices + token.choice
                if token.finish_reason is FinishReason.ERROR:
                    raise InternalError("the engine failed; its log says why")
                if token.finish_reason is FinishReason.CANCELLED:
                    raise UnavailableError("the engine is stopping")
                self._note(index, token)
                yield index, token
        if self._is_cut_off:
            raise UnavailableError("the engine is stopping")

    async def cut_off(self) -> None:
        """Ends it before its time: its reader hears of it at the next token."""
        self._is_cut_off = True
        await self._end_streams()

    async def aclose(self) -> None:
        """Ends what has not ended."""
        await self._end_streams()
        self._metrics.note_usage(self.usage)

    async def _end_streams(self) -> None:
        for stream in self._streams:
            await stream.aclose()

    def _note(self, index: int, token: Token) -> None:
        if token.token_id < 0:
            return
        now_s = self._clock.monotonic_s()
        last_at_s = self._last_at_s.get(index)
        self._metrics.note_token(now_s - (self._arrived_at_s if last_at_s is None else last_at_s), is_first=last_at_s is None)
        self._last_at_s[index] = now_s
        self._num_tokens += 1


async def _merged(streams: Sequence[TokenStream]) -> AsyncGenerator[tuple[int, Token]]:
    """Tokens of all streams as they come, each with its stream's place."""
    waits: dict[asyncio.Task[Token | None], int] = {}

    def wait_for(place: int) -> None:
        waits[asyncio.create_task(_next(streams[place]))] = place

    try:
        for place in range(len(streams)):
            wait_for(place)
        while waits:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in done:
                place, token = waits.pop(wait), wait.result()
                if token is not None:
                    wait_for(place)
                    yield place, token
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _next(stream: TokenStream) -> Token | None:
    """None at the end."""
    return await anext(stream, None)
