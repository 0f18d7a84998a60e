"""The decoder: tokens of many sequences through all layers in one go, keys and values into pages.

All tokens of a step lie one behind the other, whoever they belong to; only attention knows of sequences. The arithmetic is that of
transformers' Llama, Mistral, Qwen2 and Qwen3, in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch.nn.functional import embedding, rms_norm, silu

from tierkv.engine.attention import LayerHeads, Room, decode_kernel
from tierkv.engine.config import ModelConfig
from tierkv.engine.memory import PageMemory
from tierkv.engine.plan import Geometry, Plan, Span
from tierkv.engine.weights import LayerWeights, LoadedModel
from tierkv.errors import InvalidRequestError

__all__ = ["Span", "Transformer"]


class Transformer:
    """A loaded model over the pages it is bound to. Not for two threads at once."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.config: ModelConfig = loaded.config
        self._weights = loaded.weights
        self._device = loaded.weights.embedding.device
        self._inv_freq = torch.tensor(self.config.inv_freq, dtype=torch.float32, device=self._device)
        self._memory: PageMemory | None = None
        self._geometry: Geometry | None = None
        self._room = Room()

    def bind(self, memory: PageMemory) -> None:
        """Reads and writes pages of `memory` from now on; borrowed, and let go of by the next `bind`.

        Raises InvalidRequestError for pages of another model's layout.
        """
        expected = self.config.layout(memory.layout.block_tokens)
        if memory.layout != expected:
            raise InvalidRequestError("these pages are cut for another model", shape=memory.layout.shape, expected=expected.shape)
        self._memory = memory
        self._geometry = Geometry(
            windows=frozenset(self.config.windows),
            block_tokens=memory.layout.block_tokens,
            layer_page_bytes=memory.layout.block_bytes // self.config.num_layers,
            group=self.config.num_heads // self.config.num_kv_heads,
            dtype=self.config.torch_dtype,
            device=self._device,
            kernel=decode_kernel(self._device),
        )

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        """Computes the spans and writes their keys and values into their pages; chunks and single tokens may be mixed.

        Returns float32 (number of spans that want logits, vocab_size), in the order of the spans.
        """
        assert self._memory is not None and self._geometry is not None and spans, (
            "bind comes first, and a step has something to compute"
        )
        memory = self._memory.pages
        plan = Plan(spans, self._geometry)
        plan.clear(memory)
        token_ids = torch.tensor([token_id for span in spans for token_id in span.token_ids], device=self._device)
        hidden = embedding(token_ids, self._weights.embedding)
        rotation = self._rotation(plan.positions)
        wanted = self._wanted_rows(spans)
        for idx, layer in enumerate(self._weights.layers):
            heads = self._heads(hidden, layer, rotation)
            own = LayerHeads(heads[:, : self.config.num_heads], self._keys_values(heads), memory, idx, self._room)
            plan.write(own)
            if idx == self.config.num_layers - 1 and not len(wanted):
                return hidden.new_empty((0, self.config.vocab_size), dtype=torch.float32)
            attended = plan.attend(own, self.config.windows[idx]).flatten(1)
            if idx == self.config.num_layers - 1:
                # Behind the last keys and values only the rows that become logits matter.
                hidden, attended = hidden[wanted], attended[wanted]
            hidden = self._mlp(hidden + layer.output(attended), layer)
        return self._weights.head(self._normed(hidden, self._weights.norm)).float()

    def _heads(self, hidden: torch.Tensor, layer: LayerWeights, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """(tokens, query heads, then key heads, then value heads, head_dim); queries and keys are rotated."""
        num_heads, num_rotated = self.config.num_heads, self.config.num_heads + self.config.num_kv_heads
        heads = layer.qkv(self._normed(hidden, layer.attention_norm)).view(len(hidden), -1, self.config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            heads[:, :num_heads] = self._normed(heads[:, :num_heads], layer.q_norm)
            heads[:, num_heads:num_rotated] = self._normed(heads[:, num_heads:num_rotated], layer.k_norm)
        _rotate(heads[:, :num_rotated], rotation)
        return heads

    def _keys_values(self, heads: torch.Tensor) -> torch.Tensor:
        config = self.config
        return heads[:, config.num_heads :].view(len(heads), 2, config.num_kv_heads, config.head_dim)

    def _mlp(self, hidden: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        gate, up = layer.gate_up(self._normed(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        return hidden + layer.down(silu(gate).mul_(up))

    def _wanted_rows(self, spans: Sequence[Span]) -> torch.Tensor:
        """Of each span that wants logits, its last token among all of the step."""
        ends = list(itertools.accumulate(len(span.token_ids) for span in spans))
        rows = [end - 1 for end, span in zip(ends, spans, strict=True) if span.wants_logits]
        return torch.tensor(rows, dtype=torch.long, device=self._device)

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, weight.shape, weight, self.config.rms_norm_eps)

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines of a step's tokens, (tokens, 1, head_dim) each."""
        angles = positions.float()[:, None] * self._inv_freq
        cosines, sines = angles.cos() * self.config.rope_scaling, angles.sin() * self.config.rope_scaling
        signed = torch.cat((-sines, sines), dim=-1)
        dtype = self.config.torch_dtype
        return torch.cat((cosines, cosines), dim=-1)[:, None].to(dtype), signed[:, None].to(dtype)


def _rotate(heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> None:
    """RoPE in place; heads — (tokens, heads, head_dim). The halves of a head are the two coordinates."""
    cosines, sines = rotation
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(cosines).addcmul_(swapped, sines)
