"""The packed product against the plain one."""

from __future__ import annotations

import pytest
import torch

from tierkv.engine.linear import PackedLinear, PlainLinear, linear


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 8, 33])
@pytest.mark.parametrize("shape", [(96, 32), (7, 50), (1, 1)])
def test_both_forms_give_the_same(shape, num_rows, has_bias):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator)
    bias = torch.randn(shape[0], generator=generator) if has_bias else None
    rows = torch.randn((num_rows, shape[1]), generator=generator)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(weight, bias)(rows), PlainLinear(weight, bias)(rows))


def test_rows_that_lie_apart_are_read_where_they_lie():
    weight, rows = torch.randn(6, 4), torch.randn(5, 8)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(weight, None)(rows[:, 2:6]), rows[:, 2:6] @ weight.T)


def test_only_float32_on_the_cpu_is_packed():
    assert isinstance(linear(torch.zeros(2, 3)), PackedLinear)
    assert isinstance(linear(torch.zeros(2, 3, dtype=torch.bfloat16)), PlainLinear)
    assert isinstance(linear(torch.zeros(2, 3, device="meta")), PlainLinear)


def test_without_the_operators_the_plain_product_does(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert isinstance(linear(torch.zeros(2, 3)), PlainLinear)
