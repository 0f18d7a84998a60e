"""The decode kernel against dense attention in float64, in Triton's interpreter; and that it compiles for GPUs that nobody has here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.engine import tiny_models
from tierkv.engine.plan import Span
from tierkv.errors import InvalidRequestError

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (1 GB): pip install 'tierkv[triton]'", allow_module_level=True)

NUM_PAGES = 48


@pytest.fixture(scope="module")
def kernel():
    """The module, loaded to run on CPU tensors. Whoever loaded it before keeps theirs."""
    name = "tierkv.engine.triton_decode"
    before = sys.modules.pop(name, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.import_module(name)
    del sys.modules[name], sys.modules["tierkv.engine"].triton_decode
    if before is not None:
        sys.modules[name] = before


def dense(q, pages, layer, tables, lengths, scale, window):
    """What the kernel should say, in float64: one softmax over the tokens that the last one sees."""
    group = q.shape[1] // pages.shape[3]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):
        if length == 0:
            continue
        used = tables[row, : -(-length // pages.shape[4])].long()
        # (pages, parts, kv_heads, block_tokens, head_dim) -> (parts, kv_heads, tokens, head_dim)
        k, v = pages[used, layer].double().permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
        first = 0 if window is None else max(0, length - window)
        k, v = (part.repeat_interleave(group, dim=0)[:, first:] for part in (k, v))
        weights = torch.softmax((k @ q[row].double().unsqueeze(-1)).squeeze(-1) * scale, dim=-1)
        out[row] = (weights.unsqueeze(1) @ v).squeeze(1)
    return out


def make(seed, *, batch, kv_heads, group, head_dim, block_tokens, lengths, dtype):
    random = torch.Generator().manual_seed(seed)
    pages = torch.randn(NUM_PAGES, 2, 2, kv_heads, block_tokens, head_dim, generator=random).to(dtype)
    q = torch.randn(batch, kv_heads * group, head_dim, generator=random).to(dtype)
    num = max(1, -(-max(lengths) // block_tokens))
    tables = torch.stack([torch.randperm(NUM_PAGES, generator=random)[:num] for _ in range(batch)]).to(torch.int32)
    return q, pages, tables, torch.tensor(lengths, dtype=torch.int32)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1 << 20),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 3, 4]),
    head_dim=st.sampled_from([16, 20, 64]),
    block_tokens=st.sampled_from([4, 5, 16, 32]),
    lengths=st.lists(st.integers(0, 120), min_size=1, max_size=3),
    window=st.one_of(st.none(), st.integers(1, 130)),
    num_splits=st.one_of(st.none(), st.integers(1, 5)),
)
def test_agrees_with_dense_attention(kernel, seed, kv_heads, group, head_dim, block_tokens, lengths, window, num_splits):
    q, pages, tables, lengths = make(
        seed,
        batch=len(lengths),
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        block_tokens=block_tokens,
        lengths=lengths,
        dtype=torch.float32,
    )
    out = kernel.paged_decode(q, pages, 1, tables, lengths, head_dim**-0.5, window, num_splits=num_splits)
    torch.testing.assert_close(out.double(), dense(q, pages, 1, tables, lengths, head_dim**-0.5, window), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_half_precision_is_exact_up_to_its_own_rounding(kernel, dtype, tolerance):
    q, pages, tables, lengths = make(7, batch=2, kv_heads=2, group=3, head_dim=64, block_tokens=16, lengths=[100, 37], dtype=dtype)
    out = kernel.paged_decode(q, pages, 0, tables, lengths, 0.125)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), dense(q, pages, 0, tables, lengths, 0.125, None), rtol=tolerance, atol=tolerance)


def test_scores_that_would_overflow_do_not(kernel):
    q, pages, tables, lengths = make(
        3, batch=1, kv_heads=1, group=2, head_dim=16, block_tokens=16, lengths=[90], dtype=torch.float32
    )
    out = kernel.paged_decode(q * 1e4, pages, 0, tables, lengths, 1.0, num_splits=3)
    torch.testing.assert_close(out.double(), dense(q * 1e4, pages, 0, tables, lengths, 1.0, None), rtol=1e-4, atol=1e-4)


def test_pages_past_the_length_are_not_read(kernel):
    q, pages, tables, lengths = make(
        5, batch=2, kv_heads=1, group=1, head_dim=16, block_tokens=16, lengths=[96, 40], dtype=torch.float32
    )
    tables = torch.arange(12, dtype=torch.int32).reshape(2, 6)
    expected = kernel.paged_decode(q, pages, 0, tables, lengths, 0.25)
    spoilt = pages.clone()
    spoilt[9:] = float("nan")
    spoilt[8, :, :, :, 8:] = float("nan")
    wrong = tables.clone()
    wrong[1, 3:] = -1
    assert torch.equal(kernel.paged_decode(q, spoilt, 0, wrong, lengths, 0.25), expected)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layer": 2}, "no such layer"),
        ({"window": 0}, "at least the token itself"),
        ({"lengths": torch.tensor([3, 3], dtype=torch.int64)}, "int32"),
        ({"lengths": torch.tensor([3], dtype=torch.int32)}, "one row of pages"),
        ({"q": torch.zeros(2, 3, 16)}, "do not fit together"),
        ({"q": torch.zeros(2, 4, 16, dtype=torch.bfloat16)}, "do not fit together"),
    ],
)
def test_what_does_not_fit_is_refused(kernel, change, sentence):
    q, pages, tables, lengths = make(
        1, batch=2, kv_heads=2, group=2, head_dim=16, block_tokens=16, lengths=[3, 3], dtype=torch.float32
    )
    call = {"q": q, "pages": pages, "layer": 0, "block_tables": tables, "lengths": lengths, "scale": 1.0, "window": None}
    with pytest.raises(InvalidRequestError, match=sentence):
        kernel.paged_decode(**{**call, **change})


@pytest.mark.parametrize("name", ["llama", "mistral, windows"])
def test_a_model_says_the_same_with_the_kernel_and_without(kernel, name, monkeypatch):
    model = tiny_models.random_model(tiny_models.CONFIGS[name]())
    logits = []
    for decode_kernel in (None, kernel.paged_decode):
        monkeypatch.setattr("tierkv.engine.model.decode_kernel", lambda device, found=decode_kernel: found)
        transformer = tiny_models.bound(model)
        transformer.forward([Span(range(3, 24), 0, [9, 2, 31, 5, 7, 8], False), Span([4], 0, [1], False)])
        mixed = [Span([24], 21, [9, 2, 31, 5, 7, 8], True), Span([5, 6], 0, [3], True), Span([6], 1, [1], True)]
        logits.append(transformer.forward(mixed))
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tierkv.engine import triton_decode as kernels

def sizes(source, pointers, constants):
    signature = {**pointers, **dict.fromkeys(constants, "constexpr")}
    target = GPUTarget("cuda", 80, 32)
    return len(compile(ASTSource(fn=source, signature=signature, constexprs=constants), target=target).asm["cubin"])

for dtype in ("fp32", "bf16"):
    attend = dict(q_ptr=f"*{dtype}", pages_ptr=f"*{dtype}", table_ptr="*i32", lengths_ptr="*i32", sums_ptr="*fp32", mass_log_ptr="*fp32",
                  scale="fp32", window="i32", layer="i32", max_pages="i32", page_stride="i64", layer_stride="i32", part_stride="i32")
    assert sizes(kernels._attend_split, attend, dict(num_kv_heads=3, group=3, head_dim=64, block_tokens=16, num_splits=4,
                 padded_group=16, padded_dim=64, tile_tokens=32, widen=False))
"""


def test_it_compiles_for_a_gpu(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", COMPILE], check=True, timeout=150, env=environment)
