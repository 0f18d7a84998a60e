"""The layers of a finished cache into reserved blocks.

A cache of S columns holds keys and values of all tokens but the last of each sequence. Full-attention layers keep all columns;
sliding ones keep those that were recorded, which begin where the restored ones end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from tierkv.integrations.hf.geometry import Geometry
from tierkv.integrations.hf.layers import RecordingSlidingLayer
from tierkv.integrations.hf.request import Request, Row
from tierkv.integrations.hf.restore import Restored
from tierkv.integrations.prefix import PrefixCache
from tierkv.model.hints import NO_HINTS, Hints


class Recorder:
    """Saves the blocks of finished calls of one model."""

    def __init__(self, geometry: Geometry, prefix: PrefixCache) -> None:
        self._geometry = geometry
        self._prefix = prefix

    def save(
        self, request: Request, restored: Restored, cache: DynamicCache, sequences: torch.Tensor, hints: Hints = NO_HINTS
    ) -> int:
        """Saves every full block of prompt and answer that was not resident; returns how many.

        sequences — (rows, columns) token ids as generate returned them; cache — after the call, only read, its recording ends.
        """
        parts = self._parts(cache)
        matrix = sequences.detach().cpu().numpy().astype(np.int64, copy=False)
        if parts is None or len(matrix) != len(request.rows):
            return 0
        last_column = min(matrix.shape[1] - 1, *(first + tensor.shape[-2] for first, tensor in parts))
        saved = 0
        for idx, row in enumerate(request.rows):
            token_ids = _without_trailing_pads(matrix[idx, row.padding : last_column], row, request.pad_token_id)
            saved += self._save_row(parts, idx, row, restored.blocks[idx], token_ids, hints)
        return saved

    def _save_row(
        self,
        parts: Sequence[tuple[int, torch.Tensor]],
        row_idx: int,
        row: Row,
        start_block: int,
        token_ids: npt.NDArray[np.int64],
        hints: Hints,
    ) -> int:
        block_tokens = self._prefix.layout.block_tokens
        num_blocks = len(token_ids) // block_tokens
        if start_block >= num_blocks:
            return 0
        start_column = row.padding + start_block * block_tokens
        stop_column = row.padding + num_blocks * block_tokens
        # One view per part and block, made by one call per part: making them block by block would cost more than the copies.
        pieces: list[tuple[torch.Tensor, ...]] = [
            torch.split(tensor[row_idx, :, start_column - first : stop_column - first], block_tokens, dim=1)
            for first, tensor in parts
        ]

        def fill(block_idx: int, buffer: memoryview) -> None:
            self._fill([piece[block_idx - start_block] for piece in pieces], buffer)

        return self._prefix.save(token_ids, start_block, fill, hints=hints)

    def _fill(self, parts: list[torch.Tensor], buffer: memoryview) -> None:
        target = torch.frombuffer(buffer, dtype=self._geometry.dtype)
        if self._geometry.is_dense and parts[0].device.type == "cpu":
            torch.stack(parts, out=target.view(len(parts), *parts[0].shape))
        elif self._geometry.is_dense:
            target.view(len(parts), *parts[0].shape).copy_(torch.stack(parts))
        else:
            offset = 0
            for part in parts:
                target[offset : offset + part.numel()].view(part.shape).copy_(part)
                offset += part.numel()

    def _parts(self, cache: DynamicCache) -> list[tuple[int, torch.Tensor]] | None:
        """(column of its first token, tensor) of K and V of each layer; None when the cache is not as it was promised."""
        parts: list[tuple[int, torch.Tensor]] = []
        for layer in self._geometry.layers:
            held = cache.layers[layer.layer_idx]
            recorded = held.take_recorded() if isinstance(held, RecordingSlidingLayer) else _states(held)
            first = held.recorded_from if isinstance(held, RecordingSlidingLayer) else 0
            if recorded is None or recorded[0].dtype != self._geometry.dtype or recorded[1].dtype != self._geometry.dtype:
                return None
            parts += [(first, recorded[0]), (first, recorded[1])]
        return parts


def _states(layer: object) -> tuple[torch.Tensor, torch.Tensor] | None:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    return (keys, values) if isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) else None


def _without_trailing_pads(token_ids: npt.NDArray[np.int64], row: Row, pad_token_id: int | None) -> npt.NDArray[np.int64]:
    """Drops what a row was filled up with after it had ended; its keys are right but nobody asks for them again."""
    end = len(token_ids)
    while pad_token_id is not None and end > len(row.token_ids) and token_ids[end - 1] == pad_token_id:
        end -= 1
    return token_ids[:end]
