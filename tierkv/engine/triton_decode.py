"""Attention of one new token of each sequence over pages, as a Triton kernel; needs the extra `triton` and a CUDA device.

Keys and values are read from the pages where they lie, so a decode step gathers nothing. The context of a sequence is cut into splits that are computed
at once, each with a softmax of its own, and put together afterwards (Dao et al., "Flash-Decoding for long-context inference", 2023; the
running softmax is that of Milakov & Gimelshein, arXiv:1805.02867). The query heads that share a KV head are one program, so each page is read once.

Without a GPU the same code runs under TRITON_INTERPRET=1, set before this module is imported; that checks the arithmetic and nothing of the speed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tierkv.errors import InvalidRequestError

TILE_TOKENS = 32
"""Tokens that a program looks at in one step; they may lie in several pages."""
MIN_DOT = 16
"""The smallest side of a matrix that Triton multiplies; groups of fewer query heads are padded."""
IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
"""The interpreter multiplies bfloat16 as if it were integers; there the operands are widened first, which changes no product."""
SPLIT_TILES = 4
"""A split is worth its share of the reduction from this many tiles on."""
PROGRAMS_PER_PROCESSOR = 2


def paged_decode(
    q: torch.Tensor,
    pages: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int | None = None,
    *,
    num_splits: int | None = None,
) -> torch.Tensor:
    """Attention of the last token of each sequence over all of its tokens, its own included.

    q — (batch, num_heads, head_dim); head h reads KV head h // (num_heads // num_kv_heads). pages — (num_pages, num_layers, 2, num_kv_heads, block_tokens,
    head_dim), each head's block contiguous, q's dtype (float32, bfloat16, float16) and device, K before V. block_tables — (batch, max_pages) int32: page of tokens
    [i·block_tokens, (i+1)·block_tokens); entries past the length are not read. lengths — (batch,) int32, tokens of the sequence; 0 gives zeros.
    window — the token sees itself and window - 1 before it; None sees all. num_splits — parts of the context computed at once; None chooses by shapes.
    Returns (batch, num_heads, head_dim) of q's dtype; sums are in float32. Does not wait for the device. Raises InvalidRequestError for shapes that do not fit.
    """
    batch, num_heads, head_dim = q.shape
    num_kv_heads, block_tokens = pages.shape[3:5]
    _check(q, pages, layer, block_tables, lengths, window)
    group = num_heads // num_kv_heads
    if num_splits is None:
        num_splits = _choose_splits(batch * num_kv_heads, block_tables.shape[1] * block_tokens, q.device)
    padded_group, padded_dim = max(MIN_DOT, triton.next_power_of_2(group)), max(MIN_DOT, triton.next_power_of_2(head_dim))
    # Of each split: its attention, and the logarithm of the mass of its softmax.
    sums = torch.empty((batch, num_heads, num_splits, head_dim), dtype=torch.float32, device=q.device)
    mass_log = torch.empty((batch, num_heads, num_splits), dtype=torch.float32, device=q.device)
    table = block_tables.contiguous()
    _attend_split[(batch, num_kv_heads, num_splits)](
        q.contiguous(),
        pages,
        table,
        lengths,
        sums,
        mass_log,
        scale,
        window or 0,
        layer,
        table.shape[1],
        pages.stride(0),
        pages.stride(1),
        pages.stride(2),
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_dim,
        block_tokens=block_tokens,
        num_splits=num_splits,
        padded_group=padded_group,
        padded_dim=padded_dim,
        tile_tokens=TILE_TOKENS,
        widen=IS_INTERPRETED,
    )
    return _join(sums, mass_log, q.dtype)


@triton.jit
def _dot(a, b, widen: tl.constexpr):
    if widen:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit(do_not_specialize=["window", "layer", "max_pages"])
def _attend_split(
    q_ptr,
    pages_ptr,
    table_ptr,
    lengths_ptr,
    sums_ptr,
    mass_log_ptr,
    scale,
    window,
    layer,
    max_pages,
    page_stride,
    layer_stride,
    part_stride,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    block_tokens: tl.constexpr,
    num_splits: tl.constexpr,
    padded_group: tl.constexpr,
    padded_dim: tl.constexpr,
    tile_tokens: tl.constexpr,
    widen: tl.constexpr,
):
    """Split `program_id(2)` of the context of one sequence, for the query heads of one KV head."""
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths_ptr + sequence)
    begin = 0
    if window > 0:
        begin = tl.maximum(length - window, 0)
    # This split's tokens are [start, end), whole tiles counted from `begin`; a late split may have none.
    tiles = tl.cdiv(length - begin, tile_tokens)
    split_tokens = tl.cdiv(tiles, num_splits) * tile_tokens
    start = begin + split * split_tokens
    end = tl.minimum(start + split_tokens, length)

    member = tl.arange(0, padded_group)
    dim = tl.arange(0, padded_dim)
    row = sequence * num_kv_heads * group + kv_head * group + member
    is_value = (member < group)[:, None] & (dim < head_dim)[None, :]
    q = tl.load(q_ptr + row[:, None] * head_dim + dim[None, :], mask=is_value, other=0.0)

    maximum = tl.full((padded_group,), float("-inf"), tl.float32)
    mass = tl.zeros((padded_group,), tl.float32)
    acc = tl.zeros((padded_group, padded_dim), tl.float32)
    layer_start = layer * layer_stride + kv_head * block_tokens * head_dim
    for tile in range(start, end, tile_tokens):
        token = tile + tl.arange(0, tile_tokens)
        is_token = token < end
        page = tl.load(table_ptr + sequence * max_pages + token // block_tokens, mask=is_token, other=0)
        # 64 bits: a pool has more elements than 32 can count.
        position = page.to(tl.int64) * page_stride + layer_start + (token % block_tokens) * head_dim
        is_element = is_token[:, None] & (dim < head_dim)[None, :]
        k = tl.load(pages_ptr + position[:, None] + dim[None, :], mask=is_element, other=0.0)
        v = tl.load(pages_ptr + position[:, None] + part_stride + dim[None, :], mask=is_element, other=0.0)
        score = _dot(q, tl.trans(k), widen) * scale
        score = tl.where(is_token[None, :], score, float("-inf"))
        # A tile has at least one token, so the new maximum is a number and nothing below becomes inf - inf.
        new_maximum = tl.maximum(maximum, tl.max(score, axis=1))
        weight = tl.exp(score - new_maximum[:, None])
        fade = tl.exp(maximum - new_maximum)
        mass = mass * fade + tl.sum(weight, axis=1)
        acc = acc * fade[:, None] + _dot(weight.to(v.dtype), v, widen)
        maximum = new_maximum

    split_row = row * num_splits + split
    # A split without tokens weighs nothing; minus infinity would make a NaN where all splits are empty.
    divisor = tl.where(mass > 0, mass, 1.0)
    mass_log = tl.where(mass > 0, maximum + tl.log(divisor), -3.0e38)
    tl.store(sums_ptr + split_row[:, None] * head_dim + dim[None, :], acc / divisor[:, None], mask=is_value)
    tl.store(mass_log_ptr + split_row, mass_log, mask=member < group)


def _join(sums: torch.Tensor, mass_log: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The splits, weighted by their share of the softmax's mass; (batch, num_heads, head_dim) of `dtype`."""
    if sums.shape[2] > 1:
        sums = torch.matmul(mass_log.softmax(-1)[:, :, None], sums)
    return sums.squeeze(2).to(dtype)


