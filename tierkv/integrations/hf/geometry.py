"""What one block of a model holds, learned from one token: which layers keep keys and values, their shapes, dtype and devices.

Asking the model instead of its config covers every architecture whose cache layers are the dynamic or the sliding one: grouped
heads, values narrower than keys, layers that share another's cache. What else keeps state (linear attention, quantised or indexed
layers) is refused here by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from tierkv.model.layout import DTYPE_BYTES, Layout, dense_layout

# A prefix's keys under these depend on how long the whole sequence is, so they are not a function of the prefix.
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope", "su"})


class UnsupportedModelError(Exception):
    """A model whose cache cannot be kept; its text is the end of a sentence. Only used between this module and the attachment."""


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """One layer that keeps keys and values. window — its sliding window in tokens, None for full attention."""

    layer_idx: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    device: torch.device


@dataclass(frozen=True, slots=True)
class Geometry:
    """All layers that keep keys and values, in order, and their common dtype."""

    layers: tuple[LayerGeometry, ...]
    dtype: torch.dtype

    @property
    def is_uniform(self) -> bool:
        """Whether every layer has the same heads and widths, so that a block is one array."""
        first = self.layers[0]
        shape = (first.num_kv_heads, first.key_dim, first.key_dim)
        return all((layer.num_kv_heads, layer.key_dim, layer.value_dim) == shape for layer in self.layers)

    @property
    def is_dense(self) -> bool:
        """Whether all layers are uniform, see the whole past and lie on one device."""
        devices = {layer.device for layer in self.layers}
        return self.is_uniform and len(devices) == 1 and all(layer.window is None for layer in self.layers)

    def layout(self, block_tokens: int) -> Layout:
        """The layout of blocks of `block_tokens`: the dense array, or for unequal layers their K and V one after the other."""
        dtype = str(self.dtype).removeprefix("torch.")
        first = self.layers[0]
        if self.is_uniform:
            return dense_layout(
                num_layers=len(self.layers),
                num_kv_heads=first.num_kv_heads,
                block_tokens=block_tokens,
                head_dim=first.key_dim,
                dtype=dtype,
            )
        elements = sum(math.prod(shape) for shape in self.part_shapes(block_tokens))
        return Layout(shape=(elements,), dtype=dtype, block_tokens=block_tokens)

    def part_shapes(self, block_tokens: int) -> list[tuple[int, int, int]]:
        """Shapes (heads, block_tokens, width) of K and V of each layer, in the order they have in a block."""
        return [(layer.num_kv_heads, block_tokens, width) for layer in self.layers for width in (layer.key_dim, layer.value_dim)]


def probe(model: torch.nn.Module, cache_name: str) -> Geometry:
    """Runs one token through `model` and reads the geometry off its cache. Raises UnsupportedModelError with the reason.

    cache_name — the argument of `forward` that takes the cache. Cost: one decoding step.
    """
    config: Any = model.config
    _refuse_by_config(config)
    cache = DynamicCache(config=config.get_text_config(decoder=True))
    for layer in cache.layers:
        _refuse_by_layer(layer)
    device = getattr(model, "device", torch.device("cpu"))
    token = torch.zeros((1, 1), dtype=torch.long, device=device)
    with torch.no_grad():
        try:
            model(input_ids=token, use_cache=True, **{cache_name: cache})
        except Exception as error:
            # Whatever a model does with a cache it does not know, the answer is the same: it is not supported.
            raise UnsupportedModelError(f"it does not run with a DynamicCache ({type(error).__name__}: {error})") from error
    return _read(cache)


def _refuse_by_config(config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError("encoder-decoder models are not supported")
    for rope_type in _rope_types(config.to_dict()):
        if rope_type in _LENGTH_DEPENDENT_ROPE:
            raise UnsupportedModelError(f"with RoPE scaling {rope_type!r} keys depend on the length of the whole sequence")


def _rope_types(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value[name] for name in ("rope_type", "type") if isinstance(value.get(name), str)]
        return own + [found for item in value.values() for found in _rope_types(item)]
    return []


def _refuse_by_layer(layer: Any) -> None:
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) and type(layer).__name__ != "DummyLayer":
        raise UnsupportedModelError(f"cache layers of type {type(layer).__name__} cannot be kept yet")


def _read(cache: DynamicCache) -> Geometry:
    layers: list[LayerGeometry] = []
    dtypes: set[torch.dtype] = set()
    for layer_idx, layer in enumerate(cache.layers):
        _refuse_by_layer(layer)
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.numel() == 0:
            continue
        if keys.ndim != 4 or keys.shape[-2] != 1 or values.shape[:3] != keys.shape[:3]:
            raise UnsupportedModelError(f"layer {layer_idx} keeps keys of shape {tuple(keys.shape)}")
        window = layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None
        if window is not None and window < 2:
            raise UnsupportedModelError(f"layer {layer_idx} has a window of {window} token")
        layers.append(LayerGeometry(layer_idx, keys.shape[1], keys.shape[-1], values.shape[-1], window, keys.device))
        dtypes |= {keys.dtype, values.dtype}
    if not layers:
        raise UnsupportedModelError("it keeps no keys and values in a DynamicCache (linear attention or state space model)")
    if len(dtypes) > 1 or str(next(iter(dtypes))).removeprefix("torch.") not in DTYPE_BYTES:
        raise UnsupportedModelError(f"its keys and values have the dtypes {sorted(map(str, dtypes))}")
    return Geometry(tuple(layers), dtypes.pop())
