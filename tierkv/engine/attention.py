"""Attention over keys and values that lie in pages, and how they get there.

A step is planned once and then run in every layer: which rows of the step's tokens go to which slots of which pages, and which rows
look at which pages. Four kinds of work, each a small class with `run`:

    start 0, several tokens    FirstChunk     its keys and values are the step's own rows; nothing is read from pages
    start > 0, several tokens  LaterChunk     pages [first, end) are gathered; a mask hides what lies behind each row
    one token                  Decodes        sequences of similar length at once; query heads of one kv head are the rows
    the same, on CUDA          KernelDecodes  all sequences at once, by a kernel that reads pages in place, where Triton is installed

Pages are gathered into memory of one layer at a time that is used again and again, so it stays in the processor's cache: attention
wants its keys side by side, and this costs less than keeping a second copy of every sequence would.

Invariants: pages before a span are only read, so many sequences may share them; a row never looks past its own position; slots behind
the end of a sequence hold zeros or its own old values, never another's bits (a mask cannot hide a NaN), because a page is cleared
when it is begun.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

GATHER_BYTES = 4 << 20
"""K and V of one layer that several decoding sequences may gather at once: the part of a core's cache that helps."""
PADDING_RATIO = 1.25
"""How much longer than the shortest the longest sequence of one group may be."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, start + len(token_ids)) of one sequence, to be computed in this step; what lies before start is in pages already.

    pages — the block table: pages[i] holds tokens [i·block_tokens, (i+1)·block_tokens); covers start + len(token_ids).
    wants_logits — of the last token.
    """

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    wants_logits: bool

    @property
    def end(self) -> int:
        """Tokens of the sequence after this step."""
        return self.start + len(self.token_ids)


Rows = slice | torch.Tensor
"""Which tokens of the step: a run of them, or their indices."""


class Work(Protocol):
    """Attention of some rows of the step."""

    def run(self, heads: LayerHeads, output: torch.Tensor) -> None:
        """Writes the rows' attention to `output`, (tokens, num_heads, head_dim)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LayerHeads:
    """One layer's part of a step.

    queries — (tokens, num_heads, head_dim), rotated; keys_values — (tokens, 2, num_kv_heads, head_dim) of the same tokens.
    pages — (num_pages, 2, num_kv_heads, block_tokens, head_dim), the layer's part of every page.
    """

    queries: torch.Tensor
    keys_values: torch.Tensor
    pages: torch.Tensor

    def gather(self, pages: torch.Tensor) -> torch.Tensor:
        """Pages one behind the other: (2, num_kv_heads, len(pages) · block_tokens, head_dim)."""
        gathered = torch.index_select(self.pages.permute(1, 2, 0, 3, 4), 2, pages)
        return gathered.flatten(2, 3)


@dataclass(frozen=True, slots=True, eq=False)
class FirstChunk:
    """A sequence's first tokens. mask — None for plain causal attention."""

    rows: slice
    mask: torch.Tensor | None

    def run(self, heads: LayerHeads, output: torch.Tensor) -> None:
        keys, values = heads.keys_values[self.rows].permute(1, 2, 0, 3)
        output[self.rows] = _attend_many(heads.queries[self.rows], keys, values, self.mask)


@dataclass(frozen=True, slots=True, eq=False)
class LaterChunk:
    """Tokens behind others that are in pages. pages — those that any row sees; mask — (rows, keys of those pages up to the end)."""

    rows: slice
    pages: torch.Tensor
    mask: torch.Tensor

    def run(self, heads: LayerHeads, output: torch.Tensor) -> None:
        keys, values = heads.gather(self.pages)[:, :, : self.mask.shape[1]]
        output[self.rows] = _attend_many(heads.queries[self.rows], keys, values, self.mask)


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """One token each of several sequences. pages — (sequences · pages of the longest,); mask — (sequences, 1, 1, keys) or None."""

    rows: Rows
    num_sequences: int
    pages: torch.Tensor
    num_keys: int
    mask: torch.Tensor | None

    def run(self, heads: LayerHeads, output: torch.Tensor) -> None:
        _, num_heads, head_dim = heads.queries.shape
        num_kv_heads = heads.pages.shape[2]
        # Query heads of one kv head become rows of one small matrix, so keys and values are read once and never repeated.
        queries = heads.queries[self.rows].reshape(self.num_sequences, num_kv_heads, num_heads // num_kv_heads, head_dim)
        gathered = heads.gather(self.pages).view(2, num_kv_heads, self.num_sequences, -1, head_dim)
        keys, values = gathered[:, :, :, : self.num_keys].transpose(1, 2)
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask)
        output[self.rows] = attended.reshape(self.num_sequences, num_heads, head_dim)


