"""An engine that says what it was told to, over the real streams; what it was asked is noted."""

import asyncio

from tests.unit.engine.small_tokenizers import BYTE_LEVEL
from tierkv.engine.sampling import SamplingParams
from tierkv.engine.sequence import FinishReason, Request, Token
from tierkv.engine.stats import EngineStats
from tierkv.engine.streams import TokenStream, posting

GREEDY = SamplingParams()
STATS = EngineStats(
    requests_running=2,
    requests_loading=1,
    requests_waiting=3,
    is_private=False,
    pages_total=100,
    pages_held=40,
    pages_free=50,
    pages_copied=7,
    preemptions=1,
    hit_tokens={"host": 64},
    counters={"steps": 9},
)


def tokens_of(text, choice=0, finish_reason=FinishReason.STOP, *, logprobs=None):
    """One token a character, of the byte-level tokenizer."""
    token_ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    last = len(token_ids) - 1
    return [
        Token(
            choice,
            token_id,
            BYTE_LEVEL.decode([token_id]),
            logprob=None if logprobs is None else -0.5 - place,
            top=tuple((token_id + rank, -0.5 - place - rank) for rank in range(logprobs or 0)),
            finish_reason=finish_reason if place == last else None,
        )
        for place, token_id in enumerate(token_ids)
    ]


class ScriptedEngine:
    """Answers each request with the next of `answers`: an error to raise, or tokens. A list without a finish reason leaves it open."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.deadlines = []
        self.cached_tokens = 0
        self.num_cancelled = 0
        self.was_asked = asyncio.Event()
        self.was_cancelled = asyncio.Event()

    def generate(self, prompt, params=GREEDY, *, request_id="", tenant="", priority=0, deadline_s=None):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        request = Request(request_id, list(prompt), params, lambda _: None, tenant=tenant, priority=priority)
        request.cached_tokens = self.cached_tokens
        self.requests.append(request)
        self.deadlines.append(deadline_s)
        self.was_asked.set()
        queue = asyncio.Queue()
        post = self.post = posting(queue)
        self.go_on(answer)
        return TokenStream(request, queue, lambda: self._cancel(post))

    def go_on(self, tokens):
        """Tokens of the last request."""
        for token in tokens:
            self.post(token)

    def stats(self):
        return STATS

    def _cancel(self, post):
        self.num_cancelled += 1
        post(Token(0, -1, "", finish_reason=FinishReason.CANCELLED))
        self.was_cancelled.set()
