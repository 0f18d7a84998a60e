"""The engine over HTTP, as clients of the OpenAI API expect it: completions, chat, models; beside them /healthz and /metrics.

A client that goes away cancels its requests, and their pages go back at once: aiohttp cancels the handler, and the handler closes the
streams. What the API has and this server has not is refused by name (`schema`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from tierkv.clock import Clock, SystemClock
from tierkv.config import Address
from tierkv.engine.sampling import SamplingParams
from tierkv.engine.sequence import Token
from tierkv.engine.stats import EngineStats
from tierkv.engine.streams import TokenStream
from tierkv.errors import CapacityError, ClosedError, InternalError, InvalidRequestError, TierKVError, UnavailableError
from tierkv.serving.chat import chat_prompt
from tierkv.serving.generation import Generation
from tierkv.serving.metrics import ServerMetrics
from tierkv.serving.reply import ChatForm, CompletionForm, Form, Reply
from tierkv.serving.schema import Asked, parse_chat, parse_completion, parse_json
from tierkv.serving.token_names import TokenNames

MAX_BODY_BYTES = 8 << 20
GRACE_S = 5.0
"""What replies get to end when the server stops."""
_LAST_WORDS_S = 1.0
"""What a reply that was cut off gets to say so."""
RETRY_AFTER_S = 1
MAX_REQUEST_ID_CHARACTERS = 56
"""A store takes 64; the prompts of a request add their number."""
_CALLS = "POST /v1/completions, POST /v1/chat/completions and GET /v1/models"
_CLIENT_IS_GONE = 499
"""As nginx calls it; in metrics only."""
_REQUEST_ID = web.RequestKey("request_id", str)
_log = logging.getLogger(__name__)

_AskedT = TypeVar("_AskedT")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ServedEngine(Protocol):
    """What the server asks of an engine."""

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams = ...,
        *,
        request_id: str = "",
        tenant: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> TokenStream: ...

    def stats(self) -> EngineStats: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """name — what clients call it. tokenizer — of transformers."""

    name: str
    tokenizer: Any


class EngineServer:
    """Serves one engine, borrowed and running; `start` and `stop` are called on one event loop.

    api_key — what /v1 asks of clients; None: nothing.
    """

    def __init__(
        self, engine: ServedEngine, model: ServedModel, *, address: Address, api_key: str | None = None, clock: Clock | None = None
    ) -> None:
        if model.tokenizer is None:
            raise InvalidRequestError("the server needs a model with a tokenizer", model=model.name)
        self._engine = engine
        self._model = model
        self._address = address
        self._api_key = api_key
        self._clock = clock or SystemClock()
        self._names = TokenNames(model.tokenizer)
        self._metrics = ServerMetrics(engine.stats)
        self._started_at_s = self._now_s()
        self._runner: web.AppRunner | None = None
        self._is_stopping = False
        self._generations: set[Generation] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def start(self) -> Address:
        """Returns the address it listens on. Raises UnavailableError when it is taken."""
        # The outer one sees what the inner ones answer.
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._shaped, self._admitted])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._expose)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._one_model)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_LAST_WORDS_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        except OSError as error:
            await self.stop()
            raise UnavailableError("cannot listen; choose another --port", address=self._address, error=error.strerror) from error
        return Address(*self._runner.addresses[0][:2])

    async def stop(self) -> None:
        """Takes no more requests, waits a while for the replies at hand, and cuts off the rest, which say so. May be called twice."""
        self._is_stopping = True
        runner, self._runner = self._runner, None
        if runner is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), GRACE_S)
        for generation in tuple(self._generations):
            await generation.cut_off()
        await runner.cleanup()

    @web.middleware
    async def _shaped(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Gives every request an id, and every error the form of the API."""
        request[_REQUEST_ID] = _request_id(request) or self._clock.random_bytes(12).hex()
        try:
            response = await handler(request)
        except web.HTTPException as error:
            hint = f"; this server has {_CALLS}" if error.status in {404, 405} else ""
            response = _error_reply(error.status, f"{error.reason.lower()}: {request.method} {request.path}{hint}")
        except TierKVError as error:
            response = _refusal(error)
        except (ConnectionError, asyncio.CancelledError):
            self._metrics.note_answer(_path(request), _CLIENT_IS_GONE)
            raise
        except Exception:
            _log.exception("a request failed: request_id=%r", request[_REQUEST_ID])
            response = _refusal(InternalError("the request failed; the log says why"))
        if not response.prepared:
            response.headers["X-Request-Id"] = request[_REQUEST_ID]
        self._metrics.note_answer(_path(request), response.status)
        return response

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith("/v1/"):
            return await handler(request)
        if self._is_stopping:
            raise UnavailableError("the server is stopping")
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self._api_key is not None and not hmac.compare_digest(shown.encode(errors="replace"), self._api_key.encode()):
            return _error_reply(401, "the API key is missing or wrong", code="invalid_api_key")
        # A web page of another site can post to a loopback address, but not with this type.
        if request.method == "POST" and request.content_type != "application/json":
            return _error_reply(415, "the body is JSON; send Content-Type: application/json")
        return await handler(request)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(status=503, text="stopping\n") if self._is_stopping else web.Response(text="ok\n")

    async def _expose(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.expose(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model_card()]})

    async def _one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.json_response(self._model_card()) if name == self._model.name else self._no_model(name)

    def _model_card(self) -> dict[str, Any]:
        return {"id": self._model.name, "object": "model", "created": int(self._started_at_s), "owned_by": "tierkv"}

    def _no_model(self, name: str) -> web.Response:
        message = f"the model {name!r} is not served here; {self._model.name!r} is"
        return _error_reply(404, message, param="model", code="model_not_found")

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = await asyncio.to_thread(_parsed, parse_completion, await _body(request))
        prompts = [
            await asyncio.to_thread(self._model.tokenizer.encode, prompt) if isinstance(prompt, str) else list(prompt)
            for prompt in asked.prompts
        ]
        return await self._answer(request, asked.asked, prompts, CompletionForm())

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = await asyncio.to_thread(_parsed, parse_chat, await _body(request))
        prompt = await asyncio.to_thread(chat_prompt, self._model.tokenizer, asked.messages)
        return await self._answer(request, asked.asked, [prompt], ChatForm())

    async def _answer(self, request: web.Request, asked: Asked, prompts: list[list[int]], form: Form) -> web.StreamResponse:
        if asked.model not in {None, self._model.name}:
            return self._no_model(str(asked.model))
        head = {"id": form.id_prefix + request[_REQUEST_ID], "created": int(self._now_s()), "model": self._model.name}
        num_choices = len(prompts) * asked.params.n
        reply = Reply(form, head, self._names, num_choices=num_choices, wants_logprobs=asked.params.logprobs is not None)
        async with (
            self._generation(request[_REQUEST_ID], asked, prompts) as generation,
            contextlib.aclosing(generation.tokens()) as tokens,
        ):
            if asked.is_stream:
                return await self._stream(request, reply, generation, tokens, includes_usage=asked.includes_usage)
            async for index, token in tokens:
                reply.add(index, token)
            return web.json_response(reply.whole(generation.usage))

    @contextlib.asynccontextmanager
    async def _generation(self, request_id: str, asked: Asked, prompts: list[list[int]]) -> AsyncIterator[Generation]:
        generation = Generation(asked.params.n, self._clock, self._metrics)
        self._generations.add(generation)
        self._is_idle.clear()
        try:
            for place, prompt in enumerate(prompts):
                generation.add(
                    self._engine.generate(
                        prompt,
                        asked.params,
                        request_id=request_id if len(prompts) == 1 else f"{request_id}-{place}",
                        tenant=asked.tenant,
                        priority=asked.priority,
                        deadline_s=asked.deadline_s,
                    )
                )
            yield generation
        finally:
            await generation.aclose()
            self._generations.remove(generation)
            if not self._generations:
                self._is_idle.set()

    async def _stream(
        self,
        request: web.Request,
        reply: Reply,
        generation: Generation,
        tokens: AsyncIterator[tuple[int, Token]],
        *,
        includes_usage: bool,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        response.headers["X-Request-Id"] = request[_REQUEST_ID]
        await response.prepare(request)
        # With the usage asked for, every chunk has the field, and that of the last one is filled.
        extra = {"usage": None} if includes_usage else {}
        for chunk in reply.opening_chunks():
            await response.write(_event({**chunk, **extra}))
        try:
            async for index, token in tokens:
                for chunk in reply.chunks_of(index, token):
                    await response.write(_event({**chunk, **extra}))
        except TierKVError as error:
            # The status was sent long ago; clients look for this.
            await response.write(_event(json.loads(_refusal(error).text or "")))
            return response
        if includes_usage:
            await response.write(_event(reply.usage_chunk(generation.usage)))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.RequestPayloadError as error:
        raise InvalidRequestError("the body cannot be read; is it of the encoding that its headers name", error=error) from error


def _parsed(parse: Callable[[Mapping[str, Any]], _AskedT], body: bytes) -> _AskedT:
    """For a thread: a body of some megabytes takes long enough for streams to stutter."""
    return parse(parse_json(body))


def _request_id(request: web.Request) -> str | None:
    """The client's own id, where it is one that logs and headers can bear."""
    given = request.headers.get("X-Request-Id", "")
    return given if 0 < len(given) <= MAX_REQUEST_ID_CHARACTERS and given.isascii() and given.isprintable() else None


def _path(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return "other" if resource is None else resource.canonical


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def _refusal(error: TierKVError) -> web.Response:
    if isinstance(error, InvalidRequestError):
        field = error.context.get("field")
        # The client knows what it sent; it may be long.
        told = {name: value for name, value in error.context.items() if name not in {"field", "value"}}
        code = "context_length_exceeded" if field == "prompt" and "context" in told else None
        message = str(InvalidRequestError(error.message, **told))
        return _error_reply(400, message, param=None if field is None else str(field), code=code)
    if isinstance(error, CapacityError | UnavailableError | ClosedError):
        return _error_reply(503, str(error))
    _log.error("a request failed: %s", error)
    return _error_reply(500, str(error))


def _error_reply(status: int, message: str, *, param: str | None = None, code: str | None = None) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}, status=status, headers=headers
    )
