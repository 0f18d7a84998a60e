"""Whether the engine says what transformers says: greedy answers token for token, all prompts mixed into one load, and each alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tierkv.clock import Clock
from tierkv_bench.engine_cases import Reference
from tierkv_bench.engine_load import Prompts, Subject, follow, follow_all, greedy

STEP_TOKENS = 61
"""Each prompt begins so far behind the one before, so that none is the prefix of another."""


async def parity(
    engines: Sequence[Subject], reference: Reference, prompts: Prompts, clock: Clock, *, lengths: Sequence[int], new_tokens: int
) -> dict[str, Any]:
    """Asks every engine for all prompts at once and then for each alone, which finds its prompt's pages.

    `identical` counts the prompts that every engine answered both times as the reference does; `different` names the others by length.
    """
    asked = [prompts.plain(idx * STEP_TOKENS, length) for idx, length in enumerate(lengths)]
    expected = [reference.answer(prompt, new_tokens).token_ids for prompt in asked]
    is_same = [True] * len(asked)
    for engine in engines:
        mixed = await follow_all(engine, asked, greedy(new_tokens), clock)
        alone = [await follow(engine, prompt, greedy(new_tokens), clock) for prompt in asked]
        for idx, answers in enumerate(zip(mixed, alone, strict=True)):
            is_same[idx] &= all(line.token_ids == expected[idx] for line in answers)
    return {
        "prompts": len(asked),
        "identical": sum(is_same),
        "different": [length for length, same in zip(lengths, is_same, strict=True) if not same],
        "new_tokens": new_tokens,
    }
