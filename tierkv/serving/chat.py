"""From messages to a prompt, by the chat template of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tierkv.errors import InvalidRequestError


def chat_prompt(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of a conversation up to where the model answers. Raises InvalidRequestError where the model's template refuses it."""
    from jinja2 import TemplateError

    if tokenizer is None or not tokenizer.chat_template:
        raise InvalidRequestError("this model has no chat template; use completions", field="messages")
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise InvalidRequestError("the model's chat template refuses the messages", field="messages", error=error) from error
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return token_ids