class DecodeKernel(Protocol):
    """Attention of one token of each of several sequences over pages that are read in place; `triton_decode.paged_decode`."""

    def __call__(
        self,
        q: torch.Tensor,
        pages: torch.Tensor,
        layer: int,
        block_tables: torch.Tensor,
        lengths: torch.Tensor,
        scale: float,
        window: int | None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class KernelDecodes:
    """One token each of several sequences, by a kernel: nothing is gathered. tables — (sequences, pages of the longest) int32; lengths —
    (sequences,) int32.
    """

    rows: Rows
    tables: torch.Tensor
    lengths: torch.Tensor
    window: int | None
    kernel: DecodeKernel

    def run(self, heads: LayerHeads, output: torch.Tensor) -> None:
        queries = heads.queries[self.rows]
        scale = float(queries.shape[-1] ** -0.5)
        output[self.rows] = self.kernel(queries, heads.pages.unsqueeze(1), 0, self.tables, self.lengths, scale, self.window)


def find_decode_kernel(device: torch.device) -> DecodeKernel | None:
    """The kernel for decodes on `device`: Triton's on CUDA where the extra `triton` is installed; None: pages are gathered."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from tierkv.engine.triton_decode import paged_decode

    return paged_decode


def _attend_many(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Queries (rows, num_heads, head_dim), keys and values (num_kv_heads, keys, head_dim); (rows, num_heads, head_dim)."""
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[0]
    # kv heads stand where a batch would, and each is seen by its group of query heads without being copied.
    group = num_heads // num_kv_heads
    grouped = queries.reshape(num_rows, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    keys, values = (part.unsqueeze(1).expand(-1, group, -1, -1) for part in (keys, values))
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, is_causal=mask is None)
    return attended.permute(2, 0, 1, 3).flatten(1, 2)


class Plan:
    """Where the tokens of a step go, and what they look at.

    positions — (tokens,), of each token in its sequence. windows — the windows that occur in the model's layers. decode_kernel — what
    attends to decodes; None gathers.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        *,
        windows: Sequence[int | None],
        block_tokens: int,
        page_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
        decode_kernel: DecodeKernel | None = None,
    ) -> None:
        self._decode_kernel = decode_kernel
        self._block_tokens = block_tokens
        self._layer_page_bytes = page_bytes
        self._dtype = dtype
        self._device = device
        positions: list[torch.Tensor] = []
        pages: list[torch.Tensor] = []
        unfilled: list[int] = []
        for span in spans:
            assert len(span.pages) * block_tokens >= span.end and len(span.token_ids) > 0, "a span's pages must cover its tokens"
            own = torch.arange(span.start, span.end)
            positions.append(own)
            pages.append(torch.tensor(span.pages)[own // block_tokens])
            last = span.end // block_tokens
            if span.end % block_tokens and span.start <= last * block_tokens:
                unfilled.append(span.pages[last])
        self.positions = torch.cat(positions).to(device)
        self._pages = torch.cat(pages).to(device)
        self._slots = self.positions % block_tokens
        self._unfilled = torch.tensor(unfilled, device=device, dtype=torch.long)
        self._works = {window: list(self._plan(spans, window)) for window in windows}

    def clear(self, memory: torch.Tensor) -> None:
        """Clears, in all layers, the pages that this step begins and does not fill; before the first `write`."""
        if len(self._unfilled):
            memory[self._unfilled] = 0

    def write(self, heads: LayerHeads) -> None:
        """Puts the step's keys and values into their pages."""
        heads.pages.permute(0, 3, 1, 2, 4)[self._pages, self._slots] = heads.keys_values

    def attend(self, heads: LayerHeads, window: int | None) -> torch.Tensor:
        """(tokens, num_heads, head_dim). Everything that a row sees must have been written."""
        output = torch.empty_like(heads.queries, memory_format=torch.contiguous_format)
        for work in self._works[window]:
            work.run(heads, output)
        return output

    def _plan(self, spans: Sequence[Span], window: int | None) -> list[Work]:
        works: list[Work] = []
        decodes: list[tuple[int, Span]] = []
        row = 0
        for span in spans:
            rows = slice(row, row + len(span.token_ids))
            row = rows.stop
            if len(span.token_ids) == 1:
                decodes.append((rows.start, span))
            elif span.start == 0:
                mask = None if window is None or window >= span.end else self._mask(span, 0, window)
                works.append(FirstChunk(rows, mask))
            else:
                first = self._first_page(span.start, window)
                table = torch.tensor(span.pages[first : self._last_page(span)], device=self._device)
                works.append(LaterChunk(rows, table, self._mask(span, first * self._block_tokens, window)))
        if self._decode_kernel is not None and decodes:
            works.append(self._kernel_decodes(decodes, window, self._decode_kernel))
        else:
            works.extend(self._decodes(group, window) for group in self._groups(decodes, window))
        return works

    def _kernel_decodes(self, decodes: list[tuple[int, Span]], window: int | None, kernel: DecodeKernel) -> KernelDecodes:
        longest = max(self._last_page(span) for _, span in decodes)
        tables = [[*span.pages[: self._last_page(span)], *[0] * (longest - self._last_page(span))] for _, span in decodes]
        return KernelDecodes(
            rows=_as_rows([row for row, _ in decodes], self._device),
            tables=torch.tensor(tables, dtype=torch.int32, device=self._device),
            lengths=torch.tensor([span.end for _, span in decodes], dtype=torch.int32, device=self._device),
            window=window,
            kernel=kernel,
        )

    def _groups(self, decodes: list[tuple[int, Span]], window: int | None) -> list[list[tuple[int, Span]]]:
        """Rows and their spans, in groups of sequences so similar in length that padding them is worth one call for all."""
        groups: list[list[tuple[int, Span]]] = []
        shortest = 0
        for row, span in sorted(decodes, key=lambda decode: self._num_pages(decode[1], window)):
            num_pages = self._num_pages(span, window)
            fits = groups and (len(groups[-1]) + 1) * num_pages * self._layer_page_bytes <= GATHER_BYTES
            if fits and num_pages <= shortest * PADDING_RATIO + 1:
                groups[-1].append((row, span))
            else:
                groups.append([(row, span)])
                shortest = num_pages
        return groups

    def _decodes(self, group: list[tuple[int, Span]], window: int | None) -> Decodes:
        longest = self._num_pages(group[-1][1], window)
        pages: list[int] = []
        bounds: list[tuple[int, int]] = []
        for _, span in group:
            first = self._first_page(span.start, window)
            own = span.pages[first : self._last_page(span)]
            # Any page will do behind the end, if only it holds numbers; a sequence's own first one does.
            pages += [*own, *own[:1] * (longest - len(own))]
            first_seen = 0 if window is None else max(span.end - window, 0)
            bounds.append((first_seen - first * self._block_tokens, span.end - first * self._block_tokens))
        num_keys = max(end for _, end in bounds)
        rows = [row for row, _ in group]
        return Decodes(
            rows=_as_rows(rows, self._device),
            num_sequences=len(rows),
            pages=torch.tensor(pages, device=self._device),
            num_keys=num_keys,
            mask=self._bounds_mask(bounds, num_keys),
        )

    def _bounds_mask(self, bounds: list[tuple[int, int]], num_keys: int) -> torch.Tensor | None:
        """(sequences, 1, 1, num_keys): 0 for keys [first, end) of each sequence, -inf elsewhere; None when all see all."""
        if all(bound == (0, num_keys) for bound in bounds):
            return None
        keys = torch.arange(num_keys, device=self._device)
        firsts, ends = torch.tensor(bounds, device=self._device).T[:, :, None]
        return self._as_mask((keys < firsts) | (keys >= ends))[:, None, None]

    def _first_page(self, position: int, window: int | None) -> int:
        """Of the pages that a token at `position`, or any behind it, sees."""
        return 0 if window is None else max(position - window + 1, 0) // self._block_tokens

    def _last_page(self, span: Span) -> int:
        return -(-span.end // self._block_tokens)

    def _num_pages(self, span: Span, window: int | None) -> int:
        return self._last_page(span) - self._first_page(span.start, window)

    def _mask(self, span: Span, first_key: int, window: int | None) -> torch.Tensor:
        """(tokens of the span, keys from first_key to the end): 0 where a token sees a key, -inf elsewhere."""
        queries = torch.arange(span.start, span.end, device=self._device)[:, None]
        keys = torch.arange(first_key, span.end, device=self._device)[None]
        is_hidden = keys > queries
        if window is not None:
            is_hidden |= keys <= queries - window
        return self._as_mask(is_hidden)

    def _as_mask(self, is_hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(is_hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(is_hidden, float("-inf"))


def _as_rows(rows: list[int], device: torch.device) -> Rows:
    """Consecutive rows as a slice, which needs no copy."""
    is_run = rows == list(range(rows[0], rows[0] + len(rows)))
    return slice(rows[0], rows[-1] + 1) if is_run else torch.tensor(rows, device=device)
