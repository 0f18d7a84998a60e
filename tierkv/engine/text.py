"""Text of a sequence as its tokens come: whole characters only, and stop strings that are never shown.

A token may hold part of a character, and what a token reads as depends on the one before it (a leading space). So each token is
decoded behind the piece of text before it, and what ends in U+FFFD waits for the rest of the character. The window of tokens that are
decoded again is a few tokens, however long the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_HALF = "\ufffd"
_CONTEXT_TOKENS = 6
"""Tokens of the prompt that the first token is decoded behind; more where they would begin inside a character."""
_MAX_CONTEXT_TOKENS = 24
_MAX_PENDING_TOKENS = 16
"""A character has four bytes at most, so what waits longer holds bytes that will never be one, or tokens without text."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """text — what may be shown now. is_stopped — a stop string was found; the text ends before it."""

    text: str
    is_stopped: bool = False


class TextStream:
    """One sequence's text.

    tokenizer — a tokenizer of transformers; None: there is no text. prompt_ids — the text goes on from them. stop — strings that end it; none is empty.
    """

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._pieces = _Pieces(tokenizer, prompt_ids)
        self._stop = tuple(stop)
        self._held = ""
        self._is_stopped = False

    def push(self, token_id: int) -> TextDelta:
        """Takes the next token. Text that may be the beginning of a stop string is held back. After a stop there is no more text."""
        if self._is_stopped:
            return TextDelta("", is_stopped=True)
        text, self._is_stopped = self._until_stop(self._held + self._pieces.push(token_id))
        if self._is_stopped:
            return TextDelta(text, is_stopped=True)
        num_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        text, self._held = text[: len(text) - num_held], text[len(text) - num_held :]
        return TextDelta(text)

    def flush(self) -> str:
        """What was held back, when the sequence has ended for another reason than a stop string. Half a character reads as U+FFFD."""
        if self._is_stopped:
            return ""
        text, self._is_stopped = self._until_stop(self._held + self._pieces.flush())
        self._held = ""
        return text

    def _until_stop(self, text: str) -> tuple[str, bool]:
        """The text before the first stop string, and whether there is one in it."""
        starts = [start for start in map(text.find, self._stop) if start >= 0]
        return text[: min(starts, default=len(text))], bool(starts)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with, without being complete."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


class _Pieces:
    """Token by token to text.

    The window is [context | pending]: the tokens of the piece of text before, and those after it. `_shown` is the part of the
    window's text that was given out. The window moves on only where its text ends in a whole character.
    """

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_context = 0
        self._shown = ""
        for size in range(_CONTEXT_TOKENS, _MAX_CONTEXT_TOKENS + 1):
            self._keep(list(prompt_ids[-size:]))
            if not self._shown.startswith(_HALF):
                break

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        whole = text.rstrip(_HALF)
        if len(self._window) - self._num_context > _MAX_PENDING_TOKENS:
            return self._move_on(text)
        if len(whole) <= len(self._shown.rstrip(_HALF)):
            return ""
        if whole == text:
            return self._move_on(text)
        piece = self._after_shown(whole)
        self._shown = whole
        return piece

    def flush(self) -> str:
        return self._move_on(self._decode(self._window))

    def _move_on(self, text: str) -> str:
        piece = self._after_shown(text)
        window = self._window
        self._keep(window[self._num_context :])
        if self._shown.startswith(_HALF) and len(window) <= _MAX_CONTEXT_TOKENS:
            # The piece began inside a character, so it cannot be read without what is before it.
            self._window, self._num_context, self._shown = window, len(window), text
        return piece

    def _keep(self, token_ids: list[int]) -> None:
        self._window = token_ids
        self._num_context = len(token_ids)
        self._shown = self._decode(token_ids)

    def _after_shown(self, text: str) -> str:
        # Where the prompt ended in half a character, the whole one takes the place of its U+FFFD.
        shown = self._shown if text.startswith(self._shown) else self._shown.rstrip(_HALF)
        return text[len(shown) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        if self._tokenizer is None:
            return ""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
