"""Our cache layers against those of transformers: same tensors after the same updates."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from tierkv.integrations.hf.layers import RecordingSlidingLayer, RestoredLayer
from tierkv.integrations.hf.workspace import Workspace


def states(num_tokens, seed, rows=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, 2, num_tokens, 4, generator=generator) for _ in range(2)]


def restored(num_tokens=5, room=9, rows=1):
    """A restored layer and its twin of transformers, both behind the same tokens."""
    keys, values = states(num_tokens, 1, rows)
    rooms = [torch.full((rows, 2, room, 4), float("nan")) for _ in range(2)]
    for target, source in zip(rooms, (keys, values), strict=True):
        target[:, :, :num_tokens] = source
    twin = DynamicLayer()
    twin.update(keys, values)
    return RestoredLayer(rooms[0], rooms[1], num_tokens), twin


def assert_same(layer, twin):
    assert torch.equal(layer.keys, twin.keys)
    assert torch.equal(layer.values, twin.values)
    assert layer.get_seq_length() == twin.get_seq_length()
    assert layer.get_mask_sizes(3) == twin.get_mask_sizes(3)


def test_restored_layer_grows_like_a_dynamic_one_and_in_place():
    layer, twin = restored()
    place = layer.keys.data_ptr()
    with torch.no_grad():
        for seed, num_tokens in ((2, 3), (3, 1)):
            ours, theirs = layer.update(*states(num_tokens, seed)), twin.update(*states(num_tokens, seed))
            assert torch.equal(ours[0], theirs[0])
            assert_same(layer, twin)
    assert layer.keys.data_ptr() == place
    with torch.no_grad():
        layer.update(*states(2, 4))  # no room left
    twin.update(*states(2, 4))
    assert layer.keys.data_ptr() != place
    assert_same(layer, twin)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.crop(-2),
        lambda layer: layer.batch_repeat_interleave(2),
        lambda layer: layer.batch_select_indices(torch.tensor([1])),
        lambda layer: layer.reorder_cache(torch.tensor([1, 0])),
        lambda layer: layer.reset(),
    ],
    ids=["crop", "repeat", "select", "reorder", "reset"],
)
def test_restored_layer_follows_what_is_done_to_it(change):
    layer, twin = restored(rows=2)
    change(layer)
    change(twin)
    rows = layer.keys.shape[0] if layer.keys is not None else 2
    with torch.no_grad():
        layer.update(*states(3, 2, rows))
        twin.update(*states(3, 2, rows))
    assert_same(layer, twin)


def test_restored_layer_leaves_its_memory_alone_when_gradients_are_wanted():
    layer, twin = restored()
    before = layer.keys
    layer.update(*states(2, 2))
    twin.update(*states(2, 2))
    assert layer.keys.data_ptr() != before.data_ptr()
    assert_same(layer, twin)


def test_restored_layer_copies_are_independent():
    layer, _ = restored()
    other = copy.deepcopy(layer)
    with torch.no_grad():
        layer.update(*states(1, 2))
        other.update(*states(1, 3))
    assert not torch.equal(layer.keys[:, :, -1], other.keys[:, :, -1])


def test_recording_layer_sees_its_window_and_keeps_the_rest():
    layer, twin = RecordingSlidingLayer(4), DynamicSlidingWindowLayer(4)
    chunks = [states(num_tokens, seed) for seed, num_tokens in enumerate((6, 1, 1))]
    for keys, values in chunks:
        assert torch.equal(layer.update(keys, values)[0], twin.update(keys, values)[0])
        assert_same(layer, twin)
    recorded = layer.take_recorded()
    assert recorded is not None
    assert torch.equal(recorded[0], torch.cat([keys for keys, _ in chunks], dim=2))
    assert torch.equal(recorded[1], torch.cat([values for _, values in chunks], dim=2))
    assert layer.recorded_from == 0
    assert layer.take_recorded() is None


@pytest.mark.parametrize("past", [2, 9])
def test_recording_layer_starts_behind_restored_tokens(past):
    layer, twin = RecordingSlidingLayer(4), DynamicSlidingWindowLayer(4)
    keys, values = states(past, 1)
    twin.update(keys, values)
    layer.restore(keys[:, :, -3:], values[:, :, -3:], past)
    assert_same(layer, twin)
    new = states(2, 5)
    assert torch.equal(layer.update(*new)[0], twin.update(*new)[0])
    assert layer.recorded_from == past
    recorded = layer.take_recorded()
    assert recorded is not None
    assert torch.equal(recorded[0], new[0])


def test_workspace_is_reused_only_when_nobody_holds_it():
    workspace = Workspace(1 << 20)
    first = workspace.take(1000, torch.float32)
    place = first.data_ptr()
    view = first[10:].view(2, -1)
    del first
    second = workspace.take(1000, torch.float32)
    assert second.data_ptr() != place
    place = second.data_ptr()
    view.fill_(1)
    del second
    assert workspace.take(500, torch.bfloat16).data_ptr() == place
    assert workspace.take(1 << 20, torch.float32).numel() == 1 << 20
    workspace.close()
    workspace.close()


def test_workspace_touches_its_memory_ahead_and_can_be_interrupted():
    workspace = Workspace(64 << 20)
    workspace.prefault(64 << 20)
    taken = workspace.take(1000, torch.float32)
    taken.fill_(2)
    assert workspace._toucher is None
    assert float(taken.sum()) == 2000
    workspace.close()
