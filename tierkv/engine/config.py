"""What the engine must know of a model, read off its transformers config once. Values only.

A config that asks for something the engine does not compute is refused here by name, before any weight is loaded: an engine that
ignored a field would be wrong without anybody noticing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch

from tierkv.errors import InvalidRequestError
from tierkv.model.layout import Layout, dense_layout

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Under the others (dynamic, longrope) a key depends on the length of the whole sequence, so a block is no function of its prefix.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A dense decoder with grouped heads, RoPE and a gated MLP.

    inv_freq — of RoPE, head_dim / 2 float32 values; rope_scaling — factor on its sines and cosines. windows — for each layer the
    number of tokens it sees, its own among them, None for all. dtype — of weights, activations and pages, a key of DTYPES.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    context_tokens: int
    inv_freq: tuple[float, ...]
    rope_scaling: float
    windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    dtype: str

    @classmethod
    def from_transformers(cls, config: Any, *, dtype: str = "float32", generation_config: Any = None) -> Self:
        """Reads a transformers config; eos_token_ids from the generation config where it has some.

        Raises InvalidRequestError for an architecture, RoPE scaling, activation, quantisation or dtype that the engine lacks.
        """
        _refuse(config, dtype)
        num_heads = int(config.num_attention_heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // num_heads)
        inv_freq, rope_scaling = _rope(config, head_dim)
        return cls(
            num_layers=int(config.num_hidden_layers),
            num_heads=num_heads,
            num_kv_heads=int(config.num_key_value_heads),
            head_dim=head_dim,
            vocab_size=int(config.vocab_size),
            rms_norm_eps=float(config.rms_norm_eps),
            context_tokens=int(config.max_position_embeddings),
            inv_freq=inv_freq,
            rope_scaling=rope_scaling,
            windows=_windows(config),
            eos_token_ids=_eos_token_ids(generation_config) or _eos_token_ids(config),
            dtype=dtype,
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch names it."""
        return DTYPES[self.dtype]

    def layout(self, block_tokens: int) -> Layout:
        """The layout of this model's blocks: (num_layers, 2, num_kv_heads, block_tokens, head_dim)."""
        return dense_layout(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            block_tokens=block_tokens,
            head_dim=self.head_dim,
            dtype=self.dtype,
        )


def check_device(device: str) -> None:
    """Raises InvalidRequestError for what is no device, and for one that this machine or this torch has not; call it before `load`."""
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise InvalidRequestError("a device looks like cpu or cuda:0", device=device) from error
    num_devices = {"cpu": 1, "cuda": torch.cuda.device_count()}.get(wanted.type, 0)
    if (wanted.index or 0) >= num_devices:
        raise InvalidRequestError("this machine has no such device, or torch was built without it", device=device)


def _refuse(config: Any, dtype: str) -> None:
    if config.model_type not in ARCHITECTURES:
        raise InvalidRequestError(
            "the engine does not run this architecture; use one of those it supports",
            architecture=config.model_type,
            supported=", ".join(ARCHITECTURES),
        )
    if dtype not in DTYPES:
        raise InvalidRequestError("the engine does not compute in this dtype", dtype=dtype, supported=", ".join(DTYPES))
    if config.hidden_act != "silu":
        raise InvalidRequestError("the engine has the activation silu only", activation=config.hidden_act)
    rope_type = config.rope_parameters.get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        raise InvalidRequestError(
            "with this scaling of RoPE a block's keys depend on what follows it",
            rope_type=rope_type,
            supported=", ".join(ROPE_TYPES),
        )


def _rope(config: Any, head_dim: int) -> tuple[tuple[float, ...], float]:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    # All four architectures share this class's way from a config to frequencies, and its dispatch to transformers' scalings.
    rotary: Any = LlamaRotaryEmbedding(config)
    inv_freq = tuple(rotary.inv_freq.tolist())
    if len(inv_freq) * 2 != head_dim:
        raise InvalidRequestError("the engine rotates whole heads only", rotated=len(inv_freq) * 2, head_dim=head_dim)
    return inv_freq, float(rotary.attention_scaling)


def _windows(config: Any) -> tuple[int | None, ...]:
    window = None if config.model_type == "llama" else getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention"] * int(config.num_hidden_layers)
    return tuple(window if layer_type == "sliding_attention" else None for layer_type in layer_types)


def _eos_token_ids(config: Any) -> tuple[int, ...]:
    value = getattr(config, "eos_token_id", None)
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return tuple(map(int, values))
