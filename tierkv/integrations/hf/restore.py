"""Leased blocks into the layers of a cache, with one copy.

All rows of a batch share the number of columns C that the cache holds. Row r has p_r columns of padding, then its tokens:

    columns   [0 .. p_r)  padding, masked, zero        [p_r .. C)  restored tokens        [C .. num_columns)  computed by the model

C is the smallest p_r + k_r over the rows, k_r being the tokens restorable for row r, and leaves at least the last column to compute.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from tierkv.integrations.hf.geometry import Geometry, LayerGeometry
from tierkv.integrations.hf.layers import RecordingSlidingLayer, RestoredLayer
from tierkv.integrations.hf.request import Request
from tierkv.integrations.hf.workspace import Workspace
from tierkv.integrations.prefix import LoadedPrefix, PrefixCache
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.outcomes import TierName

# Tensors without a numpy dtype (bfloat16, float8) are copied as integers of the same width.
_BITS: dict[int, tuple[torch.dtype, type[np.generic]]] = {
    1: (torch.uint8, np.uint8),
    2: (torch.int16, np.int16),
    4: (torch.int32, np.int32),
}
_SLOWEST_LAST = tuple(TierName)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore put into the cache. num_columns — C; blocks — resident blocks of each row; tier — the slowest one used."""

    num_columns: int = 0
    num_tokens: int = 0
    blocks: tuple[int, ...] = ()
    tier: TierName | None = None


class Restorer:
    """Fills caches of one model from one prefix cache. Not for two threads at once, apart from its workspace."""

    def __init__(self, geometry: Geometry, prefix: PrefixCache, workspace: Workspace) -> None:
        self._geometry = geometry
        self._prefix = prefix
        self._workspace = workspace

    def restore(self, request: Request, cache: DynamicCache, hints: Hints = NO_HINTS) -> Restored:
        """Puts what the store holds of the request's rows into `cache`, which is empty, and gives it layers that record.

        Returns Restored() with the cache ready for a cold run when nothing is held or the lease ran out meanwhile.
        """
        with contextlib.ExitStack() as leases:
            prefixes = self._load(request, hints, leases)
            columns = _common_columns(request, [self._tokens(prefix) for prefix in prefixes])
            if columns > 0:
                rooms = _Rooms(self._geometry, self._workspace, columns, request)
                # Rows of a returned sequence count share a prefix: its blocks are read once for all of them.
                for prefix in {id(p): p for p in prefixes if p is not None}.values():
                    rows = [idx for idx, own in enumerate(prefixes) if own is prefix]
                    self._copy(prefix, request, rooms, rows)
                columns = self._believed(rooms, _common_columns(request, [self._tokens(prefix) for prefix in prefixes]))
                if all(prefix.is_valid() for prefix in prefixes if prefix is not None) and columns > 0:
                    _dress(cache, self._geometry, rooms, columns)
                    return _summary(request, prefixes, columns, self._prefix.layout.block_tokens)
        _dress(cache, self._geometry, None, 0)
        return Restored(blocks=(0,) * len(request.rows))

    def _load(self, request: Request, hints: Hints, leases: contextlib.ExitStack) -> list[LoadedPrefix | None]:
        found: dict[bytes, LoadedPrefix | None] = {}
        for row in request.rows:
            name = row.token_ids.tobytes()
            if name not in found:
                prefix = self._prefix.load(row.token_ids, hints=hints)
                found[name] = leases.enter_context(prefix) if prefix is not None else None
        return [found[row.token_ids.tobytes()] for row in request.rows]

    def _tokens(self, prefix: LoadedPrefix | None) -> int:
        return prefix.num_blocks * self._prefix.layout.block_tokens if prefix is not None else 0

    def _believed(self, rooms: _Rooms, columns: int) -> int:
        """Columns that may be used after blocks fell away: a window's columns were chosen for the promised end and fit no other."""
        has_windows = any(layer.window is not None for layer in self._geometry.layers)
        return 0 if has_windows and columns != rooms.columns else columns

    def _copy(self, prefix: LoadedPrefix, request: Request, rooms: _Rooms, rows: list[int]) -> None:
        for run in prefix.runs():
            for block_idx, block in enumerate(run.blocks, start=run.start_idx):
                for row in rows:
                    first_column = request.rows[row].padding + block_idx * self._prefix.layout.block_tokens
                    rooms.put(row, first_column, block, self._prefix.layout.block_tokens)


