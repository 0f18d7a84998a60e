"""The child process of the demo: loads the model, attaches it to the daemon, answers requests.

Protocol: one JSON object a line. In: `{"question": …, "document": …, "new_tokens": N}`. Out: `{"event": "loading"}`, `{"event":
"ready", …}`, then for each request one `Answer`. Standard output carries nothing else; whatever libraries print goes to standard
error. Ends when its input ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers.generation.streamers import BaseStreamer

import tierkv
from tierkv.clock import SystemClock
from tierkv.demo.child import Answer
from tierkv.demo.model import load_model, load_tokenizer
from tierkv.errors import TierKVError
from tierkv.integrations.transformers import Attachment, attach

WARM_UP = "A short line about the weather, only there to wake up every part that the first real answer will need. " * 2
TEMPLATE_TOKENS = 64
"""Room for what a chat template adds around the prompt."""

_clock = SystemClock()


class FirstToken(BaseStreamer):
    """Notes when the first new token arrives; the prompt is put before it."""

    def __init__(self) -> None:
        self.at_s: float | None = None
        self._seen_prompt = False

    def put(self, value: torch.Tensor) -> None:
        del value
        if self._seen_prompt and self.at_s is None:
            self.at_s = _clock.monotonic_s()
        self._seen_prompt = True

    def end(self) -> None:
        """Nothing to flush."""


class Engine:
    """A loaded model beside a store."""

    def __init__(self, model: Any, tokenizer: Any, attachment: Attachment) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._attachment = attachment

    def warm_up(self) -> None:
        """Answers a short unrelated prompt, so that cold and restored answers both find a process that has computed before."""
        self._generate(torch.tensor([self._tokenizer(WARM_UP)["input_ids"]]), new_tokens=4)

    def answer(self, document: str, question: str, new_tokens: int) -> Answer:
        """Answers greedily. The document is cut where the model's context would not hold it."""
        prompt = self._prompt(self._fitting(document, question, new_tokens), question)
        sequence, ttft_ms = self._generate(prompt, new_tokens)
        last = self._attachment.last
        token_ids = sequence[prompt.shape[1] :].tolist()
        return Answer(
            ttft_ms=round(ttft_ms, 3),
            restore_ms=round(last.restore_s * 1e3, 3),
            prompt_tokens=prompt.shape[1],
            restored_tokens=last.restored_tokens,
            tier=last.tier.value if last.tier is not None else None,
            saved_blocks=last.saved_blocks,
            token_ids=token_ids,
            text=self._tokenizer.decode(token_ids, skip_special_tokens=True).strip(),
        )

    def _generate(self, prompt: torch.Tensor, new_tokens: int) -> tuple[torch.Tensor, float]:
        first = FirstToken()
        pad = self._tokenizer.pad_token_id if self._tokenizer.pad_token_id is not None else self._tokenizer.eos_token_id
        started_s = _clock.monotonic_s()
        sequences = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=pad,
            streamer=first,
        )
        arrived_s = first.at_s if first.at_s is not None else _clock.monotonic_s()
        return sequences[0], (arrived_s - started_s) * 1e3

    def _prompt(self, document: str, question: str) -> torch.Tensor:
        text = f"{document}\n\n{question}"
        if getattr(self._tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": text}]
            encoded = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        else:
            encoded = self._tokenizer(text)
        return torch.tensor([encoded["input_ids"]])

    def _fitting(self, document: str, question: str, new_tokens: int) -> str:
        context = getattr(self._model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        token_ids = self._tokenizer(document)["input_ids"]
        if context is None:
            return document
        room = int(context) - new_tokens - len(self._tokenizer(question)["input_ids"]) - TEMPLATE_TOKENS
        if len(token_ids) <= room:
            return document
        return str(self._tokenizer.decode(token_ids[: max(room, 1)], skip_special_tokens=True))


def main() -> int:
    """Runs the child. Arguments: model folder, run folder of the daemon, tokens per block. Exit code 1 with a line on standard error."""
    folder, run_folder, block_tokens = sys.argv[1:4]
    # Only this protocol may reach standard output, also from C code.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        with output:
            _serve(output, Path(folder), Path(run_folder), int(block_tokens))
    except (TierKVError, OSError, ValueError) as error:
        sys.stderr.write(f"engine: {error}\n")
        return 1
    return 0


def _serve(output: TextIO, folder: Path, run_folder: Path, block_tokens: int) -> None:
    _say(output, {"event": "loading"})
    started_s = _clock.monotonic_s()
    model = load_model(folder)
    tokenizer = load_tokenizer(folder)
    store = tierkv.connect(run_folder)
    attachment = attach(model, store, block_tokens=block_tokens)
    try:
        engine = Engine(model, tokenizer, attachment)
        engine.warm_up()
        _say(output, {"event": "ready", "load_s": _clock.monotonic_s() - started_s, "refusal": attachment.refusal})
        for line in sys.stdin:
            request = json.loads(line)
            answer = engine.answer(request["document"], request["question"], int(request["new_tokens"]))
            _say(output, dataclasses.asdict(answer))
    finally:
        attachment.close()
        store.close()


def _say(output: TextIO, message: dict[str, object]) -> None:
    output.write(json.dumps(message) + "\n")
    output.flush()


if __name__ == "__main__":
    sys.exit(main())
