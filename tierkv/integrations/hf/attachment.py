"""An attached model: `generate` wrapped so that it restores before and saves after, and otherwise is what it was.

The order of one call: read the request → look at the weights → restore into a new cache → the model's own `generate` → save. Whatever
goes wrong on our side, before or after, is logged and counted, and the call is the plain one.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tierkv.clock import Clock, SystemClock
from tierkv.integrations.fingerprint import WeightsWatch, identity_of
from tierkv.integrations.hf.geometry import Geometry, UnsupportedModelError, probe
from tierkv.integrations.hf.record import Recorder
from tierkv.integrations.hf.request import CACHE_NAMES, Refusal, Request, read_request
from tierkv.integrations.hf.restore import Restored, Restorer, new_cache
from tierkv.integrations.hf.workspace import Workspace
from tierkv.integrations.prefix import PrefixCache, PrefixCounters
from tierkv.interface import BlockStore
from tierkv.model.hints import Hints
from tierkv.model.outcomes import TierName

PREFAULT_TOKENS = 4096
_REQUEST_ID_BYTES = 8
_log = logging.getLogger("tierkv.transformers")


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """What the user chose. block_tokens — tokens per block; tenant, salt — separation; workspace_bytes — host memory kept warm for
    restored caches, 0 for none; timeout_s — bound of each call to the store, None for the store's own.
    """

    block_tokens: int
    tenant: str
    salt: str
    workspace_bytes: int
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class LastRequest:
    """What became of the last call. reason — why it ran uncached, None when it did not; tier — the slowest tier restored from."""

    prompt_tokens: int = 0
    restored_tokens: int = 0
    tier: TierName | None = None
    saved_blocks: int = 0
    restore_s: float = 0.0
    save_s: float = 0.0
    reason: str | None = None


@dataclass(slots=True)
class Counters:
    """Since the attachment. calls = cached + uncached; tokens over all rows; failures — errors of our own that were survived."""

    calls: int = 0
    uncached_calls: int = 0
    prompt_tokens: int = 0
    restored_tokens: int = 0
    saved_blocks: int = 0
    failures: int = 0
    prefix: PrefixCounters = field(default_factory=PrefixCounters)


class Attachment:
    """The handle of an attached model; `close` gives the model its own `generate` back. Constructed by `attach`.

    One call at a time per model, as with `generate` itself when it streams; `last` speaks of the call that ended last.
    """

    def __init__(self, model: Any, store: BlockStore, options: AttachOptions, clock: Clock | None = None) -> None:
        self.counters = Counters()
        self.last = LastRequest()
        self.refusal: str | None = None
        self._model = model
        self._store = store
        self._options = options
        self._clock = clock or SystemClock()
        self._workspace = Workspace(options.workspace_bytes)
        self._warned: set[str] = set()
        self._cache_name = _cache_argument(model)
        self._geometry: Geometry | None = None
        self._original: Callable[..., Any] | None = None
        self._previous: Any = model.__dict__.get("generate")

    def open(self) -> None:
        """Looks at the model and wraps its `generate`. Raises InvalidRequestError for weights without memory."""
        try:
            self._geometry = probe(self._model, self._cache_name)
        except UnsupportedModelError as error:
            self.refusal = str(error)
            self._warn(self.refusal)
        else:
            self._identify()
            self._prefault()
        self._original = self._model.generate
        self._model.generate = self.generate

    def close(self) -> None:
        """Ends the attachment: the model's `generate` is its own again. The store stays open. May be called twice."""
        if self._original is not None and self._model.__dict__.get("generate") == self.generate:
            del self._model.generate
            if self._previous is not None:
                self._model.generate = self._previous
        self._original = None
        self._workspace.close()

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The model's `generate` with the same arguments and result; see its documentation."""
        if self._original is None:
            return self._model.generate(*args, **kwargs)
        self.counters.calls += 1
        started_s = self._clock.monotonic_s()
        hints = Hints(request_id=self._clock.random_bytes(_REQUEST_ID_BYTES).hex())  # a load and its saves are one request
        prepared = self._prepared(args, kwargs, hints)
        if isinstance(prepared, Refusal):
            self.counters.uncached_calls += 1
            self.last = LastRequest(reason=prepared.reason)
            self._warn(prepared.reason)
            return self._original(*args, **kwargs)
        request, cache, restored = prepared
        restore_s = self._clock.monotonic_s() - started_s
        kwargs = {name: value for name, value in kwargs.items() if name not in CACHE_NAMES}
        result = self._original(*args, **kwargs, **{self._cache_name: cache})
        started_s = self._clock.monotonic_s()
        saved = self._saved(request, restored, cache, result, hints)
        self._account(request, restored, saved, restore_s, self._clock.monotonic_s() - started_s)
        return result

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any], hints: Hints) -> tuple[Request, Any, Restored] | Refusal:
        if self.refusal is not None or self._geometry is None:
            return Refusal(self.refusal or "the model was not looked at")
        try:
            arguments = _by_name(self._original, args, kwargs)
            request = read_request(arguments, getattr(self._model, "generation_config", None), training=self._model.training)
            if isinstance(request, Refusal):
                return request
            if self._watch.changed():
                self._identify()
            cache = new_cache(request, self._model.config.get_text_config(decoder=True))
            return request, cache, self._restorer.restore(request, cache, hints)
        except Exception:
            # The boundary of the engine: a mistake of ours, or memory that ran out, must cost a prefill and not the call.
            _log.exception("restoring failed; this call computes everything")
            self.counters.failures += 1
            return Refusal("restoring failed")

    def _saved(self, request: Request, restored: Restored, cache: Any, result: Any, hints: Hints) -> int:
        try:
            sequences = result if isinstance(result, torch.Tensor) else result.sequences
            return self._recorder.save(request, restored, cache, sequences, hints)
        except Exception:
            # The answer exists already; losing what would have been saved must not lose it.
            _log.exception("saving failed; the answer is not affected")
            self.counters.failures += 1
            return 0

    def _account(self, request: Request, restored: Restored, saved: int, restore_s: float, save_s: float) -> None:
        prompt_tokens = sum(len(row.token_ids) for row in request.rows)
        self.counters.prompt_tokens += prompt_tokens
        self.counters.restored_tokens += restored.num_tokens
        self.counters.saved_blocks += saved
        self.last = LastRequest(prompt_tokens, restored.num_tokens, restored.tier, saved, restore_s, save_s)

    def _identify(self) -> None:
        assert self._geometry is not None
        layout = self._geometry.layout(self._options.block_tokens)
        identity = identity_of(self._model, self._options.tenant, self._options.salt, layout.dtype)
        prefix = PrefixCache(self._store, identity, layout, timeout_s=self._options.timeout_s, counters=self.counters.prefix)
        self._restorer = Restorer(self._geometry, prefix, self._workspace)
        self._recorder = Recorder(self._geometry, prefix)
        self._watch = WeightsWatch(self._model)

    def _prefault(self) -> None:
        assert self._geometry is not None
        limit = getattr(self._model.config.get_text_config(decoder=True), "max_position_embeddings", None) or PREFAULT_TOKENS
        token_bytes = self._geometry.layout(1).block_bytes
        self._workspace.prefault(token_bytes * min(int(limit), PREFAULT_TOKENS))

    def _warn(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            _log.warning("runs uncached: %s", reason)


def _cache_argument(model: Any) -> str:
    """The name under which `forward` takes its cache: `cache` in newer releases of transformers, `past_key_values` before."""
    forward = getattr(getattr(model, "base_model", None), "forward", None) if _is_wrapper(model) else model.forward
    names = inspect.signature(forward or model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def _is_wrapper(model: Any) -> bool:
    """Whether `forward` hands everything on without naming it (PEFT)."""
    kinds = {parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
    return kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _by_name(function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    assert function is not None
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            named.update(zip(("inputs", "generation_config"), value, strict=False))
        else:
            named[name] = value
    return named
