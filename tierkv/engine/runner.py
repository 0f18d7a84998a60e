"""One step: plan, forward, sample, and what the drawn tokens mean for their sequences.

A step that fails is repeated slice by slice, so that only the requests that make it fail end with an error; computing a slice again is
harmless, because it writes the same K and V, and a sampler's place in its stream is the number of tokens that were appended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import torch

from tierkv.engine.model import Span
from tierkv.engine.sampling import Sampled, SequenceSampler, sample
from tierkv.engine.scheduler import Scheduler
from tierkv.engine.sequence import FinishReason, LiveSequence, Request, Slice, State, Token

_log = logging.getLogger("tierkv.engine")


class Model(Protocol):
    """The part of `Transformer` that a step needs."""

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        """Logits, float32, (spans that want them, vocab_size), in order."""
        ...


class Runner:
    """eos_token_ids — tokens that end a text."""

    def __init__(self, model: Model, scheduler: Scheduler, *, eos_token_ids: Sequence[int] = ()) -> None:
        self.scheduler = scheduler
        self.counters: Counter[str] = Counter()
        self._model = model
        self._eos_token_ids = frozenset(eos_token_ids)

    def step(self, now_s: float) -> bool:
        """Computes what can be computed now; whether there was something."""
        for request in self.scheduler.due(now_s):
            self.end(request, FinishReason.DEADLINE)
        slices = self.scheduler.plan(now_s)
        if not slices:
            return False
        self.counters["steps"] += 1
        self._compute(slices, now_s)
        self.scheduler.supply.flush()
        return True

    def end(self, request: Request, reason: FinishReason) -> None:
        """Ends all choices that have not ended, without another token; their pages go back at once.

        Called where something has failed, too, so it does not fail itself: whoever waits for the request is told of its end.
        """
        self.counters[f"finished_{reason}"] += 1
        for sequence in request.choices:
            if sequence.is_told:
                continue
            text = ""
            try:
                self.scheduler.finish(sequence)
                text = sequence.text.flush()
            except Exception:
                _log.exception("a request did not end in order: request_id=%r", request.request_id)
            _emit(sequence, Token(sequence.choice, -1, text, finish_reason=reason))

    def _compute(self, slices: list[Slice], now_s: float) -> None:
        slices = [piece for piece in slices if piece.sequence.state is State.RUNNING]
        if not slices:
            return
        try:
            drawn = self._draw(slices)
        except Exception:
            if len(slices) > 1:
                _log.warning("a step of several sequences failed; each is computed alone", exc_info=True)
                for piece in slices:
                    self._compute([piece], now_s)
                return
            request = slices[0].sequence.request
            _log.exception("a request failed: request_id=%r", request.request_id)
            self.end(request, FinishReason.ERROR)
            return
        for piece, sampled in zip(slices, drawn, strict=True):
            # A sequence may have ended by what another choice of its request did.
            if piece.sequence.state is State.RUNNING:
                self._take(piece, sampled, now_s)

    def _draw(self, slices: list[Slice]) -> list[list[Sampled]]:
        """What was drawn for each slice: nothing, one token, or one for each choice where a prompt ends."""
        spans = [_span(piece) for piece in slices]
        logits = self._model.forward(spans)
        samplers: list[SequenceSampler] = []
        rows: list[int] = []
        counts: list[int] = []
        num_rows = 0
        for piece in slices:
            own = _samplers(piece) if piece.wants_logits else []
            rows += [num_rows] * len(own)
            samplers += own
            counts.append(len(own))
            num_rows += piece.wants_logits
        if len(rows) != logits.shape[0]:
            logits = logits[torch.tensor(rows, device=logits.device)]
        drawn = iter(sample(logits, samplers))
        return [[next(drawn) for _ in range(count)] for count in counts]

    def _take(self, piece: Slice, sampled: list[Sampled], now_s: float) -> None:
        sequence = piece.sequence
        self.counters["computed_tokens"] += piece.stop - piece.start
        try:
            self.scheduler.advance(piece)
            if len(sampled) > 1:
                self._begin_choices(sequence, sampled[1:], now_s)
            if sampled:
                self._append(sequence, sampled[0])
                sequence.request.is_prompt_done = True
        except Exception:
            _log.exception("a request failed: request_id=%r", sequence.request.request_id)
            self.end(sequence.request, FinishReason.ERROR)

    def _begin_choices(self, first: LiveSequence, sampled: Sequence[Sampled], now_s: float) -> None:
        for other, drawn in zip(first.request.choices[1:], sampled, strict=True):
            self._append(other, drawn)
            if other.state is not State.FINISHED:
                self.scheduler.fork(first, other, now_s)

    def _append(self, sequence: LiveSequence, drawn: Sampled) -> None:
        sequence.tokens.append(drawn.token_id)
        sequence.sampler.note(drawn.token_id)
        text, reason = self._read(sequence, drawn.token_id)
        self.counters["generated_tokens"] += 1
        if reason is not None:
            self.scheduler.finish(sequence)
            if sequence.request.is_finished:
                self.counters[f"finished_{reason}"] += 1
        _emit(sequence, Token(sequence.choice, drawn.token_id, text, drawn.logprob, drawn.top, reason))

    def _read(self, sequence: LiveSequence, token_id: int) -> tuple[str, FinishReason | None]:
        """The text that a token adds, and whether it is the last one."""
        params = sequence.request.params
        if token_id in params.stop_token_ids or (not params.ignore_eos and token_id in self._eos_token_ids):
            return sequence.text.flush(), FinishReason.STOP
        delta = sequence.text.push(token_id)
        if delta.is_stopped:
            return delta.text, FinishReason.STOP
        if len(sequence.tokens) >= sequence.length_limit:
            return delta.text + sequence.text.flush(), FinishReason.LENGTH
        return delta.text, None


def _emit(sequence: LiveSequence, token: Token) -> None:
    sequence.is_told = token.finish_reason is not None
    sequence.request.emit(token)


def _span(piece: Slice) -> Span:
    sequence = piece.sequence
    return Span(sequence.tokens[piece.start : piece.stop], piece.start, sequence.pages, piece.wants_logits)


def _samplers(piece: Slice) -> list[SequenceSampler]:
    request = piece.sequence.request
    if request.is_prompt_done:
        return [piece.sequence.sampler]
    return [sequence.sampler for sequence in request.choices]
