"""Pages of a pool as one tensor. What it leaves to others: who holds which page, and what lies in it."""

from __future__ import annotations

import numpy as np
import torch

from tierkv.engine.config import DTYPES
from tierkv.errors import ClosedError, InvalidRequestError
from tierkv.model.layout import Layout
from tierkv.pages import Pool


class PageMemory:
    """A pool's memory, cut into pages of one layout.

    pool — borrowed; its memory stays in use until `close`, which has to come before the store of the pool is closed. layout — dense
    attention, (num_layers, 2, num_kv_heads, block_tokens, head_dim). Raises InvalidRequestError where page and block differ in size.
    """

    def __init__(self, pool: Pool, layout: Layout) -> None:
        if layout.dtype not in DTYPES or len(layout.shape) != 5:
            raise InvalidRequestError("the engine reads pages of dense attention only", shape=layout.shape, dtype=layout.dtype)
        if pool.page_bytes != layout.block_bytes:
            raise InvalidRequestError(
                "a page of this pool holds no block of this model", page_bytes=pool.page_bytes, block_bytes=layout.block_bytes
            )
        self.pool = pool
        self.layout = layout
        self._pages: torch.Tensor | None = _map(pool, layout)

    @property
    def pages(self) -> torch.Tensor:
        """(num_pages, num_layers, 2, num_kv_heads, block_tokens, head_dim), K before V, on the pool's device, writable."""
        if self._pages is None:
            raise ClosedError("the memory of these pages was given back; bind another pool")
        return self._pages

    def save(self, page: int) -> torch.Tensor:
        """A copy of a page, (num_layers, 2, num_kv_heads, block_tokens, head_dim) on the pool's device."""
        return self.pages[page].clone()

    def restore(self, content: torch.Tensor, page: int) -> None:
        """What `save` returned, or a page of another memory of this layout, over a page."""
        self.pages[page].copy_(content)

    def close(self) -> None:
        """Lets go of the pool's memory. May be called twice; the pages must not be used any more."""
        self._pages = None


def _map(pool: Pool, layout: Layout) -> torch.Tensor:
    dtype = DTYPES[layout.dtype]
    if pool.buffer is not None:
        # By way of numpy, which holds on to the buffer: memory that is still in use cannot be unmapped. torch.frombuffer lets go of it.
        whole = np.frombuffer(pool.buffer, dtype=np.uint8, count=pool.num_pages * pool.page_bytes)
        return torch.from_numpy(whole).view(dtype).view(pool.num_pages, *layout.shape)
    if not pool.ipc_handle:
        # Pages that no other process maps: their memory is this tensor.
        return torch.zeros((pool.num_pages, *layout.shape), dtype=dtype, device=pool.device)
    # Only an engine on such a device needs the module, and only there its imports succeed.
    from tierkv.tiers.cuda import map_ipc

    memory = map_ipc(pool.ipc_handle, pool.device)
    return memory[: pool.num_pages * pool.page_bytes].view(dtype).view(pool.num_pages, *layout.shape)
