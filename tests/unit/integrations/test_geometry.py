"""Every fast path against the slow one: what one strided copy does, a copy per layer does too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tierkv.integrations.hf.geometry import Geometry, LayerGeometry
from tierkv.integrations.hf.record import Recorder
from tierkv.integrations.hf.request import Request, Row
from tierkv.integrations.hf.restore import Restored, Restorer
from tierkv.integrations.hf.workspace import Workspace
from tierkv.integrations.prefix import PrefixCache
from tierkv.model.namespace import Identity
from tierkv.testing.fake_store import FakeBlockStore

CPU = torch.device("cpu")
HEADS, WIDTH, BLOCK, LAYERS = 2, 3, 4, 3
PADDINGS = (0, 2)
COLUMNS = 15


class AnyPath(Geometry):
    """The same geometry with its fast path closed."""

    __slots__ = ()

    @property
    def is_dense(self):
        return False


def geometry_of(kind, dtype):
    layers = tuple(LayerGeometry(idx, HEADS, WIDTH, WIDTH, None, CPU) for idx in range(LAYERS))
    return kind(layers, dtype)


def request_of():
    rows = tuple(
        Row(np.arange(100 * (1 + idx), 100 * (1 + idx) + COLUMNS - padding), padding) for idx, padding in enumerate(PADDINGS)
    )
    return Request(rows, COLUMNS, room_tokens=3, pad_token_id=None, cache=None)


def filled_cache(dtype):
    cache: Any = DynamicCache()
    generator = torch.Generator().manual_seed(1)
    for _ in range(LAYERS):
        states = [torch.randn(len(PADDINGS), HEADS, COLUMNS, WIDTH, generator=generator).to(dtype) for _ in ("keys", "values")]
        # An update from nothing would concatenate, which float8 cannot.
        layer = DynamicLayer()
        layer.keys, layer.values = states
        layer.is_initialized = True
        cache.layers.append(layer)
    return cache


def sequences():
    return torch.stack([torch.cat([torch.zeros(row.padding).long(), torch.from_numpy(row.token_ids)]) for row in request_of().rows])


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_saved_and_restored_bytes_do_not_depend_on_the_path(dtype):
    blocks, keys = [], []
    for kind in (Geometry, AnyPath):
        store = FakeBlockStore()
        geometry = geometry_of(kind, dtype)
        prefix = PrefixCache(store, Identity(weights="w"), geometry.layout(BLOCK))
        cache = filled_cache(dtype)
        # The last token of each row has no keys in a cache of a finished call.
        assert Recorder(geometry, prefix).save(request_of(), Restored(blocks=(0, 0)), cache, sequences()) == 6
        blocks.append({key: bytes(block.data) for key, block in store.backend.blocks.items()})
        target: Any = DynamicCache()
        target.layers = [DynamicLayer() for _ in range(LAYERS)]
        outcome = Restorer(geometry, prefix, Workspace(1 << 20)).restore(request_of(), target)
        # Three blocks of each row: the common end is that of the row without padding.
        assert (outcome.num_columns, outcome.num_tokens, outcome.blocks) == (12, 12 + 10, (3, 3))
        for ours, theirs in zip(target.layers, cache.layers, strict=True):
            for row, padding in enumerate(PADDINGS):
                assert torch.equal(bits(ours.values[row, :, padding:]), bits(theirs.values[row, :, padding:12]))
            assert not bits(ours.keys[1, :, :2]).any()
        keys.append([bits(layer.keys) for layer in target.layers])
    assert blocks[0] == blocks[1]
    assert all(torch.equal(a, b) for a, b in zip(*keys, strict=True))


def test_a_block_is_k_before_v_layer_by_layer():
    store = FakeBlockStore()
    geometry = geometry_of(Geometry, torch.float32)
    prefix = PrefixCache(store, Identity(weights="w"), geometry.layout(BLOCK))
    cache = filled_cache(torch.float32)
    Recorder(geometry, prefix).save(request_of(), Restored(blocks=(0, 0)), cache, sequences())
    key = prefix.keys(request_of().rows[0].token_ids)[1]
    block = np.frombuffer(store.backend.blocks[key].data, dtype=np.float32).reshape(geometry.layout(BLOCK).shape)
    for layer_idx, layer in enumerate(cache.layers):
        assert np.array_equal(block[layer_idx, 0], layer.keys[0, :, 4:8].numpy())
        assert np.array_equal(block[layer_idx, 1], layer.values[0, :, 4:8].numpy())
