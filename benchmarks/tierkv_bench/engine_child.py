"""The engine's process in its benchmark: a loaded model, beside it transformers with the same one, and the cases on request.

Protocol: one JSON object a line. In: `{"case": NAME, …}` with the arguments of that case. Out: `{"event": "ready", …}`, then for each
request its result, or `{"error": TEXT}`. Standard output carries nothing else. Ends when its input ends.

Arguments: model folder, dtype, threads, tokens per block, the first number of new prompts, "reference" or "-".
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

import torch

import tierkv
from tierkv.clock import SystemClock
from tierkv.demo.story import document
from tierkv.engine.engine import Engine, EngineSettings
from tierkv.engine.weights import LoadedModel, load
from tierkv.errors import InvalidRequestError, TierKVError
from tierkv_bench.engine_cases import Bench
from tierkv_bench.engine_load import Prompts, follow, greedy
from tierkv_bench.engine_parity import parity
from tierkv_bench.engine_reference import TransformersReference, max_logit_diff

LOGIT_PROMPTS = (1, 17, 300)
"""Lengths of the prompts whose logits are compared."""
PRIVATE_BYTES = 1 << 30


class Child:
    """One process's model and engine; `open` connects it to a daemon, and to another one later."""

    def __init__(self, model: str, dtype: str, threads: int, block_tokens: int, first: int, *, has_reference: bool) -> None:
        torch.set_num_threads(threads)
        self._clock = SystemClock()
        self._settings = EngineSettings(
            block_tokens=block_tokens, dtype=dtype, num_threads=threads, private_memory_bytes=PRIVATE_BYTES
        )
        self._loaded: LoadedModel = load(model, dtype=dtype)
        tokens = self._loaded.tokenizer(document()).input_ids
        self._prompts = Prompts(tokens, self._loaded.config.vocab_size, first=first)
        self._reference = TransformersReference(model, dtype, self._clock) if has_reference else None
        self._store: Any = None
        self._engine: Engine | None = None
        self._cases: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "describe": self.describe,
            "open": self.open,
            "parity": self.parity,
            "compare": self.compare,
            "prefix": self.prefix,
            "profile": self.profile,
        }

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Runs one case: one of this class, or one of `tierkv_bench.engine_cases.Bench`."""
        name = request.pop("case")
        run = self._cases[name] if name in self._cases else getattr(self._bench(), name)
        result: dict[str, Any] = await run(**request)
        return result

    async def describe(self) -> dict[str, Any]:
        """What the parent sizes daemons by."""
        layout = self._loaded.layout(self._settings.block_tokens)
        return {"page_bytes": layout.block_bytes, "context": self._loaded.config.context_tokens}

    async def open(self, *, run_dir: str) -> dict[str, Any]:
        """Connects to the daemon of `run_dir`, or with "" runs on pages of the engine's own, and warms up."""
        self.close()
        if run_dir:
            self._store = tierkv.connect(run_dir)
        self._engine = Engine(self._loaded, settings=self._settings, store=self._store)
        self._engine.start()
        await self._bench().warm_up(self._reference)
        return {"pages": self._engine.stats().pages_total, "is_private": self._engine.stats().is_private}

    async def parity(self, *, lengths: list[int], new_tokens: int) -> dict[str, Any]:
        """The open engine and one with pages of its own, against transformers; also the logits."""
        reference = self._needed_reference()
        with Engine(self._loaded, settings=self._settings) as private:
            engines = [self._bench().engine, private]
            result = await parity(engines, reference, self._prompts, self._clock, lengths=lengths, new_tokens=new_tokens)
        prompts = [self._prompts.plain(0, length) for length in LOGIT_PROMPTS]
        difference = max_logit_diff(reference, self._loaded, prompts, self._settings.block_tokens)
        return {**result, "max_abs_logit_diff": difference}

    async def compare(self, **arguments: int) -> dict[str, Any]:
        return await self._bench().compare(self._needed_reference(), **arguments)

    async def prefix(self, **arguments: Any) -> dict[str, Any]:
        return await self._bench().prefix(**arguments, reference=self._reference)

    async def profile(self, *, path: str, prompt_len: int, new_tokens: int) -> dict[str, Any]:
        """Writes what all threads did during one request as a Chrome trace."""
        bench = self._bench()
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)  # noqa: SLF001 - the steps are another thread's
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=config) as profiler:
            await follow(bench.engine, self._prompts.fresh(prompt_len), greedy(new_tokens), self._clock)
        profiler.export_chrome_trace(path)
        return {"path": path, "events": len(profiler.events() or ())}

    def close(self) -> None:
        """Ends the engine and its connection."""
        if self._engine is not None:
            self._engine.close()
        if self._store is not None:
            self._store.close()
        self._engine = self._store = None

    def _bench(self) -> Bench:
        if self._engine is None:
            raise InvalidRequestError("no engine is open; ask for the case open first")
        return Bench(self._engine, self._prompts, self._clock)

    def _needed_reference(self) -> TransformersReference:
        if self._reference is None:
            raise InvalidRequestError("this process has no reference")
        return self._reference


def main() -> int:
    """Runs the child. Exit code 1 with a line on standard error where the model does not load."""
    model, dtype, threads, block_tokens, first, reference = sys.argv[1:7]
    # Only this protocol may reach standard output, also from C code.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with output:
        clock = SystemClock()
        started_s = clock.monotonic_s()
        try:
            child = Child(model, dtype, int(threads), int(block_tokens), int(first), has_reference=reference == "reference")
        except (TierKVError, OSError, ValueError) as error:
            sys.stderr.write(f"engine: {error}\n")
            return 1
        _say(output, {"event": "ready", "load_s": clock.monotonic_s() - started_s})
        try:
            for line in sys.stdin:
                _say(output, _answer(child, json.loads(line)))
        finally:
            child.close()
    return 0


def _answer(child: Child, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return asyncio.run(child.answer(request))
    except TierKVError as error:
        return {"error": str(error)}


def _say(output: TextIO, message: dict[str, Any]) -> None:
    output.write(json.dumps(message) + "\n")
    output.flush()


if __name__ == "__main__":
    sys.exit(main())
