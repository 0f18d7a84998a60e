"""transformers beside the engine: the same weights, dtype and threads, one prompt at a time, every token timed; and the logits of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from tierkv.clock import Clock
from tierkv.demo.model import quiet_transformers
from tierkv.engine.memory import PageMemory
from tierkv.engine.model import Span, Transformer
from tierkv.engine.weights import LoadedModel
from tierkv.pages import Pool
from tierkv_bench.engine_load import Timeline


class Ticks(BaseStreamer):
    """Notes when each new token arrives; the prompt is put before them."""

    def __init__(self, clock: Clock) -> None:
        self.times_s: list[float] = []
        self._clock = clock
        self._seen_prompt = False

    def put(self, value: torch.Tensor) -> None:
        del value
        if self._seen_prompt:
            self.times_s.append(self._clock.monotonic_s())
        self._seen_prompt = True

    def end(self) -> None:
        """Nothing to flush."""


class TransformersReference:
    """A model of a local folder, by transformers' own `generate`."""

    def __init__(self, folder: str, dtype: str, clock: Clock) -> None:
        from transformers import AutoModelForCausalLM

        with quiet_transformers():
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
        self._model = model.eval()
        # The benchmark wants so many tokens, whatever they are.
        self._model.generation_config.eos_token_id = None
        self._clock = clock
        self._held: Any = None

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Timeline:
        """Greedy, exactly so many tokens."""
        ids = torch.tensor([list(prompt)])
        ticks = Ticks(self._clock)
        started_s = self._clock.monotonic_s()
        sequences = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=ticks,
        )
        return Timeline(len(prompt), started_s, tuple(ticks.times_s), tuple(sequences[0, len(prompt) :].tolist()))

    @torch.inference_mode()
    def hold(self, prompt: Sequence[int]) -> None:
        """Computes `prompt` and keeps its keys and values in this process, for `continue_held`."""
        from transformers import DynamicCache

        self._held = DynamicCache(config=self._model.config)
        self._model(torch.tensor([list(prompt)]), cache=self._held, logits_to_keep=1)

    @torch.inference_mode()
    def continue_held(self, suffix: Sequence[int]) -> float:
        """Seconds of the forward pass of `suffix` behind what is held, which afterwards is as before."""
        ids = torch.tensor([list(suffix)])
        started_s = self._clock.monotonic_s()
        self._model(ids, cache=self._held, logits_to_keep=1).logits.argmax()
        elapsed_s = self._clock.monotonic_s() - started_s
        self._held.crop(-len(suffix))
        return elapsed_s

    @torch.inference_mode()
    def last_logits(self, prompt: Sequence[int]) -> torch.Tensor:
        """Of the prompt's last token, float32, (vocabulary,)."""
        logits: torch.Tensor = self._model(torch.tensor([list(prompt)]), logits_to_keep=1).logits
        return logits[0, -1].float()


def max_logit_diff(
    reference: TransformersReference, loaded: LoadedModel, prompts: Sequence[Sequence[int]], block_tokens: int
) -> float:
    """The largest difference of a logit behind any of the prompts, the engine's forward pass over pages of its own."""
    layout = loaded.layout(block_tokens)
    num_pages = -(-max(len(prompt) for prompt in prompts) // block_tokens)
    buffer = memoryview(bytearray(num_pages * layout.block_bytes))
    model = Transformer(loaded)
    memory = PageMemory(Pool("cpu", layout.block_bytes, num_pages, buffer), layout)
    model.bind(memory)
    worst = 0.0
    for prompt in prompts:
        own = model.forward([Span(list(prompt), 0, list(range(num_pages)), wants_logits=True)])[0]
        worst = max(worst, float((own - reference.last_logits(prompt)).abs().max()))
    memory.close()
    return worst
