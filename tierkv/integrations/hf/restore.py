"""Leased blocks into the layers of a cache, with one copy.

All rows of a batch share the number of columns C that the cache holds. Row r has p_r columns of padding, then its tokens:

    columns   [0 .. p_r)  padding, masked, zero        [p_r .. C)  restored tokens        [C .. num_columns)  computed by the model

C is the smallest p_r + k_r over the rows, k_r being the tokens restorable for row r, and leaves at least the last column to compute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
from tierkv.model.outcomes import TierName

# Tensors without a numpy dtype (bfloat16, float8) are copied as integers of the same width.
_BITS = {
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

    def restore(self, request: Request, cache: DynamicCache) -> Restored:
        """Puts what the store holds of the request's rows into `cache`, which is empty, and gives it layers that record.

        Returns Restored() with the cache ready for a cold run when nothing is held or the lease ran out meanwhile.
        """
        with contextlib.ExitStack() as leases:
            prefixes = self._load(request, leases)
            columns = _common_columns(request, [self._tokens(prefix) for prefix in prefixes])
            if columns > 0:
                rooms = _Rooms(self._geometry, self._workspace, len(request.rows), columns, request)
                # Rows of a returned sequence count share a prefix: its blocks are read once for all of them.
                for prefix in {id(p): p for p in prefixes if p is not None}.values():
                    rows = [idx for idx, own in enumerate(prefixes) if own is prefix]
                    self._copy(prefix, request, rooms, rows)
                columns = self._believed(
                    rooms,
                    _common_columns(request, [self._tokens(prefix) for prefix in prefixes]),
                )
                if all(prefix.is_valid() for prefix in prefixes if prefix is not None) and columns > 0:
                    _dress(cache, self._geometry, rooms, columns)
                    return _summary(request, prefixes, columns, self._prefix.layout.block_tokens)
        _dress(cache, self._geometry, None, 0)
        return Restored(blocks=(0,) * len(request.rows))

    def _load(self, request: Request, leases: contextlib.ExitStack) -> list[LoadedPrefix | None]:
        found: dict[bytes, LoadedPrefix | None] = {}
        for row in request.rows:
            name = row.token_ids.tobytes()
            if name not in found:
                prefix = self._prefix.load(row.token_ids)
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
    """Memory for the restored part of a cache and for the tokens that follow: K and V of each layer, in one allocation per device.

    A sliding layer gets only the columns that its window still sees: [first, columns) with first = columns - (window - 1).
    """

    def __init__(
        self,
        geometry: Geometry,
        workspace: Workspace,
        num_rows: int,
        columns: int,
        request: Request,
    ) -> None:
        self._geometry = geometry
        self.columns = columns
        self._firsts = [_first_column(layer, columns) for layer, _ in _parts(geometry)]
        capacity = request.num_columns + request.room_tokens
        shapes = [_room_shape(layer, width, num_rows, columns, capacity) for layer, width in _parts(geometry)]
        sizes = [int(np.prod(shape)) for shape in shapes]
        flats = self._allocate(sizes, workspace)
        self.tensors = [flat.view(shape) for flat, shape in zip(flats, shapes, strict=True)]
        for row, own in enumerate(request.rows):
            for tensor, first in zip(self.tensors, self._firsts, strict=True):
                tensor[row, :, : max(min(own.padding, columns) - first, 0)].zero_()
        self._host = all(tensor.device.type == "cpu" for tensor in self.tensors)
        torch_bits, self._bits = _BITS[geometry.dtype.itemsize]
        self._targets: list[npt.NDArray[np.generic]] = []
        self._dense: npt.NDArray[np.generic] | None = None
        if self._host:
            self._targets = [tensor.view(torch_bits).numpy() for tensor in self.tensors]
            if geometry.is_dense:
                shape = (len(geometry.layers), 2, *shapes[0])
                self._dense = self._whole.view(torch_bits).numpy()[: sum(sizes)].reshape(shape)

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
        for idx, part in enumerate(self._split(source, block_tokens)):
            first = self._firsts[idx]
            start = max(first_column, first)
            if start < last_column:
                self._put_part(
                    idx,
                    row,
                    start - first,
                    part[:, start - first_column : last_column - first_column],
                )

    def _put_part(self, idx: int, row: int, start: int, part: npt.NDArray[np.generic]) -> None:
        if self._host:
            self._targets[idx][row, :, start : start + part.shape[1]] = part
        else:
            # A copy of its own: the block's memory is read-only, which torch cannot express.
            staged = torch.from_numpy(np.array(part)).view(self._geometry.dtype)
            self.tensors[idx][row, :, start : start + part.shape[1]].copy_(staged)

    def _split(self, source: npt.NDArray[np.generic], block_tokens: int) -> Iterator[npt.NDArray[np.generic]]:
        offset = 0
        for shape in self._geometry.part_shapes(block_tokens):
            size = shape[0] * shape[1] * shape[2]
            yield source[offset : offset + size].reshape(shape)
            offset += size

    def _allocate(self, sizes: list[int], workspace: Workspace) -> list[torch.Tensor]:
        dtype = self._geometry.dtype
        devices = [layer.device for layer, _ in _parts(self._geometry)]
        if all(device.type == "cpu" for device in devices):
            self._whole = workspace.take(sum(sizes), dtype)
            return list(torch.split(self._whole, sizes))
        return [torch.empty(size, dtype=dtype, device=device) for size, device in zip(sizes, devices, strict=True)]


def new_cache(request: Request, config: Any) -> DynamicCache:
    """The cache of a call: the caller's empty one, or a new one for `config`, in both cases with a layer per layer of the model."""
    fresh = DynamicCache(config=config)
    if request.cache is None:
        return fresh
    request.cache.layers = fresh.layers
    request.cache.layer_class_to_replicate = fresh.layer_class_to_replicate
    return request.cache


def _dress(cache: DynamicCache, geometry: Geometry, rooms: _Rooms | None, columns: int) -> None:
    for position, layer in enumerate(geometry.layers):
        keys, values = rooms.tensors[2 * position : 2 * position + 2] if rooms is not None else (None, None)
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


def _summary(
    request: Request,
    prefixes: list[LoadedPrefix | None],
    columns: int,
    block_tokens: int,
) -> Restored:
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
