"""What a step computes, planned once and then run in every layer: which tokens go to which places in which pages, and what they see.

Invariants: pages before a span are only read, so many sequences may share them; a token never looks past its own position; places
behind the end of a sequence hold zeros or its own old values, never another's bits (a mask cannot hide a NaN), because a page is
cleared when it is begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tierkv.engine.attention import Chunk, DecodeKernel, GatheredRows, KernelDecodes, LayerHeads, Rows, Work

GATHER_BYTES = 3 << 19
"""K and V of one layer that several decoding sequences may gather at once. Copied at 11 GB/s here, 3 MiB at 8, 6 MiB at 5."""
FEW_TOKENS = 64
"""Up to here a chunk's query heads are rows of one matrix: 1.3 times faster for 8 tokens, 1.06 times for 64, equal for 512."""
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


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a plan must know of model and memory. layer_page_bytes — of one layer's K and V in a page; group — query heads a kv head."""

    windows: frozenset[int | None]
    block_tokens: int
    layer_page_bytes: int
    group: int
    dtype: torch.dtype
    device: torch.device
    kernel: DecodeKernel | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one span sees through one window. row — its first token's; pages — from the one with the oldest key that counts.

    first, end — the keys, counted from the start of `pages`, that are [first, end) for its first token, and up to end for its last.
    """

    row: int
    span: Span
    pages: Sequence[int]
    first: int
    end: int


class Plan:
    """Where the tokens of a step go, and what they look at."""

    def __init__(self, spans: Sequence[Span], geometry: Geometry) -> None:
        self._geometry = geometry
        self.positions, self._pages, self._unfilled = self._places(spans)
        self._offsets = self.positions % geometry.block_tokens
        self._works = {window: self._plan(spans, window) for window in geometry.windows}

    def clear(self, memory: torch.Tensor) -> None:
        """Clears, in all layers, the pages that this step begins and does not fill; before the first `write`."""
        if len(self._unfilled):
            memory[self._unfilled] = 0

    def write(self, heads: LayerHeads) -> None:
        """Puts the step's keys and values into their pages."""
        heads.pages.permute(0, 3, 1, 2, 4)[self._pages, self._offsets] = heads.keys_values

    def attend(self, heads: LayerHeads, window: int | None) -> torch.Tensor:
        """(tokens, num_heads, head_dim). Everything that a token sees must have been written."""
        output = torch.empty_like(heads.queries, memory_format=torch.contiguous_format)
        for work in self._works[window]:
            work.run(heads, output)
        return output

    def _places(self, spans: Sequence[Span]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of each token its position in its sequence and its page; and the pages that are begun and not filled."""
        block_tokens = self._geometry.block_tokens
        positions: list[torch.Tensor] = []
        pages: list[torch.Tensor] = []
        unfilled: list[int] = []
        for span in spans:
            assert len(span.pages) * block_tokens >= span.end > span.start, "a span's pages must cover its tokens"
            own = torch.arange(span.start, span.end)
            positions.append(own)
            pages.append(torch.tensor(span.pages)[own // block_tokens])
            last = span.end // block_tokens
            if span.end % block_tokens and span.start <= last * block_tokens:
                unfilled.append(span.pages[last])
        device = self._geometry.device
        begun = torch.tensor(unfilled, dtype=torch.long, device=device)
        return torch.cat(positions).to(device), torch.cat(pages).to(device), begun

    def _plan(self, spans: Sequence[Span], window: int | None) -> list[Work]:
        works: list[Work] = []
        decodes: list[_Seen] = []
        row = 0
        for span in spans:
            seen = self._seen(row, span, window)
            row += len(span.token_ids)
            if len(span.token_ids) == 1:
                decodes.append(seen)
            elif span.start == 0:
                mask = None if window is None or window >= span.end else self._chunk_mask(seen, window)
                works.append(Chunk(slice(seen.row, row), None, mask))
            else:
                works.append(self._later_chunk(seen, window))
        if decodes and self._geometry.kernel is not None:
            works.append(self._kernel_decodes(decodes, window, self._geometry.kernel))
        elif decodes:
            works.extend(self._decodes(group) for group in self._groups(decodes))
        return works

    def _seen(self, row: int, span: Span, window: int | None) -> _Seen:
        block_tokens = self._geometry.block_tokens
        oldest = 0 if window is None else max(span.start - window + 1, 0)
        first_page = oldest // block_tokens
        pages = span.pages[first_page : -(-span.end // block_tokens)]
        return _Seen(row, span, pages, oldest - first_page * block_tokens, span.end - first_page * block_tokens)

    def _later_chunk(self, seen: _Seen, window: int | None) -> Work:
        num_tokens = len(seen.span.token_ids)
        rows = slice(seen.row, seen.row + num_tokens)
        if num_tokens > FEW_TOKENS:
            return Chunk(rows, self._indices(seen.pages), self._chunk_mask(seen, window))
        # Rows of attention are a token's query heads of one kv head, token by token.
        mask = self._chunk_mask(seen, window).repeat_interleave(self._geometry.group, dim=0)[None, None]
        return GatheredRows(rows, 1, self._indices(seen.pages), seen.end, mask)

    def _groups(self, decodes: list[_Seen]) -> list[list[_Seen]]:
        """Sequences so similar in length that padding them is worth one call for all."""
        groups: list[list[_Seen]] = []
        for seen in sorted(decodes, key=lambda seen: len(seen.pages)):
            group = groups[-1] if groups else []
            gathered_bytes = (len(group) + 1) * len(seen.pages) * self._geometry.layer_page_bytes
            if group and gathered_bytes <= GATHER_BYTES and len(seen.pages) <= len(group[0].pages) * PADDING_RATIO + 1:
                group.append(seen)
            else:
                groups.append([seen])
        return groups

    def _decodes(self, group: list[_Seen]) -> GatheredRows:
        num_keys = max(seen.end for seen in group)
        bounds = [(seen.first, seen.end) for seen in group]
        mask = None
        if any(bound != (0, num_keys) for bound in bounds):
            keys = torch.arange(num_keys, device=self._geometry.device)
            firsts, ends = self._indices(bounds).T[:, :, None]
            mask = self._as_mask((keys < firsts) | (keys >= ends))[:, None, None]
        return GatheredRows(self._rows(group), len(group), self._indices(_padded(group)).flatten(), num_keys, mask)

    def _kernel_decodes(self, group: list[_Seen], window: int | None, kernel: DecodeKernel) -> KernelDecodes:
        # The kernel finds the window's first page itself, so it gets whole tables.
        whole = [self._seen(seen.row, seen.span, None) for seen in group]
        lengths = self._indices([seen.end for seen in whole]).int()
        return KernelDecodes(kernel, self._rows(whole), self._indices(_padded(whole)).int(), lengths, window)

    def _rows(self, group: list[_Seen]) -> Rows:
        """Consecutive rows as a slice, which needs no copy."""
        rows = [seen.row for seen in group]
        is_run = rows == list(range(rows[0], rows[0] + len(rows)))
        return slice(rows[0], rows[-1] + 1) if is_run else self._indices(rows)

    def _chunk_mask(self, seen: _Seen, window: int | None) -> torch.Tensor:
        """(tokens of the span, keys of its pages up to the end)."""
        device = self._geometry.device
        queries = torch.arange(seen.end - len(seen.span.token_ids), seen.end, device=device)[:, None]
        keys = torch.arange(seen.end, device=device)
        is_hidden = keys > queries
        if window is not None:
            is_hidden |= keys <= queries - window
        return self._as_mask(is_hidden)

    def _as_mask(self, is_hidden: torch.Tensor) -> torch.Tensor:
        """0 for what is seen, -inf for what is hidden."""
        mask = torch.zeros(is_hidden.shape, dtype=self._geometry.dtype, device=self._geometry.device)
        return mask.masked_fill_(is_hidden, float("-inf"))

    def _indices(self, values: Sequence[object]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._geometry.device)


def _padded(group: list[_Seen]) -> list[list[int]]:
    """Block tables of one length. Any page will do behind the end, if only it holds numbers; a sequence's own first one does."""
    longest = max(len(seen.pages) for seen in group)
    return [[*seen.pages, *[seen.pages[0]] * (longest - len(seen.pages))] for seen in group]
