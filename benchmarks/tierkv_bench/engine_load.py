"""Prompts for the engine's benchmark, and requests whose every token is timed.

A prompt is named by a number: the same number makes the same tokens in every process, and two numbers share no block. So a benchmark
says which prompts are new to the cache and which are not, also after a restart.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tierkv.clock import Clock
from tierkv.engine.sampling import SamplingParams
from tierkv.errors import InternalError

LOOK_EVERY = 16
"""Tokens between two looks at an engine's totals, which cost more than a token's arrival."""
NUMBER_TOKENS = 4
"""Leading tokens that say a prompt's number."""


class Token(Protocol):
    """What is looked at of `tierkv.engine.engine.Token`."""

    @property
    def token_id(self) -> int: ...

    @property
    def finish_reason(self) -> str | None: ...


class Stats(Protocol):
    """What is looked at of `tierkv.engine.engine.EngineStats`; totals since the start."""

    @property
    def hit_tokens(self) -> dict[str, int]: ...

    @property
    def pages_copied(self) -> int: ...

    @property
    def pages_held(self) -> int: ...

    @property
    def preemptions(self) -> int: ...


class Subject(Protocol):
    """The engine, as far as a benchmark needs it."""

    def generate(self, prompt: Sequence[int], params: SamplingParams, *, priority: int = 0) -> AsyncIterator[Token]: ...

    def stats(self) -> Stats: ...


class Prompts:
    """Numbered prompts out of a text. tokens — the text's ids, at least one; vocabulary — ids below it may stand for a number."""

    def __init__(self, tokens: Sequence[int], vocabulary: int, *, first: int = 0) -> None:
        self._tokens = tuple(tokens)
        self._vocabulary = vocabulary
        self._numbers = itertools.count(first)

    def numbered(self, number: int, length: int) -> list[int]:
        """Prompt `number` of `length` tokens: its number as tokens, then text, repeated where it is too short."""
        digits = [number // self._vocabulary**place % self._vocabulary for place in range(NUMBER_TOKENS)]
        text = itertools.islice(itertools.cycle(self._tokens), max(0, length - NUMBER_TOKENS))
        return [*digits, *text][:length]

    def fresh(self, length: int) -> list[int]:
        """The next number's prompt."""
        return self.numbered(next(self._numbers), length)

    def plain(self, offset: int, length: int) -> list[int]:
        """Text only, from token `offset` on."""
        return list(itertools.islice(itertools.cycle(self._tokens), offset, offset + length))


@dataclass(frozen=True, slots=True)
class Timeline:
    """One answered request: when it was asked for, and when each of its tokens arrived, in seconds of one clock."""

    prompt_tokens: int
    started_s: float
    times_s: tuple[float, ...]
    token_ids: tuple[int, ...]

    @property
    def ttft_s(self) -> float:
        """From the request to its first token."""
        return self.times_s[0] - self.started_s

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Between each token and the next."""
        return tuple(later - earlier for earlier, later in itertools.pairwise(self.times_s))


async def follow(
    engine: Subject,
    prompt: Sequence[int],
    params: SamplingParams,
    clock: Clock,
    *,
    priority: int = 0,
    look: Callable[[], None] | None = None,
) -> Timeline:
    """Asks for one answer. look — called now and then while it is given.

    Raises InternalError where the engine does not give all of it: that is no measurement.
    """
    started_s = clock.monotonic_s()
    times_s: list[float] = []
    token_ids: list[int] = []
    reason: str | None = None
    async for token in engine.generate(prompt, params, priority=priority):
        times_s.append(clock.monotonic_s())
        token_ids.append(token.token_id)
        reason = token.finish_reason
        if look is not None and len(times_s) % LOOK_EVERY == 1:
            look()
    if len(token_ids) != params.max_tokens:
        raise InternalError("an answer is not whole", wanted=params.max_tokens, got=len(token_ids), finish_reason=reason)
    return Timeline(len(prompt), started_s, tuple(times_s), tuple(token_ids))


async def follow_all(
    engine: Subject,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    clock: Clock,
    *,
    look: Callable[[], None] | None = None,
) -> list[Timeline]:
    """Asks for all of them at once."""
    return list(await asyncio.gather(*(follow(engine, prompt, params, clock, look=look) for prompt in prompts)))


def greedy(new_tokens: int) -> SamplingParams:
    """Exactly so many tokens, the likeliest each time."""
    return SamplingParams(max_tokens=new_tokens, ignore_eos=True)


def prefill_tok_s(timelines: Sequence[Timeline]) -> float:
    """Prompt tokens of requests that were made at once, a second until the last of them had its first token."""
    started_s = min(timeline.started_s for timeline in timelines)
    return sum(timeline.prompt_tokens for timeline in timelines) / (max(line.times_s[0] for line in timelines) - started_s)


def decode_tok_s(timelines: Sequence[Timeline]) -> float:
    """Tokens a second once all of these requests had their first one; where one had ended by then, from the first one's first on."""
    all_started_s = max(timeline.times_s[0] for timeline in timelines)
    ended_s = max(timeline.times_s[-1] for timeline in timelines)
    if any(timeline.times_s[-1] <= all_started_s for timeline in timelines):
        all_started_s = min(timeline.times_s[0] for timeline in timelines)
    num_tokens = sum(time_s > all_started_s for timeline in timelines for time_s in timeline.times_s)
    return num_tokens / (ended_s - all_started_s) if num_tokens else 0.0


def percentiles_ms(name: str, times_s: Sequence[float]) -> dict[str, float | None]:
    """NAME_ms_p50, NAME_ms_p95 and NAME_ms_p99; None where there is nothing to tell."""
    fields = {f"{name}_ms_p{percent}": percent for percent in (50, 95, 99)}
    if not times_s:
        return dict.fromkeys(fields)
    return {field: round(1e3 * float(np.percentile(times_s, percent)), 3) for field, percent in fields.items()}


def median(values: Sequence[float]) -> float:
    return float(np.median(values))
