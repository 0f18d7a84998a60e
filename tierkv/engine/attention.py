"""Attention over keys and values that lie in pages: the pieces of work that a step is planned into (`plan`), each with `run`.

    start 0, several tokens    Chunk           its keys and values are the step's own rows; nothing is read from pages
    start > 0, many tokens     Chunk           pages are gathered; a mask hides from each token what follows it
    start > 0, a few           GatheredRows    the same, for one sequence's tokens or for a single token of each of several
    single tokens on a GPU     KernelDecodes   a kernel reads the pages in place

Pages are gathered one layer at a time, into memory so small that it stays in the processor's cache until it is read: attention wants
the keys of a sequence side by side, and this costs less than keeping a second copy of every sequence would.

Keys and values are never repeated for the query heads that share them. Of a few tokens, such heads are rows of one matrix, so that
each key is read once; of many, that gains nothing and would take a mask as many times as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

Rows = slice | torch.Tensor
"""Which tokens of the step: a run of them, or their indices."""


DecodeKernel = Callable[..., torch.Tensor]
"""Attention of one token of each sequence, called as `tierkv.engine.triton_decode.paged_decode` is."""


class Room:
    """Memory that pages are gathered into, again and again: memory that is new to a process costs more than the copy into it."""

    def __init__(self) -> None:
        self._whole: torch.Tensor | None = None

    def take(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """A tensor of `shape`, of the dtype and on the device of `like`, content undefined; the one taken before it is over."""
        size = math.prod(shape)
        if self._whole is None or len(self._whole) < size:
            self._whole = like.new_empty(size)
        return self._whole[:size].view(shape)


@dataclass(frozen=True, slots=True, eq=False)
class LayerHeads:
    """One layer's part of a step.

    queries — (tokens, num_heads, head_dim), rotated; keys_values — (tokens, 2, num_kv_heads, head_dim) of the same tokens.
    memory — (num_pages, num_layers, 2, num_kv_heads, block_tokens, head_dim), every page of the pool.
    room — for the pages that are gathered.
    """

    queries: torch.Tensor
    keys_values: torch.Tensor
    memory: torch.Tensor
    layer_idx: int
    room: Room

    @property
    def pages(self) -> torch.Tensor:
        """(num_pages, 2, num_kv_heads, block_tokens, head_dim): the layer's part of every page."""
        return self.memory[:, self.layer_idx]

    def gather(self, pages: torch.Tensor) -> torch.Tensor:
        """Pages one behind the other: (2, num_kv_heads, len(pages) · block_tokens, head_dim), until the next call."""
        source = self.pages.permute(1, 2, 0, 3, 4)
        gathered = self.room.take((*source.shape[:2], len(pages), *source.shape[3:]), source)
        return torch.index_select(source, 2, pages, out=gathered).flatten(2, 3)


class Work(Protocol):
    """Attention of some rows of the step."""

    def run(self, heads: LayerHeads, output: torch.Tensor) -> None:
        """Writes the rows' attention to `output`, (tokens, num_heads, head_dim)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Many tokens of a sequence. pages — those that any of them sees; None for a sequence's first tokens, which see their own rows only.

    mask — (tokens, keys); None for plain causal attention of first tokens.
    """

    rows: slice
    pages: torch.Tensor | None
    mask: torch.Tensor | None

    def run(self, heads: LayerHeads, output: torch.Tensor) -> None:
        """queries, like the output, are (tokens, num_heads, head_dim); keys and values (num_kv_heads, keys, head_dim)."""
        if self.pages is None:
            keys, values = heads.keys_values[self.rows].permute(1, 2, 0, 3)
        else:
            keys, values = heads.gather(self.pages)
        queries, num_kv_heads = heads.queries[self.rows], keys.shape[0]
        num_rows, num_heads, head_dim = queries.shape
        num_keys = keys.shape[1] if self.mask is None else self.mask.shape[1]
        group = num_heads // num_kv_heads
        # kv heads stand where a batch would, and each is seen by its group of query heads without being copied.
        grouped = queries.reshape(num_rows, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
        keys, values = (part[:, None, :num_keys].expand(-1, group, -1, -1) for part in (keys, values))
        attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=self.mask, is_causal=self.mask is None)
        output[self.rows] = attended.permute(2, 0, 1, 3).flatten(1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class GatheredRows:
    """As many tokens of each of several sequences, one sequence behind the other.

    pages — (sequences · pages of the longest,): what any of the rows sees; num_keys — of the longest, from its first page here.
    mask — (sequences, 1, tokens of each · group of query heads, num_keys), or None where all see all.
    """

    rows: Rows
    num_sequences: int
    pages: torch.Tensor
    num_keys: int
    mask: torch.Tensor | None

    def run(self, heads: LayerHeads, output: torch.Tensor) -> None:
        _, num_heads, head_dim = heads.queries.shape
        num_kv_heads = heads.memory.shape[3]
        per_head = (self.num_sequences, -1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        queries = heads.queries[self.rows].reshape(per_head).transpose(1, 2)
        gathered = heads.gather(self.pages).view(2, num_kv_heads, self.num_sequences, -1, head_dim)
        keys, values = gathered[:, :, :, : self.num_keys].transpose(1, 2)
        attended = scaled_dot_product_attention(queries.flatten(2, 3), keys, values, attn_mask=self.mask)
        output[self.rows] = attended.view(queries.shape).transpose(1, 2).reshape(-1, num_heads, head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class KernelDecodes:
    """One token of each sequence. block_tables — (sequences, pages of the longest), lengths — (sequences,), both int32."""

    kernel: DecodeKernel
    rows: Rows
    block_tables: torch.Tensor
    lengths: torch.Tensor
    window: int | None

    def run(self, heads: LayerHeads, output: torch.Tensor) -> None:
        queries = heads.queries[self.rows]
        scale = queries.shape[-1] ** -0.5
        output[self.rows] = self.kernel(queries, heads.memory, heads.layer_idx, self.block_tables, self.lengths, scale, self.window)


def decode_kernel(device: torch.device) -> DecodeKernel | None:
    """The kernel for a device; None on the CPU and where Triton is not installed."""
    if device.type != "cuda":
        return None
    try:
        from tierkv.engine.triton_decode import paged_decode
    except ImportError:
        return None
    return paged_decode
