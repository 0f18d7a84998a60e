"""Small random models of every architecture the engine runs, and pages for them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers

from tierkv.engine.config import ModelConfig
from tierkv.engine.memory import PageMemory
from tierkv.engine.model import Transformer
from tierkv.engine.weights import LoadedModel, take_weights
from tierkv.integrations.fingerprint import identity_of
from tierkv.model.layout import Layout
from tierkv.pages import Pool

VOCABULARY = 128
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 6
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "llama, tied, with biases": lambda: transformers.LlamaConfig(
        **SMALL, tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama 3, scaled RoPE": lambda: transformers.LlamaConfig(**SMALL, rope_parameters=scaled("llama3")),
    "llama, linear RoPE": lambda: transformers.LlamaConfig(**SMALL, rope_parameters=scaled("linear")),
    "llama, YaRN": lambda: transformers.LlamaConfig(**SMALL, rope_parameters=scaled("yarn")),
    "mistral, windows": lambda: transformers.MistralConfig(**SMALL, sliding_window=WINDOW),
    "mistral, one kv head": lambda: transformers.MistralConfig(**{**SMALL, "num_key_value_heads": 1}, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen2, windows in some layers": lambda: transformers.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3, heads wider than hidden": lambda: transformers.Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=True),
}


def scaled(rope_type: str) -> dict[str, Any]:
    more = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}.get(rope_type, {})
    return {"rope_type": rope_type, "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16, **more}


def random_model(config: Any, seed: int = 0) -> Any:
    """A model with weights so large that every part of it moves the logits."""
    torch.manual_seed(seed)
    model: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    return model


def loaded(model: Any, dtype: str = "float32") -> LoadedModel:
    """`model` as the engine loads it; itself it stays whole."""
    config = ModelConfig.from_transformers(model.config, dtype=dtype, generation_config=model.generation_config)
    mine = copy.deepcopy(model).to(config.torch_dtype)
    identity = identity_of(mine, kv_dtype=dtype)
    return LoadedModel(config, take_weights(mine), None, identity)


def page_memory(layout: Layout, num_pages: int) -> PageMemory:
    """Pages that are full of NaN, as memory that served another model might be."""
    buffer = memoryview(bytearray(b"\xff" * (layout.block_bytes * num_pages)))
    return PageMemory(Pool("cpu", layout.block_bytes, num_pages, buffer), layout)


def bound(model: Any, *, block_tokens: int = 4, num_pages: int = 64, dtype: str = "float32") -> Transformer:
    """The engine's side of `model` over pages of its own."""
    own = loaded(model, dtype)
    transformer = Transformer(own)
    transformer.bind(page_memory(own.layout(block_tokens), num_pages))
    return transformer
