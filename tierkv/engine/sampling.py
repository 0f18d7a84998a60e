"""From logits to token ids: repetition penalty, temperature, top-k, top-p and min-p, in this order and as transformers defines them.

A sequence's random stream is a function of (seed, choice, position) and of nothing else: no generator is kept, so a sequence draws
alike whatever else is in its batch, and goes on alike after a preemption or a restart. One uniform number makes one token, by the
inverse of the distribution's cumulative sum.

Log-probabilities are of the model's own distribution, before penalty, temperature and filters.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tierkv.errors import DataError, InvalidRequestError

GREEDY_BELOW = 1e-3
"""A temperature below this one is greedy: dividing by it would leave the range of float32 and change nothing else."""
MAX_TOKENS = 2**31 - 1
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_CHOICES = 128
MAX_LOGPROBS = 20
_UNIFORM_BITS = 52
"""One less than a float64 holds, so that a uniform number times a sum is below the sum after rounding too."""
_NUCLEUS_HEAD = 1024
"""Candidates that top-p looks at before it sorts a row's whole vocabulary, at a ninth of the time; a flat row needs more."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request asks of sampling. Raises InvalidRequestError, naming field, value and range.

    temperature — 0 is greedy. top_k — 0 is off. top_p, repetition_penalty — 1 is off. min_p — share of the likeliest token's
    probability that a token needs; 0 is off. stop — strings that end the text and are not shown. stop_token_ids — beside those of
    the model; ignore_eos drops the model's. seed — None: one is drawn. n — choices. logprobs — alternatives told beside each token's
    own log-probability; None: no log-probabilities.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None

    def __post_init__(self) -> None:
        check_integer("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        check_number("temperature", self.temperature, 0, 100)
        check_integer("top_k", self.top_k, 0, MAX_TOKENS)
        check_number("top_p", self.top_p, 1e-6, 1)
        check_number("min_p", self.min_p, 0, 1)
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        check_integer("n", self.n, 1, MAX_CHOICES)
        if self.seed is not None:
            check_integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError("ignore_eos is true or false", field="ignore_eos", value=self.ignore_eos)
        for token_id in self.stop_token_ids:
            check_integer("stop_token_ids", token_id, 0, MAX_TOKENS)
        _check_stop(self.stop)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def check_integer(field: str, value: object, lowest: int, highest: int) -> None:
    """Raises InvalidRequestError, naming the field, unless `value` is an integer in [lowest, highest]."""
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidRequestError(f"{field} is an integer between {lowest} and {highest}", field=field, value=value)


def check_number(field: str, value: object, lowest: float, highest: float) -> None:
    """Raises InvalidRequestError, naming the field, unless `value` is a number in [lowest, highest]."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidRequestError(f"{field} is a number between {lowest:g} and {highest:g}", field=field, value=value)


def _check_stop(stop: object) -> None:
    if not isinstance(stop, tuple) or len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"stop holds at most {MAX_STOP_STRINGS} strings", field="stop", value=stop)
    for text in stop:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise InvalidRequestError(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters", field="stop", value=text)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One drawn token. logprob, top — only where asked for: its log-probability, and the likeliest tokens with theirs, best first."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class SequenceSampler:
    """What sampling knows of one sequence: its place in the random stream, and the tokens that were seen.

    seed — the request's, or a drawn one. choice — index of the sequence among the request's n; each has a stream of its own.
    """

    def __init__(self, params: SamplingParams, *, seed: int, prompt_ids: Sequence[int], choice: int = 0) -> None:
        self.params = params
        self._seed = seed
        self._choice = choice
        self._position = 0
        # A dict keeps the order of first sight, and costs nothing for the many requests without a penalty.
        self._seen = dict.fromkeys(prompt_ids) if params.repetition_penalty != 1 else None

    @property
    def seen_ids(self) -> list[int]:
        """The tokens that a penalty falls on, each once; empty where there is no penalty."""
        return list(self._seen or ())

    def note(self, token_id: int) -> None:
        """A token was appended to the sequence: the stream moves on by one, and the token counts as seen."""
        self._position += 1
        if self._seen is not None:
            self._seen[token_id] = None

    def uniform(self) -> float:
        """The number in [0, 1) of the present position; the same at each call until `note`."""
        words = struct.pack("<QQQ", self._seed % 2**64, self._choice, self._position)
        digest = hashlib.blake2b(words, digest_size=8, person=b"tierkv sampling").digest()
        return (int.from_bytes(digest, "little") >> (64 - _UNIFORM_BITS)) * 2.0**-_UNIFORM_BITS


@torch.inference_mode()
def sample(logits: torch.Tensor, samplers: Sequence[SequenceSampler]) -> list[Sampled]:
    """One token for each row. Changes neither logits nor samplers: the caller calls `note` when it appends the token.

    logits — (len(samplers), vocab_size), float32, any device. Greedy rows share one argmax; the others are drawn together. Raises
    DataError where a row is not of numbers: its weights, or the keys and values it saw, are not.
    """
    assert logits.shape[0] == len(samplers), "one sampler a row"
    if not samplers:
        return []
    scores = _penalised(logits, samplers)
    highest, chosen = scores.max(dim=-1)
    if not highest.isfinite().all():
        raise DataError("the model computed logits that are no numbers; check its weights")
    drawn = [row for row, sampler in enumerate(samplers) if not sampler.params.is_greedy]
    if drawn:
        of_drawn = [samplers[row] for row in drawn]
        chosen[drawn] = _draw(filtered(scores[drawn], [sampler.params for sampler in of_drawn]), of_drawn)
    token_ids = chosen.tolist()
    told = [row for row, sampler in enumerate(samplers) if sampler.params.logprobs is not None]
    if not told:
        return [Sampled(token_id) for token_id in token_ids]
    return _with_logprobs(logits, samplers, token_ids, told)


def filtered(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The scores by temperature, and -inf for what top-k, top-p and min-p take out. scores — (len(params), vocab_size)."""
    scores = scores / _column(scores, [of_row.temperature for of_row in params])
    for name, off, keep in (("top_k", 0, _keep_top_k), ("top_p", 1, _keep_top_p), ("min_p", 0, _keep_min_p)):
        values = [getattr(of_row, name) for of_row in params]
        rows = [row for row, value in enumerate(values) if value != off]
        if rows:
            scores[rows] = keep(scores[rows], _column(scores, [values[row] for row in rows]))
    return scores


def _column(like: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype if isinstance(values[0], float) else None)[:, None]


def _keep_top_k(scores: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """What equals the last of the k stays too, as in transformers."""
    counts = top_k.clamp(max=scores.shape[-1])
    lowest = scores.topk(int(counts.max())).values.gather(-1, counts - 1)
    return scores.masked_fill(scores < lowest, -math.inf)


def _keep_top_p(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The likeliest tokens before which less than top_p of the mass lies; what is exactly as likely as the last of them stays too."""
    probabilities = scores.softmax(dim=-1)
    head = probabilities.topk(min(_NUCLEUS_HEAD, scores.shape[-1])).values
    lowest = _last_of_nucleus(head, top_p)
    flat = (head.sum(dim=-1) < top_p[:, 0]).nonzero()[:, 0]
    if len(flat):
        lowest[flat] = _last_of_nucleus(probabilities[flat].sort(dim=-1, descending=True).values, top_p[flat])
    return scores.masked_fill(probabilities < lowest, -math.inf)


def _last_of_nucleus(falling: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """falling — (rows, any), probabilities in falling order; (rows, 1), the smallest that stays."""
    mass = falling.cumsum(dim=-1, dtype=torch.float64)
    num_kept = 1 + (mass[:, :-1] < top_p).sum(dim=-1, keepdim=True)
    return falling.gather(-1, num_kept - 1)


def _keep_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    probabilities = scores.softmax(dim=-1)
    return scores.masked_fill(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), -math.inf)


def _penalised(logits: torch.Tensor, samplers: Sequence[SequenceSampler]) -> torch.Tensor:
    penalised = [row for row, sampler in enumerate(samplers) if sampler.params.repetition_penalty != 1]
    if not penalised:
        return logits
    scores = logits.clone()
    for row in penalised:
        seen = torch.tensor(samplers[row].seen_ids, device=logits.device, dtype=torch.long)
        penalty = samplers[row].params.repetition_penalty
        values = scores[row, seen]
        scores[row, seen] = torch.where(values < 0, values * penalty, values / penalty)
    return scores


def _draw(scores: torch.Tensor, samplers: Sequence[SequenceSampler]) -> torch.Tensor:
    mass = scores.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    uniform = torch.tensor([sampler.uniform() for sampler in samplers], device=scores.device, dtype=torch.float64)[:, None]
    # The first token whose cumulative mass is above the mark: one without mass is never the first.
    drawn = torch.searchsorted(mass, uniform * mass[:, -1:], right=True)
    return drawn.clamp_(max=scores.shape[-1] - 1).squeeze(-1)


def _with_logprobs(
    logits: torch.Tensor, samplers: Sequence[SequenceSampler], token_ids: Sequence[int], told: Sequence[int]
) -> list[Sampled]:
    logprobs = logits[told].log_softmax(dim=-1)
    num_top = min(max(samplers[row].params.logprobs or 0 for row in told), logits.shape[-1])
    values, indices = logprobs.topk(num_top)
    sampled = [Sampled(token_id) for token_id in token_ids]
    for at, row in enumerate(told):
        wanted = samplers[row].params.logprobs
        top = zip(indices[at, :wanted].tolist(), values[at, :wanted].tolist(), strict=True)
        sampled[row] = Sampled(token_ids[row], float(logprobs[at, token_ids[row]]), tuple(top))
    return sampled
