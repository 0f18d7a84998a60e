"""What the engine's benchmark measures, each case against a running engine and, where there is one, a reference that takes turns with it.

All cases run inside the engine's process, so subject and reference share its threads and its minute. Prompts are new to the cache unless a case
says otherwise. `benchmarks/tierkv_bench/engine.py` says in which order they run, and what happens to processes in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tierkv.clock import Clock
from tierkv.errors import InternalError
from tierkv_bench.engine_load import (
    Prompts,
    Stats,
    Subject,
    Timeline,
    decode_tok_s,
    follow,
    follow_all,
    greedy,
    median,
    percentiles_ms,
    prefill_tok_s,
)

SETTLE_TOKENS = 8
"""Tokens of an answer after which it counts as running."""


class Reference(Protocol):
    """Another engine that answers one prompt at a time: transformers."""

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Timeline:
        """Greedy, exactly so many tokens."""
        ...

    def hold(self, prompt: Sequence[int]) -> None:
        """Computes `prompt` and keeps its keys and values in its own memory."""
        ...

    def continue_held(self, suffix: Sequence[int]) -> float:
        """Seconds that the first token takes when `suffix` follows what is held."""
        ...


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine, its prompts, and the clock that times both sides."""

    engine: Subject
    prompts: Prompts
    clock: Clock

    async def warm_up(self, reference: Reference | None = None) -> None:
        """Short answers, so that no case pays for the first use of anything."""
        for length in (8, 40):
            await self._follow(self.prompts.fresh(length), 4)
            if reference is not None:
                reference.answer(self.prompts.fresh(length), 4)

    async def compare(self, reference: Reference, *, prompt_len: int, new_tokens: int, rounds: int) -> dict[str, Any]:
        """One stream beside the reference, round by round: `transformers`, `run`, and the ratios `prefill` and `decode`."""
        ours: list[Timeline] = []
        theirs: list[Timeline] = []
        watch = Watch(self.engine)
        for _ in range(rounds):
            theirs.append(reference.answer(self.prompts.fresh(prompt_len), new_tokens))
            ours.append(await self._follow(self.prompts.fresh(prompt_len), new_tokens, watch))
        pairs = list(zip(ours, theirs, strict=True))
        return {
            "transformers": {
                "prompt_len": prompt_len,
                "prefill_tok_s": round(median([prefill_tok_s([line]) for line in theirs]), 3),
                "decode_tok_s": round(median([decode_tok_s([line]) for line in theirs]), 3),
                **percentiles_ms("ttft", [line.ttft_s for line in theirs]),
            },
            "run": describe([[line] for line in ours], watch, prompt_len=prompt_len, new_tokens=new_tokens),
            "prefill": median([line.ttft_s / own.ttft_s for own, line in pairs]),
            "decode": median([decode_tok_s([own]) / decode_tok_s([line]) for own, line in pairs]),
        }

    async def load(self, *, batch: int, prompt_len: int, new_tokens: int, rounds: int) -> dict[str, Any]:
        """`batch` requests at once, new ones (`cold`) and then the same again (`warm`), whose prompts are on the device by now."""
        prompts = [[self.prompts.fresh(prompt_len) for _ in range(batch)] for _ in range(rounds)]
        watch = Watch(self.engine)
        cold = [await self._follow_all(asked, new_tokens, watch) for asked in prompts]
        runs = {"cold": describe(cold, watch, prompt_len=prompt_len, new_tokens=new_tokens)}
        watch = Watch(self.engine)
        warm = [await self._follow_all(asked, new_tokens, watch) for asked in prompts]
        runs["warm"] = describe(warm, watch, prompt_len=prompt_len, new_tokens=new_tokens)
        return runs

    async def streams(self, *, batch: int, prompt_len: int, new_tokens: int, rounds: int) -> dict[str, Any]:
        """`batch` new requests at once against as many one after another: the ratio of the times, `streams`."""
        ratios = []
        for _ in range(rounds):
            started_s = self.clock.monotonic_s()
            for _ in range(batch):
                await self._follow(self.prompts.fresh(prompt_len), new_tokens)
            one_by_one_s = self.clock.monotonic_s() - started_s
            lines = await self._follow_all([self.prompts.fresh(prompt_len) for _ in range(batch)], new_tokens)
            together_s = max(line.times_s[-1] for line in lines) - min(line.started_s for line in lines)
            ratios.append(one_by_one_s / together_s)
        return {"streams": median(ratios)}

    async def fill(self, *, numbers: Sequence[int], prompt_len: int) -> dict[str, Any]:
        """Asks for the numbered prompts, so that the cache has them; `ttft_ms` is what each cost cold."""
        lines = [await self._follow(self.prompts.numbered(number, prompt_len), 1) for number in numbers]
        return {"ttft_ms": [1e3 * line.ttft_s for line in lines]}

    async def prefix(
        self, *, numbers: Sequence[int], prefix_len: int, suffix_len: int, reference: Reference | None = None
    ) -> dict[str, Any]:
        """Numbered prompts that the cache has, each with a new suffix, in turns with such a suffix alone: `ratio` of times to first token.

        With a reference also `held_ratio`: to its time for a suffix behind a prefix whose keys and values it never let go of.
        """
        held_s: list[float] = []
        if reference is not None:
            reference.hold(self.prompts.fresh(prefix_len))
        with_prefix: list[Timeline] = []
        alone: list[Timeline] = []
        spent = Tally()
        for number in numbers:
            suffix = self.prompts.fresh(suffix_len)
            if reference is not None:
                held_s.append(reference.continue_held(self.prompts.fresh(suffix_len)))
            alone.append(await self._follow(self.prompts.fresh(suffix_len), 1))
            watch = Watch(self.engine)
            with_prefix.append(await self._follow([*self.prompts.numbered(number, prefix_len), *suffix], 1, watch))
            spent.add(watch)
        pairs = zip(with_prefix, alone, strict=True)
        held = zip(with_prefix, held_s, strict=False)
        return {
            "ratio": median([own.ttft_s / bare.ttft_s for own, bare in pairs]),
            "held_ratio": median([own.ttft_s / time_s for own, time_s in held]) if held_s else None,
            "suffix_ttft_ms": round(1e3 * median([line.ttft_s for line in alone]), 3),
            "run": describe([[line] for line in with_prefix], spent, prompt_len=prefix_len + suffix_len, new_tokens=1),
        }

    async def preempt(self, *, prompt_len: int, new_tokens: int, rounds: int) -> dict[str, Any]:
        """A request that has to give its pages to a more urgent one and takes them back: `ratio` of computing such a prompt to resuming it.

        Resuming counts from the urgent request's last token to the next of the other, restoring included. The urgent one is as long and new,
        so its time to first token is what recomputing would cost, in the same minute. Raises InternalError where nothing was preempted.
        """
        ratios: list[float] = []
        resumed_s: list[float] = []
        watch = Watch(self.engine)
        for _ in range(rounds):
            before = watch.preemptions
            patient, urgent = await self._one_preemption(prompt_len, new_tokens)
            resumed_at_s = next((time_s for time_s in patient.times_s if time_s > urgent.times_s[-1]), None)
            if resumed_at_s is None or watch.preemptions == before:
                raise InternalError("the more urgent request took no pages", preemptions=watch.preemptions)
            resumed_s.append(resumed_at_s - urgent.times_s[-1])
            ratios.append(urgent.ttft_s / resumed_s[-1])
        return {
            "ratio": median(ratios),
            "resume_ms": round(1e3 * median(resumed_s), 3),
            "prompt_len": prompt_len,
            "rounds": rounds,
            **watch.fields(),
        }

    async def _follow(self, prompt: Sequence[int], new_tokens: int, watch: Watch | None = None) -> Timeline:
        return await follow(self.engine, prompt, greedy(new_tokens), self.clock, look=watch.look if watch else None)

    async def _follow_all(self, prompts: Sequence[Sequence[int]], new_tokens: int, watch: Watch | None = None) -> list[Timeline]:
        return await follow_all(self.engine, prompts, greedy(new_tokens), self.clock, look=watch.look if watch else None)

    async def _one_preemption(self, prompt_len: int, new_tokens: int) -> tuple[Timeline, Timeline]:
        running = asyncio.Event()
        patient = asyncio.create_task(
            follow(Noticing(self.engine, running), self.prompts.fresh(prompt_len), greedy(new_tokens), self.clock)
        )
        started = asyncio.create_task(running.wait())
        await asyncio.wait({patient, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        urgent = await follow(self.engine, self.prompts.fresh(prompt_len), greedy(4), self.clock, priority=10)
        return await patient, urgent


class Noticing:
    """An engine that sets an event once an answer has SETTLE_TOKENS tokens."""

    def __init__(self, engine: Subject, running: asyncio.Event) -> None:
        self._engine = engine
        self._running = running

    async def generate(self, prompt: Sequence[int], params: Any, *, priority: int = 0) -> Any:
        num_tokens = 0
        async for token in self._engine.generate(prompt, params, priority=priority):
            num_tokens += 1
            if num_tokens == SETTLE_TOKENS:
                self._running.set()
            yield token

    def stats(self) -> Stats:
        return self._engine.stats()


class Watch:
    """What an engine's totals grew by since this was made."""

    def __init__(self, engine: Subject) -> None:
        self._engine = engine
        stats = engine.stats()
        self._hit_tokens = dict(stats.hit_tokens)
        self._pages_copied = stats.pages_copied
        self._preemptions = stats.preemptions
        self.peak_pages = stats.pages_held

    def look(self) -> None:
        """Takes note of the pages that are held now."""
        self.peak_pages = max(self.peak_pages, self._engine.stats().pages_held)

    @property
    def hit_tokens(self) -> dict[str, int]:
        now = self._engine.stats().hit_tokens
        return {tier: num_tokens - self._hit_tokens.get(tier, 0) for tier, num_tokens in now.items()}

    @property
    def pages_copied(self) -> int:
        return self._engine.stats().pages_copied - self._pages_copied

    @property
    def preemptions(self) -> int:
        return self._engine.stats().preemptions - self._preemptions

    def fields(self) -> dict[str, Any]:
        return {"pages_copied": self.pages_copied, "peak_pages": self.peak_pages, "preemptions": self.preemptions}


class Tally:
    """Several watches added up."""

    def __init__(self) -> None:
        self.hit_tokens: dict[str, int] = {}
        self.pages_copied = 0
        self.preemptions = 0
        self.peak_pages = 0

    def add(self, watch: Watch) -> None:
        for tier, num_tokens in watch.hit_tokens.items():
            self.hit_tokens[tier] = self.hit_tokens.get(tier, 0) + num_tokens
        self.pages_copied += watch.pages_copied
        self.preemptions += watch.preemptions
        self.peak_pages = max(self.peak_pages, watch.peak_pages)

    def fields(self) -> dict[str, Any]:
        return {"pages_copied": self.pages_copied, "peak_pages": self.peak_pages, "preemptions": self.preemptions}


SLOWEST_FIRST = ("disk", "host", "device")


def describe(rounds: Sequence[Sequence[Timeline]], watch: Watch | Tally, *, prompt_len: int, new_tokens: int) -> dict[str, Any]:
    """One entry of `runs`. rounds — of each round the requests that ran at once. prefix_tier — the slowest that tokens came from. What there
    is no second token for is None.
    """
    lines = [line for together in rounds for line in together]
    asked = sum(line.prompt_tokens for line in lines)
    hits = {tier: watch.hit_tokens.get(tier, 0) for tier in reversed(SLOWEST_FIRST)}
    return {
        "batch": len(rounds[0]),
        "prompt_len": prompt_len,
        "new_tokens": new_tokens,
        "rounds": len(rounds),
        "prefill_tok_s": round(median([prefill_tok_s(together) for together in rounds]), 3),
        "decode_tok_s": round(median([decode_tok_s(together) for together in rounds]), 3) if new_tokens > 1 else None,
        **percentiles_ms("ttft", [line.ttft_s for line in lines]),
        **percentiles_ms("itl", [gap_s for line in lines for gap_s in line.gaps_s]),
        "prefix_tier": next((tier for tier in SLOWEST_FIRST if hits[tier]), None),
        **{f"{tier}_hit": round(num_tokens / asked, 4) for tier, num_tokens in hits.items()},
        **watch.fields(),
    }