def _choose_splits(programs: int, max_tokens: int, device: torch.device) -> int:
    """Enough programs to keep the device busy, but no split of less than SPLIT_TILES tiles."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    wanted: int = triton.cdiv(PROGRAMS_PER_PROCESSOR * processors, programs)
    worthwhile: int = triton.cdiv(max_tokens, SPLIT_TILES * TILE_TOKENS)
    return max(1, min(wanted, worthwhile))


def _check(
    q: torch.Tensor, pages: torch.Tensor, layer: int, block_tables: torch.Tensor, lengths: torch.Tensor, window: int | None
) -> None:
    batch, num_heads, head_dim = q.shape
    _, num_layers, parts, num_kv_heads, block_tokens, page_dim = pages.shape
    is_readable = pages.stride()[3:] == (block_tokens * page_dim, page_dim, 1)
    if parts != 2 or page_dim != head_dim or num_heads % num_kv_heads or not is_readable or pages.dtype != q.dtype:
        raise InvalidRequestError("queries and pages do not fit together", q=_form(q), pages=_form(pages))
    if not 0 <= layer < num_layers:
        raise InvalidRequestError("there is no such layer in the pages", layer=layer, layers=num_layers)
    is_table = block_tables.ndim == 2 and len(block_tables) == batch and lengths.shape == (batch,)
    if not is_table or {block_tables.dtype, lengths.dtype} != {torch.int32}:
        raise InvalidRequestError(
            "each sequence has one row of pages and one length, in int32",
            batch=batch,
            block_tables=_form(block_tables),
            lengths=_form(lengths),
        )
    if window is not None and window < 1:
        raise InvalidRequestError("a window holds at least the token itself", window=window)


def _form(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
