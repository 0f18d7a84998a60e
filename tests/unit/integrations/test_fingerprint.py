"""Identity of weights: equal memory, equal text; any change is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tierkv.errors import InvalidRequestError
from tierkv.integrations import fingerprint
from tierkv.integrations.fingerprint import (
    WeightsWatch,
    adapter_state,
    canonical_config,
    fingerprint_files,
    fingerprint_model,
    identity_of,
)


class Config:
    def __init__(self, **fields):
        self.fields = fields

    def to_dict(self):
        return self.fields


class Net(torch.nn.Module):
    def __init__(self, seed=0, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.linear = torch.nn.Linear(40, 30, dtype=dtype)
        self.linear.weight.data.copy_(torch.randn(30, 40, generator=generator))
        self.linear.bias.data.zero_()
        self.register_buffer("rope", torch.arange(4.0), persistent=False)
        self.config = Config(hidden_size=40, _name_or_path="here")


def test_equal_weights_have_equal_fingerprints():
    assert fingerprint_model(Net()) == fingerprint_model(Net())


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.linear.weight.data[17, 3].add_(1e-3),
        lambda net: net.linear.bias.data[29].add_(1),
        lambda net: net.rope[1].add_(1),
        lambda net: net.register_parameter("lora_A", torch.nn.Parameter(torch.zeros(2))),
        lambda net: setattr(net, "linear", net.linear.to(torch.bfloat16)),
        lambda net: setattr(net.linear, "weight", torch.nn.Parameter(net.linear.weight.reshape(60, 20))),
    ],
    ids=["one weight", "one bias", "a buffer", "an adapter", "dtype", "shape"],
)
def test_any_change_changes_the_fingerprint(change):
    net, before = Net(), fingerprint_model(Net())
    with torch.no_grad():
        change(net)
    assert fingerprint_model(net) != before


def test_large_models_are_sampled_from_the_first_byte_to_the_last(monkeypatch):
    monkeypatch.setattr(fingerprint, "WHOLE_MODEL_BYTES", 0)
    monkeypatch.setattr(fingerprint, "SAMPLE_BYTES", 256)
    before = fingerprint_model(Net())
    for position in (0, -1):
        net = Net()
        net.linear.weight.data.view(-1)[position] += 1
        assert fingerprint_model(net) != before
    assert fingerprint_model(Net()) == before


def test_spans_cover_both_ends_and_keep_the_budget():
    spans = list(fingerprint._spans(10_000, 1_600))
    assert spans[0] == (0, 100)
    assert spans[-1] == (9_900, 10_000)
    assert sum(stop - start for start, stop in spans) == 1_600
    assert list(fingerprint._spans(1_600, 1_600)) == [(0, 1_600)]


def test_weights_without_memory_are_refused():
    with pytest.raises(InvalidRequestError, match=r"no memory.*linear\.bias"):
        fingerprint_model(Net().to("meta"))


def test_config_ignores_names_and_keeps_what_shapes_keys():
    a = canonical_config(Config(_name_or_path="a", use_cache=True, rope_parameters={"rope_theta": 1e4, "dtype": "x"}))
    b = canonical_config(Config(_name_or_path="b", use_cache=False, rope_parameters={"rope_theta": 1e4}))
    assert a == b == '{"rope_parameters":{"rope_theta":10000.0}}'
    assert canonical_config(Config(rope_parameters={"rope_theta": 1e5})) != a
    assert canonical_config(None) == "{}"
    assert canonical_config(Config(long="x" * 20_000)).startswith("blake3:")


def test_identity_separates_tenants_and_salts():
    identity = identity_of(Net(), tenant="t", salt="s", kv_dtype="float32")
    assert identity.differences(identity_of(Net())) == ["kv_dtype", "tenant", "salt"]


def test_active_adapters_are_part_of_the_identity():
    net = Net()
    assert not adapter_state(net)
    layer: Any = net.linear
    layer._active_adapter = ["a"]
    first = adapter_state(net)
    layer._active_adapter = ["b"]
    second = adapter_state(net)
    layer._disable_adapters = True
    assert len({first, second, adapter_state(net), ""}) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.linear.weight.add_(1e-3),
        lambda net: net.linear.weight.data.copy_(net.linear.weight.data + 1e-3),
        lambda net: setattr(net.linear.weight, "data", net.linear.weight.data.clone()),
        lambda net: net.load_state_dict(Net(seed=1).state_dict()),
        lambda net: setattr(net.linear, "_active_adapter", "x"),
    ],
    ids=["in place", "through .data", "replaced", "loaded", "adapter"],
)
def test_watch_sees_a_change_once(change):
    net = Net()
    watch = WeightsWatch(net)
    assert not watch.changed()
    with torch.no_grad():
        change(net)
    assert watch.changed()
    assert not watch.changed()


def test_watch_compares_weights_that_are_not_numbers():
    net = Net()
    net.linear.weight.data.fill_(float("nan"))
    watch = WeightsWatch(net)
    assert not watch.changed()


def test_files_are_known_by_their_bytes(tmp_path: Path):
    for name, value in (("a", 0.0), ("b", 0.0), ("c", 1.0)):
        (tmp_path / name).mkdir()
        save_file({"w": torch.full((64, 64), value)}, tmp_path / name / "model.safetensors")
    prints = [fingerprint_files(tmp_path / name) for name in "abc"]
    assert prints[0] == prints[1] != prints[2]
    assert fingerprint_files(tmp_path / "c" / "model.safetensors") != prints[2]


def test_folders_without_weights_and_files_that_are_none_are_refused(tmp_path: Path):
    with pytest.raises(InvalidRequestError, match="no weights here"):
        fingerprint_files(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(InvalidRequestError, match="not a safetensors file"):
        fingerprint_files(tmp_path)
