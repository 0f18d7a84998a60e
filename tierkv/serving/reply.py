"""Replies of the server: tokens to the JSON of the OpenAI API, whole or in pieces.

The two APIs differ in names and in the form of log-probabilities; `CompletionForm` and `ChatForm` hold what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tierkv.engine.sequence import FinishReason, Token
from tierkv.serving.token_names import TokenNames


@dataclass(slots=True)
class Usage:
    """Tokens of one HTTP request, over all its prompts and choices. cached_tokens — of the prompts, found rather than computed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Form(Protocol):
    """What differs between the two APIs. num_before — characters of the choice's tokens before the first of `tokens`."""

    id_prefix: str
    whole_name: str
    chunk_name: str

    def whole(self, text: str) -> dict[str, Any]: ...

    def opening(self) -> dict[str, Any] | None: ...

    def piece(self, text: str) -> dict[str, Any]: ...

    def logprobs(self, tokens: Sequence[Token], names: TokenNames, num_before: int) -> dict[str, Any]: ...


class CompletionForm:
    """`/v1/completions`."""

    id_prefix = "cmpl-"
    whole_name = "text_completion"
    chunk_name = "text_completion"

    def whole(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def opening(self) -> dict[str, Any] | None:
        return None

    def piece(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, tokens: Sequence[Token], names: TokenNames, num_before: int) -> dict[str, Any]:
        texts = [names.of(token.token_id)[0] for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{names.of(token_id)[0]: logprob for token_id, logprob in token.top} for token in tokens],
            "text_offset": list(_offsets(texts, num_before)),
        }


class ChatForm:
    """`/v1/chat/completions`."""

    id_prefix = "chatcmpl-"
    whole_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def opening(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def logprobs(self, tokens: Sequence[Token], names: TokenNames, num_before: int) -> dict[str, Any]:  # noqa: ARG002 - a matter of the other form
        def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
            text, raw = names.of(token_id)
            return {"token": text, "logprob": logprob, "bytes": list(raw)}

        content = [
            {**entry(token.token_id, token.logprob), "top_logprobs": [entry(*alternative) for alternative in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


@dataclass(slots=True)
class _Choice:
    tokens: list[Token] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    offset: int = 0
    finish_reason: FinishReason | None = None


class Reply:
    """One reply as its tokens come. Whole: `add` each token, then `whole`. In pieces: `chunks_of` each token, then `usage_chunk`.

    head — id, created, model. num_choices — over all prompts. wants_logprobs — whether the tokens carry them.
    """

    def __init__(self, form: Form, head: dict[str, Any], names: TokenNames, *, num_choices: int, wants_logprobs: bool) -> None:
        self._form = form
        self._head = head
        self._names = names
        self._wants_logprobs = wants_logprobs
        self._choices = [_Choice() for _ in range(num_choices)]

    def add(self, index: int, token: Token) -> None:
        choice = self._choices[index]
        choice.text.append(token.text)
        choice.finish_reason = token.finish_reason
        if self._wants_logprobs and token.token_id >= 0:
            choice.tokens.append(token)

    def whole(self, usage: Usage) -> dict[str, Any]:
        choices = [
            self._choice(index, self._form.whole("".join(choice.text)), choice.tokens, choice.finish_reason)
            for index, choice in enumerate(self._choices)
        ]
        return {**self._head, "object": self._form.whole_name, "choices": choices, "usage": usage.as_json()}

    def opening_chunks(self) -> list[dict[str, Any]]:
        opening = self._form.opening()
        return [] if opening is None else [self._chunk(index, opening) for index in range(len(self._choices))]

    def chunks_of(self, index: int, token: Token) -> list[dict[str, Any]]:
        """None for a token that shows nothing yet; the end of a choice comes in the chunk of its last token."""
        tokens = [token] if self._wants_logprobs and token.token_id >= 0 else []
        if not token.text and not tokens and token.finish_reason is None:
            return []
        return [self._chunk(index, self._form.piece(token.text), tokens, token.finish_reason)]

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return {**self._head, "object": self._form.chunk_name, "choices": [], "usage": usage.as_json()}

    def _chunk(
        self, index: int, content: dict[str, Any], tokens: Sequence[Token] = (), finish_reason: FinishReason | None = None
    ) -> dict[str, Any]:
        choice = self._choice(index, content, tokens, finish_reason)
        return {**self._head, "object": self._form.chunk_name, "choices": [choice]}

    def _choice(
        self, index: int, content: dict[str, Any], tokens: Sequence[Token], finish_reason: FinishReason | None
    ) -> dict[str, Any]:
        logprobs = None
        if tokens:
            choice = self._choices[index]
            logprobs = self._form.logprobs(tokens, self._names, choice.offset)
            choice.offset += sum(len(self._names.of(token.token_id)[0]) for token in tokens)
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}


def _offsets(texts: Iterable[str], offset: int) -> Iterator[int]:
    for text in texts:
        yield offset
        offset += len(text)
