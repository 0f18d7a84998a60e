"""Bodies of requests to the server: JSON of the OpenAI API to values, every field checked.

A field is known, or ignored because it changes no token, or allowed with its neutral value only; anything else is refused by name:
a client learns at once that what it asks for would not happen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tierkv.engine.sampling import MAX_CHOICES, MAX_LOGPROBS, MAX_TOKENS, SamplingParams, check_integer, check_number
from tierkv.engine.settings import MAX_TENANT_CHARACTERS
from tierkv.errors import InvalidRequestError

COMPLETION_TOKENS = 16
"""What the completions API generates where it is not told; the chat API goes on to the end of the context."""
MAX_PRIORITY = 100
MAX_DEADLINE_S = 86_400.0
MAX_DEPTH = 64
"""Lists and objects of a body that lie in each other; the API has about six."""
_ROLES = ("system", "developer", "user", "assistant")

_OWN = {"top_p", "top_k", "min_p", "repetition_penalty", "seed", "n", "ignore_eos"}
"""Fields that `SamplingParams` has by the same name, with the same default."""
_COMMON = _OWN | {
    "model",
    "temperature",
    "stop",
    "stop_token_ids",
    "max_tokens",
    "stream",
    "stream_options",
    "user",
    "priority",
    "deadline_s",
}
_COMPLETION = _COMMON | {"prompt", "logprobs"}
_CHAT = _COMMON | {"messages", "max_completion_tokens", "logprobs", "top_logprobs"}
_IGNORED = {
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
}
_NEUTRAL: Mapping[str, Sequence[object]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What both APIs have in common. model — None: not named. tenant — whose blocks are used and saved."""

    model: str | None
    params: SamplingParams
    is_stream: bool
    includes_usage: bool
    tenant: str
    priority: int
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """prompts — texts or token ids; each has its choices."""

    asked: Asked
    prompts: tuple[str | tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """messages — with `role` and `content`, for the chat template."""

    asked: Asked
    messages: tuple[dict[str, str], ...]


def parse_json(body: bytes) -> dict[str, Any]:
    """The object of a body. Raises InvalidRequestError for anything else."""
    try:
        # As text: left to itself the parser takes other encodings too, and bytes that are half of a surrogate pair.
        text = body.decode()
        fields = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError("the body is not JSON in UTF-8", error=error) from error
    if not isinstance(fields, dict):
        raise InvalidRequestError("the body is a JSON object")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(fields)
    if "\\ud" in text.lower():
        _check_surrogates(fields)
    return fields


def _check_depth(fields: dict[str, Any]) -> None:
    """What the parser just took may be too deep for whatever shows it later."""
    level: list[Any] = [fields]
    for _ in range(MAX_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise InvalidRequestError("the body nests too deeply", deepest=MAX_DEPTH)


def _check_surrogates(fields: dict[str, Any]) -> None:
    """Escapes can write half of a surrogate pair, which is no text: no tokenizer and no store takes it."""
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("the body holds half of a surrogate pair") from error


def parse_completion(fields: Mapping[str, Any]) -> CompletionRequest:
    """Raises InvalidRequestError with the name of the first field that is wrong, in its context as `field`."""
    given = _checked(fields, _COMPLETION)
    max_tokens = given.get("max_tokens", COMPLETION_TOKENS)
    prompts = _prompts(given.get("prompt"))
    asked = _asked(given, max_tokens=max_tokens, logprobs=given.get("logprobs"))
    if len(prompts) * asked.params.n > MAX_CHOICES:
        _refuse("n", f"a request has at most {MAX_CHOICES} choices, over all its prompts", asked.params.n)
    return CompletionRequest(asked, prompts)


def parse_chat(fields: Mapping[str, Any]) -> ChatRequest:
    """Raises InvalidRequestError with the name of the first field that is wrong, in its context as `field`."""
    given = _checked(fields, _CHAT)
    max_tokens = given.get("max_completion_tokens", given.get("max_tokens", MAX_TOKENS))
    messages = _messages(given.get("messages"))
    return ChatRequest(_asked(given, max_tokens=max_tokens, logprobs=_chat_logprobs(given)), messages)


def _checked(fields: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """The known fields that are not null."""
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in given.items():
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                _refuse(name, "this server does not support it", value)
        elif name not in known and name not in _IGNORED:
            _refuse(name, "no such field", value)
    return {name: value for name, value in given.items() if name in known}


def _asked(given: Mapping[str, Any], *, max_tokens: Any, logprobs: int | None) -> Asked:
    deadline_s = given.get("deadline_s")
    if deadline_s is not None:
        check_number("deadline_s", deadline_s, 0.001, MAX_DEADLINE_S)
    priority = given.get("priority", 0)
    check_integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
    tenant = _text(given, "user") or ""
    if len(tenant) > MAX_TENANT_CHARACTERS:
        _refuse("user", f"at most {MAX_TENANT_CHARACTERS} characters", tenant)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=given.get("temperature", 1.0),
        stop=_stop(given.get("stop", ())),
        stop_token_ids=_token_ids("stop_token_ids", given.get("stop_token_ids", [])),
        logprobs=logprobs,
        **{name: given[name] for name in _OWN if name in given},
    )
    is_stream = _flag(given, "stream")
    return Asked(
        model=_text(given, "model"),
        params=params,
        is_stream=is_stream,
        includes_usage=_includes_usage(given, is_stream),
        tenant=tenant,
        priority=priority,
        deadline_s=deadline_s,
    )


def _prompts(prompt: Any) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        _refuse("prompt", "a text, token ids, or a list of such", prompt)
    if isinstance(prompt[0], int):
        return (_token_ids("prompt", prompt),)
    return tuple(one if isinstance(one, str) else _token_ids("prompt", one) for one in prompt)


def _messages(messages: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        _refuse("messages", "a list of messages, not empty", messages)
    return tuple(_message(message, f"messages[{place}]") for place, message in enumerate(messages))


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        _refuse(where, f"a message has a role ({', '.join(_ROLES)}) and content", message)
    unknown = {name for name, value in message.items() if value} - {"role", "content", "name"}
    if unknown:
        _refuse(f"{where}.{min(unknown)}", "this server does not support it", message[min(unknown)])
    # Models know the role by its older name.
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": _content(message.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(where, "a text, or a list of parts of type text", content)
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            _refuse(where, "this server reads parts of type text only", part)
    return "".join(part["text"] for part in content)


def _chat_logprobs(given: Mapping[str, Any]) -> Any:
    wants = _flag(given, "logprobs")
    if "top_logprobs" in given and not wants:
        _refuse("top_logprobs", "needs logprobs: true", given["top_logprobs"])
    if not wants:
        return None
    top_logprobs = given.get("top_logprobs", 0)
    check_integer("top_logprobs", top_logprobs, 0, MAX_LOGPROBS)
    return top_logprobs


def _stop(stop: Any) -> tuple[Any, ...]:
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, list | tuple):
        _refuse("stop", "a text or a list of texts", stop)
    return tuple(stop)


def _token_ids(field: str, token_ids: Any) -> tuple[int, ...]:
    if not isinstance(token_ids, list):
        _refuse(field, "a list of token ids", token_ids)
    # There may be millions; each is looked at alone only to name the wrong one.
    if token_ids and not (set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) <= MAX_TOKENS):
        for token_id in token_ids:
            check_integer(field, token_id, 0, MAX_TOKENS)
    return tuple(token_ids)


def _includes_usage(given: Mapping[str, Any], is_stream: bool) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not is_stream or not isinstance(options, dict):
        _refuse("stream_options", "an object, together with stream: true", options)
    return _flag(options, "include_usage")


def _flag(given: Mapping[str, Any], field: str) -> bool:
    value = given.get(field)
    if value is not None and not isinstance(value, bool):
        _refuse(field, "true or false", value)
    return bool(value)


def _text(given: Mapping[str, Any], field: str) -> str | None:
    value = given.get(field)
    if value is not None and not isinstance(value, str):
        _refuse(field, "a text", value)
    return value


def _refuse(field: str, message: str, value: object) -> NoReturn:
    raise InvalidRequestError(f"{field}: {message}", field=field, value=value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
