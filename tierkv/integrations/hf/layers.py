"""Cache layers: one that goes on from restored memory without copying it again, one that records what a window would forget.

Both behave like the layers of transformers they extend in everything but that.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


class RestoredLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no annotation
    """A dynamic layer over memory with room: new tokens are written behind the restored ones instead of concatenated.

    The layer of transformers copies the whole past for every token; this one writes in place while `keys` is still the head of its
    room (a crop keeps it so) and gradients are off. In any other case (reordered rows, no room left) it does what its parent does.
    """

    def __init__(self, key_room: torch.Tensor, value_room: torch.Tensor, num_tokens: int) -> None:
        """Starts behind `num_tokens` tokens, which the rooms hold already.

        key_room, value_room — (batch, kv_heads, room_tokens, head_dim), owned by the layer from now on.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # transformers has no annotation
        self.device = key_room.device
        self.dtype = key_room.dtype
        self._rooms: tuple[torch.Tensor, torch.Tensor] | None = (key_room, value_room)
        self.keys = key_room[:, :, :num_tokens]
        self.values = value_room[:, :, :num_tokens]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends (batch, kv_heads, new_tokens, head_dim) and returns the whole."""
        if self._rooms is not None and self.keys is not None and self._fits(key_states, value_states):
            start = self.keys.shape[-2]
            stop = start + key_states.shape[-2]
            key_room, value_room = self._rooms
            key_room[:, :, start:stop].copy_(key_states)
            value_room[:, :, start:stop].copy_(value_states)
            self.keys = key_room[:, :, :stop]
            self.values = value_room[:, :, :stop]
            return self.keys, self.values
        self._rooms = None
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        return keys, values

    def _fits(self, key_states: torch.Tensor, value_states: torch.Tensor) -> bool:
        if torch.is_grad_enabled() or self.keys is None or self.values is None or self._rooms is None:
            return False
        return _is_head(self.keys, self._rooms[0], key_states) and _is_head(self.values, self._rooms[1], value_states)


class RecordingSlidingLayer(DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]  # as above
    """A sliding-window layer that also keeps the keys and values of every new token until they were saved."""

    def __init__(self, sliding_window: int) -> None:
        super().__init__(sliding_window)
        self._recorded: list[tuple[torch.Tensor, torch.Tensor]] | None = []
        self.recorded_from = 0

    def restore(self, keys: torch.Tensor, values: torch.Tensor, num_tokens: int) -> None:
        """Starts behind `num_tokens` tokens, of which keys and values are the last min(num_tokens, window - 1); owned from now on."""
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values
        self.cumulative_length = num_tokens
        self.recorded_from = num_tokens

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends (batch, kv_heads, new_tokens, head_dim) and returns what the window sees."""
        if self._recorded is not None:
            self._recorded.append((key_states, value_states))
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        return keys, values

    def take_recorded(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Keys and values of all tokens from `recorded_from` on, once; ends the recording."""
        recorded, self._recorded = self._recorded, None
        if not recorded:
            return None
        return torch.cat([keys for keys, _ in recorded], dim=-2), torch.cat([values for _, values in recorded], dim=-2)


def _is_head(states: torch.Tensor, room: torch.Tensor, new: torch.Tensor) -> bool:
    return (
        states.data_ptr() == room.data_ptr()
        and states.stride() == room.stride()
        and states.shape[:2] == room.shape[:2] == new.shape[:2]
        and states.shape[-2] + new.shape[-2] <= room.shape[-2]
        and new.dtype == room.dtype
        and new.device == room.device
    )
