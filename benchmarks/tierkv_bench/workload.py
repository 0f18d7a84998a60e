"""The blocks that benchmarks store: keys of a namespace of their own, opaque bytes."""

from __future__ import annotations

import numpy as np

from tierkv.interface import BlockStore
from tierkv.model.keys import BlockKey, chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability

BLOCK_TOKENS = 16


def register(store: BlockStore, name: str, block_bytes: int, *, durability: Durability) -> Namespace:
    """The namespace of the benchmark `name` with opaque blocks of `block_bytes`."""
    layout = Layout(shape=(block_bytes,), dtype="uint8", block_tokens=BLOCK_TOKENS)
    return store.register(Identity(weights=f"benchmark {name}"), layout, durability=durability)


def sequence(namespace: Namespace, num_blocks: int, *, seed: int = 0) -> list[BlockKey]:
    """Keys of a sequence of `num_blocks` blocks; another seed is another sequence from its first block on."""
    tokens = np.arange(num_blocks * BLOCK_TOKENS, dtype=np.uint32)
    tokens[0] = seed + 1_000_000
    return chain_keys(namespace.namespace_id, tokens, block_tokens=BLOCK_TOKENS)
