"""A model whose next token depends on every token in its pages, so that a page with anything else in it gives another text."""

import zlib

import numpy as np
import torch

from tierkv.engine.runner import Runner
from tierkv.engine.sampling import SamplingParams, SequenceSampler
from tierkv.engine.scheduler import Scheduler
from tierkv.engine.sequence import LiveSequence, Request, State
from tierkv.engine.settings import EngineSettings
from tierkv.engine.text import TextStream
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.paging.courier import Courier
from tierkv.paging.private_pages import PrivatePages
from tierkv.paging.supply import PageSupply
from tierkv.testing.clock import ManualClock

BLOCK_TOKENS = 4
VOCABULARY = 97
LAYOUT = Layout((BLOCK_TOKENS,), "float32", BLOCK_TOKENS)
IDENTITY = Identity(weights="fake")


def next_token(tokens):
    return zlib.crc32(np.asarray(tokens, dtype=np.int32).tobytes()) % VOCABULARY


def text_alone(prompt, count):
    """What the model says after `prompt` when nobody disturbs it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class FakeMemory:
    """Pages of token ids; offers what `PageMemory` offers."""

    def __init__(self, pool):
        self.pool = pool
        self.pages = np.frombuffer(pool.buffer, dtype=np.float32)[: pool.num_pages * BLOCK_TOKENS].reshape(pool.num_pages, -1)

    def save(self, page):
        return self.pages[page].copy()

    def restore(self, content, page):
        self.pages[page] = content

    def close(self):
        self.pages = None


class FakeModel:
    """Writes token ids where K and V would go, and reads all of a sequence's back for its next token. poison — tokens that raise."""

    def __init__(self):
        self.memory = None
        self.poison = set()
        self.computed = 0
        self.batches = []

    def bind(self, memory):
        self.memory = memory

    def forward(self, spans):
        self.batches.append([(span.start, len(span.token_ids)) for span in spans])
        logits = []
        for span in spans:
            if self.poison & set(span.token_ids):
                raise RuntimeError("poison")
            self.computed += len(span.token_ids)
            for at, token_id in enumerate(span.token_ids, span.start):
                self.memory.pages[span.pages[at // BLOCK_TOKENS], at % BLOCK_TOKENS] = token_id
            if span.wants_logits:
                stop = span.start + len(span.token_ids)
                tokens = np.concatenate([self.memory.pages[page] for page in span.pages])[:stop].astype(np.int32)
                row = torch.zeros(VOCABULARY)
                row[next_token(tokens)] = 50.0
                logits.append(row)
        return torch.stack(logits) if logits else torch.zeros(0, VOCABULARY)


class SlowCourier(Courier):
    """Carries its batch when it is told to."""

    is_inline = False

    def _made(self):
        pass


class Rig:
    """A scheduler over private pages and the fake model, a step at a time under a virtual clock.

    is_slow — the store's answers come only when `carry` is called.
    """

    def __init__(self, *, num_pages=16, max_batch_tokens=8, max_sequences=4, store=None, reserve_pages=0, is_slow=False, **options):
        self.clock = ManualClock()
        self.model = FakeModel()
        self.store = store or PrivatePages(num_pages * LAYOUT.block_bytes)
        namespace = self.store.register(IDENTITY, LAYOUT)
        pool = self.store.open_pool(namespace.namespace_id, "cpu")
        self.memory = FakeMemory(pool)
        self.model.bind(self.memory)
        self.supply = PageSupply(self.store, namespace.namespace_id, pool, reserve_pages=reserve_pages)
        self.is_slow = is_slow
        if is_slow:
            self.supply._courier = SlowCourier(self.store, namespace.namespace_id, fence=None, notify=None)
        settings = EngineSettings(
            block_tokens=BLOCK_TOKENS, max_batch_tokens=max_batch_tokens, max_sequences=max_sequences, **options
        )
        self.scheduler = Scheduler(self.supply, self.memory, settings)
        self.runner = Runner(self.model, self.scheduler)
        self.tokens = {}
        self.requests = []

    def add(self, prompt, max_tokens=6, *, n=1, deadline_s=None, **options):
        now_s = self.clock.monotonic_s()
        params = SamplingParams(max_tokens=max_tokens, n=n, **options.pop("params", {}))
        tokens = []
        request = Request(
            f"request-{len(self.requests)}",
            list(prompt),
            params,
            tokens.append,
            arrived_at_s=now_s + len(self.requests) * 1e-9,
            deadline_at_s=None if deadline_s is None else now_s + deadline_s,
            **options,
        )
        self.tokens[request] = tokens
        self.requests.append(request)
        limit = min(len(prompt) + max_tokens, self.supply.num_pages * BLOCK_TOKENS + 1)
        for choice in range(n):
            sampler = SequenceSampler(params, seed=params.seed or 0, prompt_ids=prompt, choice=choice)
            request.choices.append(LiveSequence(request, choice, sampler, TextStream(None, prompt), limit))
        self.scheduler.add(request, now_s)
        return request

    def step(self):
        computed = self.runner.step(self.clock.monotonic_s())
        self.clock.advance(0.01)
        self.check()
        return computed

    def carry(self):
        """The store answers."""
        self.supply._courier._carry()

    def run(self, limit=10_000):
        """Steps until everybody has finished."""
        for _ in range(limit):
            if all(request.is_finished for request in self.requests):
                return
            self.step()
            self.carry()
        raise AssertionError("somebody never finishes")

    def check(self):
        self.scheduler.check_integrity()
        if isinstance(self.store, PrivatePages):
            self.store.check_integrity()
        if isinstance(self.store, PrivatePages) and not self.is_slow:
            assert self.store.num_held == self.supply.num_owned + self.supply.num_stocked

    def text(self, request, choice=0):
        return [token.token_id for token in self.tokens[request] if token.choice == choice and token.token_id >= 0]

    def reason(self, request, choice=0):
        return [token for token in self.tokens[request] if token.choice == choice][-1].finish_reason

    def states(self):
        return [request.choices[0].state for request in self.requests]


__all__ = ["BLOCK_TOKENS", "FakeMemory", "FakeModel", "Rig", "State", "next_token", "text_alone"]