class _Rooms:
    """Memory for the restored part of a cache and for the tokens that follow: K and V of each layer, in one allocation.

    It is filled on the host and moved as a whole when the model lies elsewhere, because thousands of small transfers cost more.
    A sliding layer gets only the columns that its window still sees: [first, columns) with first = columns - (window - 1).
    """

    def __init__(self, geometry: Geometry, workspace: Workspace, columns: int, request: Request) -> None:
        self.columns = columns
        self._geometry = geometry
        self._firsts = [_first_column(layer, columns) for layer, _ in _parts(geometry)]
        capacity = request.num_columns + request.room_tokens
        self._shapes = [_room_shape(layer, width, len(request.rows), columns, capacity) for layer, width in _parts(geometry)]
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self._whole = workspace.take(sum(self._sizes), geometry.dtype)
        torch_bits, self._bits = _BITS[geometry.dtype.itemsize]
        self._targets = [tensor.view(torch_bits).numpy() for tensor in self._split(self._whole)]
        self._dense: npt.NDArray[np.generic] | None = None
        if geometry.is_dense:
            self._dense = self._whole.view(torch_bits).numpy().reshape(len(geometry.layers), 2, *self._shapes[0])
        for row, own in enumerate(request.rows):
            for target, first in zip(self._targets, self._firsts, strict=True):
                target[row, :, : max(min(own.padding, columns) - first, 0)] = 0

    def put(self, row: int, first_column: int, block: memoryview, block_tokens: int) -> None:
        """Copies the tokens of a block to columns [first_column, first_column + block_tokens) of a row, cut off at the common end."""
        last_column = min(first_column + block_tokens, self.columns)
        if last_column <= first_column:
            return
        source = np.frombuffer(block, dtype=self._bits)
        if self._dense is not None:
            layers, kinds, _, heads, _, width = self._dense.shape
            blocked = source.reshape(layers, kinds, heads, block_tokens, width)
            self._dense[:, :, row, :, first_column:last_column] = blocked[:, :, :, : last_column - first_column]
            return
        offset = 0
        for target, first, shape in zip(self._targets, self._firsts, self._geometry.part_shapes(block_tokens), strict=True):
            size = math.prod(shape)
            part = source[offset : offset + size].reshape(shape)
            offset += size
            start = max(first_column, first)
            if start < last_column:
                target[row, :, start - first : last_column - first] = part[:, start - first_column : last_column - first_column]

    def placed(self) -> list[torch.Tensor]:
        """K and V of each layer, (rows, kv_heads, tokens, width), on the device of the layer."""
        devices = [layer.device for layer, _ in _parts(self._geometry)]
        if len(set(devices)) == 1:
            return self._split(self._whole.to(devices[0]))
        return [tensor.to(device) for tensor, device in zip(self._split(self._whole), devices, strict=True)]

    def _split(self, whole: torch.Tensor) -> list[torch.Tensor]:
        return [flat.view(shape) for flat, shape in zip(torch.split(whole, self._sizes), self._shapes, strict=True)]


def new_cache(request: Request, config: Any) -> DynamicCache:
    """The cache of a call: the caller's empty one, or a new one for `config`, in both cases with a layer per layer of the model."""
    fresh = DynamicCache(config=config)
    if request.cache is None:
        return fresh
    request.cache.layers = fresh.layers
    request.cache.layer_class_to_replicate = fresh.layer_class_to_replicate
    return request.cache


def _dress(cache: DynamicCache, geometry: Geometry, rooms: _Rooms | None, columns: int) -> None:
    placed = rooms.placed() if rooms is not None else []
    for position, layer in enumerate(geometry.layers):
        keys, values = placed[2 * position : 2 * position + 2] if placed else (None, None)
        present = cache.layers[layer.layer_idx]
        if isinstance(present, DynamicSlidingWindowLayer):
            recording = RecordingSlidingLayer(present.sliding_window)
            if keys is not None and values is not None:
                seen = columns - _first_column(layer, columns)
                recording.restore(keys[:, :, :seen], values[:, :, :seen], columns)
            cache.layers[layer.layer_idx] = recording
        elif keys is not None and values is not None:
            cache.layers[layer.layer_idx] = RestoredLayer(keys, values, columns)


def _parts(geometry: Geometry) -> list[tuple[LayerGeometry, int]]:
    """K and V of each layer with their widths, in the order they have in a block."""
    return [(layer, width) for layer in geometry.layers for width in (layer.key_dim, layer.value_dim)]


def _first_column(layer: LayerGeometry, columns: int) -> int:
    return 0 if layer.window is None else max(columns - layer.window + 1, 0)


def _room_shape(layer: LayerGeometry, width: int, num_rows: int, columns: int, capacity: int) -> tuple[int, int, int, int]:
    tokens = capacity if layer.window is None else columns - _first_column(layer, columns)
    return num_rows, layer.num_kv_heads, tokens, width


def _common_columns(request: Request, tokens: list[int]) -> int:
    ends = [row.padding + min(num_tokens, len(row.token_ids)) for row, num_tokens in zip(request.rows, tokens, strict=True)]
    columns = min(*ends, request.num_columns - 1) if ends else 0
    # Columns that are padding in every row are no gain.
    return columns if columns > min(row.padding for row in request.rows) else 0


def _summary(request: Request, prefixes: list[LoadedPrefix | None], columns: int, block_tokens: int) -> Restored:
    used: set[TierName] = set()
    for row, prefix in zip(request.rows, prefixes, strict=True):
        tokens = max(columns - row.padding, 0)
        used |= set(prefix.tiers[: -(-tokens // block_tokens)]) if prefix is not None else set()
    return Restored(
        num_columns=columns,
        num_tokens=sum(max(columns - row.padding, 0) for row in request.rows),
        blocks=tuple(prefix.num_blocks if prefix is not None else 0 for prefix in prefixes),
        tier=max(used, key=_SLOWEST_LAST.index) if used else None,
    )
