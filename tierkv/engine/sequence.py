"""What the engine knows of a request and of the sequences that it generates: values and their arithmetic, no decisions.

A sequence is a list of tokens, prompt first. KV of tokens [0, num_computed) lies in its pages, block i in `pages[i]`; what is behind
is computed by the next steps. A sequence that decodes has one such token: the last one drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tierkv.engine.sampling import SamplingParams, SequenceSampler
from tierkv.engine.text import TextStream
from tierkv.model.hints import Hints
from tierkv.model.keys import BlockKey, NamespaceId, chain_keys
from tierkv.model.outcomes import TierName
from tierkv.paging.courier import Fetch


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """A token or a string that ends it was drawn."""
    LENGTH = "length"
    """It has as many tokens as it asked for, or as the model or the pool has room for."""
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"
    """A step failed; the log says why."""


class State(StrEnum):
    """Where a sequence stands. Preempted ones wait like new ones."""

    WAITING = "waiting"
    """Holds no page."""
    LOADING = "loading"
    """Pages of its prefix are on their way."""
    RUNNING = "running"
    FINISHED = "finished"
    """Holds no page, and never will."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of one choice.

    token_id — -1 where a sequence ends without one (cancelled, deadline, error). text — what may be shown from now on, often a little
    behind the token. logprob, top — where asked for. finish_reason — of the last token of a choice.
    """

    choice: int
    token_id: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(slots=True, eq=False)
class Request:
    """What was asked for. emit — called with each token, on the engine's thread; must not block or raise."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    emit: Callable[[Token], None]
    tenant: str = ""
    priority: int = 0
    arrived_at_s: float = 0.0
    deadline_at_s: float | None = None
    hints: Hints = field(init=False)
    choices: list[LiveSequence] = field(default_factory=list)
    cached_tiers: tuple[TierName, ...] = ()
    """Of the blocks of the prompt that did not have to be computed."""
    cached_tokens: int = 0
    last_token_at_s: float | None = None
    is_prompt_done: bool = False

    def __post_init__(self) -> None:
        self.hints = Hints(request_id=self.request_id)

    @property
    def cached_tier(self) -> TierName | None:
        """The slowest tier that a block of the prompt came from."""
        return max(self.cached_tiers, key=list(TierName).index, default=None)

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended."""
        return all(sequence.state is State.FINISHED for sequence in self.choices)


@dataclass(frozen=True, slots=True)
class Tail:
    """A copy of the partial last page of a preempted sequence: KV of tokens [start, stop)."""

    start: int
    stop: int
    content: Any


@dataclass(slots=True, eq=False)
class LiveSequence:
    """One choice of a request. length_limit — tokens it may have at most, the prompt among them."""

    request: Request
    choice: int
    sampler: SequenceSampler
    text: TextStream
    length_limit: int
    tokens: list[int] = field(init=False)
    state: State = State.WAITING
    pages: list[int] = field(default_factory=list)
    keys: list[BlockKey] = field(default_factory=list)
    num_computed: int = 0
    num_committed: int = 0
    """Leading blocks that were committed, or found committed."""
    fetch: Fetch | None = None
    tail: Tail | None = None
    level: int = 0
    """Its class while it runs: its request's priority and what it gained by waiting."""
    queued_at_s: float = 0.0
    order: int = 0
    """Counts admissions; among equals the later one gives way."""
    num_preemptions: int = 0
    is_told: bool = False
    """Whether its last token was emitted."""

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def holds_pages(self) -> bool:
        """Whether it has pages of its own, read or on their way."""
        return bool(self.pages) or (self.fetch is not None and self.fetch.is_adopted)

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller goes first."""
        return (-self.level, self.order)

    def extend_keys(self, namespace_id: NamespaceId, num_blocks: int, block_tokens: int) -> None:
        """Makes `keys` cover the first `num_blocks` blocks; their tokens must be there."""
        known = len(self.keys)
        if known < num_blocks:
            tokens = self.tokens[known * block_tokens : num_blocks * block_tokens]
            parent = self.keys[-1] if self.keys else None
            self.keys += chain_keys(namespace_id, tokens, block_tokens=block_tokens, parent=parent)


@dataclass(slots=True, eq=False)
class Slice:
    """Tokens [start, stop) of a sequence, to be computed in this step."""

    sequence: LiveSequence
    start: int
    stop: int

    @property
    def wants_logits(self) -> bool:
        """Whether its last token is the sequence's last."""
        return self.stop == len(self.sequence.tokens)
