"""Reads one call of `generate`: its rows and padding, or the reason why it has to run uncached.

Pure: looks at arguments and configs, calls nothing. The rule for arguments is a list of what is known not to touch keys and values;
anything else runs uncached, so that a new argument of transformers can make a model slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, GenerationConfig

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
ROOM_LIMIT_TOKENS = 1024
"""Most tokens for which a restored cache keeps room; longer generations fall back to growing by concatenation."""

# Arguments besides those of GenerationConfig that choose or show tokens without touching how keys and values are computed.
_HARMLESS = frozenset(
    {
        "inputs",
        "input_ids",
        "attention_mask",
        "generation_config",
        "logits_processor",
        "stopping_criteria",
        "prefix_allowed_tokens_fn",
        "synced_gpus",
        "streamer",
        "negative_prompt_ids",
        "negative_prompt_attention_mask",
        "tokenizer",
        "use_model_defaults",
        "logits_to_keep",
        "return_dict",
        *CACHE_NAMES,
    }
)
_GENERATION_SETTINGS = frozenset(vars(GenerationConfig()))  # type: ignore[no-untyped-call]  # transformers has no annotation
_ZERO_IS_HARMLESS = frozenset({"token_type_ids", "mm_token_type_ids"})
_REFUSED_MODES = {
    "penalty_alpha": "contrastive search",
    "dola_layers": "DoLa decoding",
    "prompt_lookup_num_tokens": "prompt lookup decoding",
    "constraints": "constrained beam search",
    "force_words_ids": "constrained beam search",
    "token_healing": "token healing (it rewrites the prompt)",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence: its token ids (num_tokens,) without the `padding` columns to their left."""

    token_ids: npt.NDArray[np.int64]
    padding: int


@dataclass(frozen=True, slots=True)
class Request:
    """One call that can be cached. rows — one per sequence of the expanded batch; room_tokens — columns to keep free for new tokens."""

    rows: tuple[Row, ...]
    num_columns: int
    room_tokens: int
    pad_token_id: int | None
    cache: DynamicCache | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call runs uncached, as the end of a sentence."""

    reason: str


def read_request(arguments: Mapping[str, Any], defaults: GenerationConfig | None, *, training: bool) -> Request | Refusal:
    """The request in the arguments of `generate`, or why there is none.

    arguments — by name, as the caller gave them; defaults — the model's own generation config; training — whether dropout is on.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    settings = _Settings(given, defaults)
    reason = "the model is in training mode" if training else _mode_refusal(settings) or _argument_refusal(given)
    if reason is not None:
        return Refusal(reason)
    token_ids = given.get("inputs", given.get("input_ids"))
    if not isinstance(token_ids, torch.Tensor) or token_ids.ndim != 2 or token_ids.is_floating_point():
        return Refusal("the prompt is not a (batch, tokens) tensor of token ids")
    paddings = _paddings(token_ids, given.get("attention_mask"), settings)
    if isinstance(paddings, Refusal):
        return paddings
    matrix = token_ids.detach().cpu().numpy().astype(np.int64, copy=False)
    repeats = int(settings.get("num_return_sequences") or 1)
    rows = [Row(matrix[idx, padding:], padding) for idx, padding in enumerate(paddings)]
    return Request(
        rows=tuple(row for row in rows for _ in range(repeats)),
        num_columns=matrix.shape[1],
        room_tokens=min(_new_tokens(settings, matrix.shape[1]), ROOM_LIMIT_TOKENS),
        pad_token_id=_single_id(settings.get("pad_token_id")),
        cache=next((given[name] for name in CACHE_NAMES if name in given), None),
    )


class _Settings:
    """A generation setting is the first that is set: argument, generation config of the call, generation config of the model."""

    def __init__(self, given: Mapping[str, Any], defaults: GenerationConfig | None) -> None:
        self._given = given
        self._configs = (given.get("generation_config"), defaults)

    def get(self, name: str) -> Any:
        if name in self._given:
            return self._given[name]
        values = (getattr(config, name, None) for config in self._configs)
        return next((value for value in values if value is not None), None)


def _mode_refusal(settings: _Settings) -> str | None:
    if settings.get("use_cache") is False:
        return "use_cache is off"
    if settings.get("cache_implementation") is not None:
        return f"cache_implementation={settings.get('cache_implementation')!r} is not the dynamic cache"
    if int(settings.get("num_beams") or 1) > 1:
        return "beam search reorders the cache"
    return next((f"{mode} is not supported" for name, mode in _REFUSED_MODES.items() if settings.get(name)), None)


def _argument_refusal(given: Mapping[str, Any]) -> str | None:
    for name, value in given.items():
        if name in _ZERO_IS_HARMLESS and isinstance(value, torch.Tensor) and not bool(value.any()):
            continue
        if name not in _HARMLESS and name not in _GENERATION_SETTINGS:
            return f"the argument {name!r} may change keys and values"
        if name in CACHE_NAMES and (type(value) is not DynamicCache or value.get_seq_length() > 0):
            return "a cache of your own that is not an empty DynamicCache was passed"
    if len([name for name in CACHE_NAMES if name in given]) > 1:
        return "two caches were passed"
    return None


def _paddings(token_ids: torch.Tensor, mask: Any, settings: _Settings) -> list[int] | Refusal:
    """Padding columns left of each row."""
    num_rows, num_columns = token_ids.shape
    if num_rows == 0 or num_columns == 0:
        return Refusal("the prompt is empty")
    if mask is None:
        pad, eos = (_single_id(settings.get("pad_token_id")), settings.get("eos_token_id"))
        ends = eos if isinstance(eos, list | tuple) else [eos]
        if pad is not None and pad not in ends and bool((token_ids == pad).any()):
            return Refusal("the prompt holds padding and no attention_mask was passed")
        return [0] * num_rows
    if not isinstance(mask, torch.Tensor) or mask.shape != token_ids.shape:
        return Refusal("the attention_mask has not the shape of the prompt")
    matrix = mask.detach().cpu().numpy() != 0
    paddings = np.argmax(matrix, axis=1)
    if not np.array_equal(matrix, np.arange(num_columns) >= paddings[:, None]):
        return Refusal("the attention_mask has padding on the right, holes, or an empty row")
    return [int(padding) for padding in paddings]


def _new_tokens(settings: _Settings, num_columns: int) -> int:
    new_tokens = settings.get("max_new_tokens")
    if new_tokens is not None:
        return int(new_tokens)
    length = settings.get("max_length")
    return max(int(length) - num_columns, 0) if length is not None else 256


def _single_id(value: Any) -> int | None:
    return value if isinstance(value, int) else None
