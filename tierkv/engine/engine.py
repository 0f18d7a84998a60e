"""The engine: requests in, tokens out. One thread runs the steps; everything else only posts to it.

What it leaves to others: what a step computes (`scheduler`), how (`model`), and where its pages lie (`grounds`).

Invariants: a request is checked before it is queued; whatever happens afterwards ends its choices with a finish reason, and never the
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Self

import torch

from tierkv.client import connect as connect_to
from tierkv.clock import Clock, SystemClock
from tierkv.engine.grounds import Grounds
from tierkv.engine.model import Transformer
from tierkv.engine.runner import Runner
from tierkv.engine.sampling import SamplingParams, SequenceSampler
from tierkv.engine.scheduler import Scheduler
from tierkv.engine.sequence import FinishReason, LiveSequence, Request, State, Token
from tierkv.engine.settings import MAX_TENANT_CHARACTERS, EngineSettings
from tierkv.engine.stats import EngineStats, Meters
from tierkv.engine.streams import Choice, Completion, TokenStream, gathered, posting
from tierkv.engine.text import TextStream
from tierkv.engine.weights import LoadedModel, load
from tierkv.errors import CapacityError, ClosedError, InvalidRequestError
from tierkv.pages import PageStore

__all__ = ["Choice", "Completion", "Engine", "EngineSettings", "EngineStats", "FinishReason", "Token", "open_engine"]

DEFAULT_PARAMS = SamplingParams()
DEFAULT_SETTINGS = EngineSettings()
PATIENCE_S = 0.002
"""How often pages that are on their way are looked for while nothing else can be computed."""

_log = logging.getLogger("tierkv.engine")


class Engine:
    """Generates with one loaded model. Starts nothing until `start`; a context manager.

    store — pages of a daemon (`tierkv.connect`) or an embedded store, borrowed: close it after the engine; None: pages of the engine's
    own. connect — instead of a store, what opens one; called again while the daemon is away.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        settings: EngineSettings = DEFAULT_SETTINGS,
        store: PageStore | None = None,
        connect: Callable[[], PageStore] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.loaded = loaded
        self._clock = clock or SystemClock()
        self._model = Transformer(loaded)
        self._meters = Meters()
        self._inbox: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._live: dict[Request, None] = {}
        self._num_queued = 0
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._runner: Runner
        self.resources = contextlib.ExitStack()
        """What was opened for this engine alone; closed with it."""
        self._grounds = Grounds(
            connect=connect if store is None else lambda: store,
            settings=settings,
            identity=loaded.identity,
            layout=loaded.layout(settings.block_tokens),
            bind=self._model.bind,
            fence=None if settings.device == "cpu" else functools.partial(_fence, settings.device),
            notify=self._wake.set,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Opens the pool and starts the thread; one that runs already goes on.

        Raises InvalidRequestError where the store has no pages for this model and device, and ClosedError after `close`.
        """
        if self._thread is not None:
            return
        if self._is_stopping:
            raise ClosedError("the engine was closed; make another")
        if self.settings.num_threads is not None:
            torch.set_num_threads(self.settings.num_threads)
        ground = self._grounds.open(self._clock.monotonic_s())
        self._say_if_short(ground.supply.num_pages * self.settings.block_tokens)
        scheduler = Scheduler(ground.supply, ground.memory, self.settings)
        self._runner = Runner(self._model, scheduler, eos_token_ids=self.loaded.config.eos_token_ids)
        self._thread = threading.Thread(target=self._run, name="tierkv-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends every request with reason cancelled, gives all pages back, ends the thread. May be called twice."""
        if self._thread is not None:
            with self._lock:
                self._is_stopping = True
            self._wake.set()
            self._thread.join()
            self._thread = None
            self._grounds.close()
        self.resources.close()

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        request_id: str = "",
        tenant: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> TokenStream:
        """Tokens as they are drawn; call it where an asyncio loop runs. Closing the iterator cancels the request.

        prompt — text, or token ids as they are. request_id — names it in the store's `explain`, unique among those that run; "" makes
        one. tenant — tenants of one class share the engine fairly. priority — higher goes first. deadline_s — seconds from now.
        Raises, before anything is queued: InvalidRequestError for an empty prompt, one that the model's context or the pool has no room
        for, and values out of range; CapacityError when max_waiting requests wait; ClosedError.
        """
        queue: asyncio.Queue[Token] = asyncio.Queue()
        request = self._request(prompt, params, posting(queue), request_id, tenant, priority, deadline_s)
        self._submit(request)
        return TokenStream(request, queue, functools.partial(self._cancel, request))

    def complete(
        self, prompts: Sequence[str | Sequence[int]], params: SamplingParams = DEFAULT_PARAMS, *, tenant: str = ""
    ) -> list[Completion]:
        """Generates for all prompts together and waits for them. Raises as `generate` does."""
        queues: list[SimpleQueue[Token]] = [SimpleQueue() for _ in prompts]
        requests = [self._request(prompt, params, queue.put, tenant=tenant) for prompt, queue in zip(prompts, queues, strict=True)]
        try:
            for request in requests:
                self._submit(request)
        except CapacityError:
            # What was queued before the queue was full is of use to nobody.
            for request in requests:
                self._cancel(request)
            raise
        return list(map(gathered, requests, queues))

    def stats(self) -> EngineStats:
        """What happened so far; from any thread."""
        scheduler, ground = self._runner.scheduler, self._grounds.current
        ttft_ms, itl_ms = self._meters.percentiles()
        available = getattr(ground.supply.store, "num_available", 0)
        return EngineStats(
            requests_running=len(scheduler.running),
            requests_loading=len(scheduler.loading),
            requests_waiting=len(scheduler.waiting) + self._num_queued,
            is_private=ground.is_private,
            pages_total=ground.supply.num_pages,
            pages_held=ground.supply.num_owned,
            pages_free=ground.supply.num_stocked + available,
            pages_copied=scheduler.num_copied_pages,
            preemptions=scheduler.num_preemptions,
            hit_tokens={str(tier): tokens for tier, tokens in scheduler.hit_tokens.copy().items()},
            ttft_ms=ttft_ms,
            itl_ms=itl_ms,
            counters=dict(self._runner.counters.copy() + Counter(pool_moves=self._grounds.num_moves)),
        )

    def _request(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        put: Callable[[Token], None],
        request_id: str = "",
        tenant: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> Request:
        if self._thread is None:
            raise ClosedError("the engine is not running; start it")
        if len(tenant) > MAX_TENANT_CHARACTERS:
            raise InvalidRequestError("a tenant's name has at most 256 characters", field="tenant", length=len(tenant))
        if deadline_s is not None and not deadline_s > 0:
            raise InvalidRequestError("a deadline lies ahead; give seconds above 0", field="deadline_s", value=deadline_s)
        prompt = self._encoded(prompt) if isinstance(prompt, str) else list(prompt)
        # The length first: a list of millions of ids is not worth a look at each.
        length_limit = self._length_limit(len(prompt), params.max_tokens)
        prompt_ids = self._checked_ids(prompt)
        now_s = self._clock.monotonic_s()
        request = Request(
            request_id or f"engine-{next(self._ids)}",
            prompt_ids,
            params,
            lambda token: self._emit(request, put, token),
            tenant=tenant,
            priority=priority,
            arrived_at_s=now_s,
            deadline_at_s=None if deadline_s is None else now_s + deadline_s,
        )
        seed = params.seed if params.seed is not None else int.from_bytes(self._clock.random_bytes(8), "little")
        for idx in range(params.n):
            sampler = SequenceSampler(params, seed=seed, prompt_ids=prompt_ids, choice=idx)
            text = TextStream(self.loaded.tokenizer, prompt_ids, params.stop)
            request.choices.append(LiveSequence(request, idx, sampler, text, length_limit))
        return request

    def _encoded(self, prompt: str) -> list[int]:
        if self.loaded.tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer; give token ids", field="prompt")
        # What cannot fit is not read: a tokenizer takes minutes for some megabytes.
        context, longest = self.loaded.config.context_tokens, self._longest_piece
        if len(prompt) > context * longest:
            raise InvalidRequestError(
                "the prompt is longer than any that the model's context holds",
                field="prompt",
                characters=len(prompt),
                limit=context * longest,
                context=context,
            )
        token_ids: list[int] = self.loaded.tokenizer(prompt).input_ids
        return token_ids

    @functools.cached_property
    def _longest_piece(self) -> int:
        """Characters of the longest token's text."""
        return max(map(len, self.loaded.tokenizer.get_vocab()))

    def _checked_ids(self, prompt: Sequence[int]) -> list[int]:
        prompt_ids = [int(token_id) for token_id in prompt]
        vocab_size = self.loaded.config.vocab_size
        if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
            raise InvalidRequestError("a token id is not in the vocabulary", field="prompt", vocab_size=vocab_size)
        return prompt_ids

    def _length_limit(self, num_prompt: int, max_tokens: int) -> int:
        """Tokens that the sequence may have, the prompt among them: the last one drawn needs no page."""
        if not num_prompt:
            raise InvalidRequestError("a prompt has at least one token", field="prompt")
        context = self.loaded.config.context_tokens
        if num_prompt + 1 > context:
            raise InvalidRequestError(
                "the prompt fills the model's context; shorten it", field="prompt", tokens=num_prompt, context=context
            )
        num_pages, block_tokens = self._grounds.current.supply.num_pages, self.settings.block_tokens
        needed = -(-num_prompt // block_tokens)
        if needed > num_pages:
            raise InvalidRequestError(
                "the prompt needs more pages than the pool has; shorten it", field="prompt", pages_needed=needed, pages=num_pages
            )
        return min(num_prompt + max_tokens, context, num_pages * block_tokens + 1)

    def _say_if_short(self, pool_tokens: int) -> None:
        """Answers would end with reason length long before anybody expects it."""
        if pool_tokens < self.loaded.config.context_tokens:
            _log.warning(
                "the pool holds %d tokens, fewer than the model's context of %d: prompts and answers end there; give it more memory "
                "(--private-memory, or the daemon's --device)",
                pool_tokens,
                self.loaded.config.context_tokens,
            )

    def _submit(self, request: Request) -> None:
        # Whatever is posted under the lock is taken in, or ended, by the thread's last turn.
        with self._lock:
            if self._is_stopping:
                raise ClosedError("the engine was closed; make another")
            if self._num_queued + len(self._runner.scheduler.waiting) >= self.settings.max_waiting:
                raise CapacityError("too many requests wait; come again later", max_waiting=self.settings.max_waiting)
            self._num_queued += 1
            self._post(lambda: self._take_in(request))

    def _post(self, call: Callable[[], object]) -> None:
        """Has the engine's thread do something between two steps."""
        self._inbox.append(call)
        self._wake.set()

    def _take_in(self, request: Request) -> None:
        with self._lock:
            self._num_queued -= 1
        self._live[request] = None
        try:
            self._runner.scheduler.add(request, self._clock.monotonic_s())
        except Exception:
            _log.exception("a request could not be queued: request_id=%r", request.request_id)
            self._runner.end(request, FinishReason.ERROR)

    def _cancel(self, request: Request) -> None:
        self._post(lambda: self._end([request] if request in self._live else [], FinishReason.CANCELLED))

    def _emit(self, request: Request, put: Callable[[Token], None], token: Token) -> None:
        if token.token_id >= 0:
            self._meters.note(request, self._clock.monotonic_s())
        if token.finish_reason is not None and all(sequence.is_told for sequence in request.choices):
            del self._live[request]
        put(token)

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            if not self._guarded_step():
                self._wake.wait(self._patience_s())
        self._drain()
        self._end(list(self._live), FinishReason.CANCELLED)

    def _guarded_step(self) -> bool:
        """One turn. What is raised here is a bug; the requests at hand end, the thread goes on."""
        try:
            self._drain()
            now_s = self._clock.monotonic_s()
            if self._grounds.look(self._runner.scheduler, now_s):
                self._fit()
            return self._runner.step(now_s)
        except Exception:
            _log.exception("a step failed; its requests end with an error")
            self._end(list(self._live), FinishReason.ERROR)
            return False

    def _drain(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _end(self, requests: Iterable[Request], reason: FinishReason) -> None:
        for request in requests:
            self._runner.end(request, reason)

    def _fit(self) -> None:
        """The pool is another: what is longer than it ends, and nobody grows beyond it."""
        limit = self._grounds.current.supply.num_pages * self.settings.block_tokens + 1
        for request in list(self._live):
            live = [sequence for sequence in request.choices if sequence.state is not State.FINISHED]
            for sequence in live:
                sequence.length_limit = min(sequence.length_limit, limit)
            if any(len(sequence.tokens) >= limit for sequence in live):
                _log.warning("a request is longer than the pool that the engine moved to: request_id=%r", request.request_id)
                self._runner.end(request, FinishReason.LENGTH)

    def _patience_s(self) -> float | None:
        """How long nothing can happen by itself; None: until somebody posts."""
        scheduler = self._runner.scheduler
        now_s = self._clock.monotonic_s()
        waits: list[float] = []
        if scheduler.loading or scheduler.running or scheduler.waiting:
            waits.append(PATIENCE_S)
        if scheduler.next_deadline_s is not None:
            waits.append(max(0.0, scheduler.next_deadline_s - now_s))
        if self._grounds.is_looking:
            waits.append(self.settings.retry_s)
        return min(waits, default=None)


def open_engine(
    path: Path | str, *, daemon: str | os.PathLike[str] | None = None, settings: EngineSettings = DEFAULT_SETTINGS
) -> Engine:
    """Loads the model at `path` and starts an engine with it; `close` it.

    daemon — address of one (`tierkv.connect`); while it is away, and for None, the engine uses pages of its own. Raises
    InvalidRequestError for what is no model here, and for a daemon that has no pages on this device.
    """
    loaded = load(path, dtype=settings.dtype, device=settings.device)
    client = None
    if daemon is not None:
        # One client, opened when the daemon first answers.
        client = functools.cache(lambda: engine.resources.enter_context(connect_to(daemon, label="engine")))
    engine = Engine(loaded, settings=settings, connect=client)
    try:
        engine.start()
    except BaseException:
        engine.close()
        raise
    return engine


def _fence(device: str) -> None:
    # Only an engine on such a device needs the module.
    from tierkv.tiers.cuda import fence

    fence(device)
