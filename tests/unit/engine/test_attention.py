"""Paged attention against dense attention in float64: any heads, windows, pages, cuts and mixtures."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tierkv.engine import plan as plan_module
from tierkv.engine.attention import Chunk, GatheredRows, KernelDecodes, LayerHeads, Room, decode_kernel
from tierkv.engine.plan import Geometry, Plan, Span

CPU = torch.device("cpu")
HEAD_DIM = 8
LAYERS, LAYER = 2, 1
NUM_PAGES = 80


@dataclass(frozen=True)
class Case:
    """cuts — for each sequence the lengths of its pieces; a step computes the next piece of each, in the order of `order`."""

    num_kv_heads: int
    group: int
    block_tokens: int
    window: int | None
    cuts: tuple[tuple[int, ...], ...]
    seed: int


@st.composite
def cases(draw):
    pieces = st.lists(st.one_of(st.just(1), st.integers(1, 13)), min_size=1, max_size=5).map(tuple)
    return Case(
        num_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 4)),
        block_tokens=draw(st.sampled_from([1, 2, 3, 8, 16])),
        window=draw(st.one_of(st.none(), st.integers(1, 20))),
        cuts=tuple(draw(st.lists(pieces, min_size=1, max_size=4))),
        seed=draw(st.integers(0, 2**16)),
    )


class Rig:
    """Sequences with all of their queries, keys and values; memory that begins full of NaN; pages in a random order."""

    def __init__(self, case, kernel=None):
        generator = torch.Generator().manual_seed(case.seed)
        self.case = case
        self.heads = case.num_kv_heads * (case.group + 2)
        lengths = [sum(cuts) for cuts in case.cuts]
        self.qkv = [torch.randn((length, self.heads, HEAD_DIM), generator=generator) for length in lengths]
        shape = (NUM_PAGES * len(lengths), LAYERS, 2, case.num_kv_heads, case.block_tokens, HEAD_DIM)
        self.memory = torch.full(shape, float("nan"))
        free = random.Random(case.seed).sample(range(shape[0]), shape[0])
        self.pages = [[free.pop() for _ in range(-(-length // case.block_tokens))] for length in lengths]
        self.room = Room()
        self.geometry = Geometry(
            windows=frozenset({case.window}),
            block_tokens=case.block_tokens,
            layer_page_bytes=self.memory[0, 0].numel() * 4,
            group=case.group,
            dtype=torch.float32,
            device=CPU,
            kernel=kernel,
        )

    def step(self, parts):
        """parts — (sequence, start, end) each; attention of their tokens, one behind the other."""
        spans = [Span([0] * (end - start), start, self.pages[idx], wants_logits=False) for idx, start, end in parts]
        rows = torch.cat([self.qkv[idx][start:end] for idx, start, end in parts])
        num_heads = self.case.num_kv_heads * self.case.group
        keys_values = rows[:, num_heads:].view(len(rows), 2, self.case.num_kv_heads, HEAD_DIM)
        own = LayerHeads(rows[:, :num_heads], keys_values, self.memory, LAYER, self.room)
        plan = Plan(spans, self.geometry)
        plan.clear(self.memory)
        plan.write(own)
        return plan.attend(own, self.case.window)

    def dense(self, idx, start, end):
        num_heads = self.case.num_kv_heads * self.case.group
        queries, rest = self.qkv[idx].double().transpose(0, 1).split([num_heads, 2 * self.case.num_kv_heads])
        keys, values = (part.repeat_interleave(self.case.group, dim=0) for part in rest.chunk(2))
        places = torch.arange(len(self.qkv[idx]))
        is_seen = places <= places[:, None]
        if self.case.window is not None:
            is_seen &= places > places[:, None] - self.case.window
        scores = (queries @ keys.transpose(1, 2) * HEAD_DIM**-0.5).masked_fill(~is_seen, float("-inf"))
        return (scores.softmax(-1) @ values).transpose(0, 1)[start:end]

    def run(self):
        starts = [0] * len(self.pages)
        order = random.Random(self.case.seed)
        for step in range(max(len(cuts) for cuts in self.case.cuts)):
            alive = [idx for idx, cuts in enumerate(self.case.cuts) if step < len(cuts)]
            order.shuffle(alive)
            parts = [(idx, starts[idx], starts[idx] + self.case.cuts[idx][step]) for idx in alive]
            expected = torch.cat([self.dense(*part) for part in parts])
            torch.testing.assert_close(self.step(parts).double(), expected, rtol=0, atol=1e-5)
            for idx, _, end in parts:
                starts[idx] = end


@settings(deadline=None, max_examples=150)
@given(cases())
@example(Case(1, 1, 16, 5, ((13, 13, 13, 1), (1, 1, 1, 1)), 0))
@example(Case(3, 3, 2, None, ((8, 1, 1), (7, 1, 1), (8, 1, 2)), 0))
def test_paged_attention_is_dense_attention(case):
    Rig(case).run()


@settings(deadline=None, max_examples=30)
@given(cases())
def test_groups_of_any_size_give_the_same(case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "GATHER_BYTES", 1 << 60)
        patch.setattr(plan_module, "PADDING_RATIO", 1e9)
        Rig(case).run()


@settings(deadline=None, max_examples=60)
@given(cases())
def test_chunks_of_many_tokens_give_the_same(case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "FEW_TOKENS", 1)
        Rig(case).run()


def reference_kernel(q, pages, layer, block_tables, lengths, scale, window):
    """What a decode kernel has to give, one sequence at a time."""
    rows = []
    for query, table, length in zip(q, block_tables, lengths, strict=True):
        assert table.dtype == length.dtype == torch.int32
        keys, values = pages[table.long(), layer].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
        keys, values = (part.repeat_interleave(len(query) // len(part), dim=0) for part in (keys, values))
        first = 0 if window is None else max(int(length) - window, 0)
        weights = (torch.einsum("hd,hkd->hk", query, keys[:, first:]) * scale).softmax(-1)
        rows.append(torch.einsum("hk,hkd->hd", weights, values[:, first:]))
    return torch.stack(rows)


@settings(deadline=None, max_examples=60)
@given(cases())
def test_a_kernel_for_single_tokens_gets_what_it_needs(case):
    Rig(case, kernel=reference_kernel).run()


def works(lengths_and_starts, *, window=None, kernel=None, block_tokens=4):
    geometry = Geometry(frozenset({window}), block_tokens, 1024, 1, torch.float32, CPU, kernel)
    spans = [Span([0] * length, start, list(range(100)), wants_logits=False) for length, start in lengths_and_starts]
    return Plan(spans, geometry)._works[window]


def test_single_tokens_of_similar_length_are_one_piece_of_work():
    (near, far) = works([(1, 40), (1, 201), (1, 47), (1, 200)])
    assert isinstance(near, GatheredRows)
    assert (near.num_sequences, near.num_keys, far.num_sequences, far.num_keys) == (2, 48, 2, 202)
    assert near.rows.tolist() == [0, 2]


def test_work_that_gathers_too_much_is_divided(monkeypatch):
    monkeypatch.setattr(plan_module, "GATHER_BYTES", 3 * 10 * 1024)
    assert [work.num_sequences for work in works([(1, 39)] * 7)] == [3, 3, 1]
    assert [work.num_sequences for work in works([(1, 390)] * 2)] == [1, 1]


def test_equal_lengths_need_no_mask_and_neighbours_no_copy():
    (work,) = works([(1, 7), (1, 7)])
    assert work.mask is None
    assert work.rows == slice(0, 2)


def test_a_first_chunk_reads_no_pages_and_a_short_one_needs_no_mask():
    (work,) = works([(9, 0)], window=9)
    assert isinstance(work, Chunk) and work.pages is None
    assert work.mask is None
    (work,) = works([(9, 0)], window=8)
    assert work.mask is not None


def test_only_the_pages_that_a_window_sees_are_gathered():
    (chunk,) = works([(3, 40)], window=6)
    # Token 40 sees 35 to 40, so pages 8 (32 to 35) to 10 (40 to 43).
    assert (chunk.pages.tolist(), chunk.num_keys) == ([8, 9, 10], 11)
    (chunk,) = works([(70, 40)], window=6)
    assert isinstance(chunk, Chunk)
    assert (chunk.pages.tolist(), tuple(chunk.mask.shape)) == (list(range(8, 28)), (70, 78))
    (decode,) = works([(1, 40)], window=6)
    assert (decode.pages.tolist(), decode.num_keys) == ([8, 9, 10], 9)


def test_with_a_kernel_all_single_tokens_are_one_piece_of_work():
    (work,) = works([(1, 3), (1, 300)], kernel=reference_kernel, window=5)
    assert isinstance(work, KernelDecodes)
    assert (work.lengths.tolist(), tuple(work.block_tables.shape)) == ([4, 301], (2, 76))


def test_the_cpu_has_no_kernel():
    assert decode_kernel(CPU) is None


def test_pages_of_a_prefix_are_only_read():
    rig = Rig(Case(2, 2, 4, None, ((8, 3), (8, 1)), 3))
    rig.pages[1][:2] = rig.pages[0][:2]
    rig.qkv[1][:8] = rig.qkv[0][:8]
    rig.step([(0, 0, 8)])
    shared = rig.memory[rig.pages[0][:2], LAYER].clone()
    output = rig.step([(1, 8, 9), (0, 8, 11)])
    torch.testing.assert_close(output.double(), torch.cat([rig.dense(1, 8, 9), rig.dense(0, 8, 11)]), rtol=0, atol=1e-5)
    assert torch.equal(rig.memory[rig.pages[0][:2], LAYER], shared)
