"""Block keys: a BLAKE3 chain over (namespace, parent key, the block's token ids).

Equal keys mean equal KV (design: identity is in the key, so two models can never meet). A key commits to everything before its
block, so the length of the leading run of resident keys is the length of the usable prefix. Layout of the hashed bytes:
`docs/format.md`, "Keys".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from tierkv.errors import InvalidRequestError

KEY_BYTES = 32
TOKEN_ID_LIMIT = 2**32
_BLOCK_KEY_CONTEXT = "tierkv 2026 block key v1"

BlockKey = NewType("BlockKey", bytes)
NamespaceId = NewType("NamespaceId", bytes)


def block_key(value: bytes) -> BlockKey:
    """Checks a 32-byte key that came from outside. Raises InvalidRequestError naming the length found."""
    if len(value) != KEY_BYTES:
        raise InvalidRequestError("a block key has 32 bytes", length=len(value), key=value)
    return BlockKey(bytes(value))


def namespace_id(value: bytes) -> NamespaceId:
    """Checks a 32-byte namespace id that came from outside. Raises InvalidRequestError naming the length found."""
    if len(value) != KEY_BYTES:
        raise InvalidRequestError("a namespace id has 32 bytes", length=len(value), namespace=value)
    return NamespaceId(bytes(value))


def chain_keys(
    namespace: NamespaceId,
    token_ids: Sequence[int] | npt.NDArray[np.integer],
    *,
    block_tokens: int,
    parent: BlockKey | None = None,
) -> list[BlockKey]:
    """Keys of the full blocks of `token_ids`, head first; a partial tail block gets no key.

    namespace — id of the model identity, tenant and salt; token_ids — (num_tokens,), non-negative, < 2^32, borrowed;
    parent — key of the block before the first one, None at the start of a sequence.
    Raises InvalidRequestError for a block size below 1 or a token id out of range. Cost: about 1 µs a block.
    """
    if block_tokens < 1:
        raise InvalidRequestError("block_tokens must be at least 1", block_tokens=block_tokens)
    encoded = _encode_tokens(token_ids)
    block_bytes = 4 * block_tokens
    keys: list[BlockKey] = []
    previous: bytes = parent if parent is not None else bytes(KEY_BYTES)
    for start in range(0, len(encoded) - block_bytes + 1, block_bytes):
        hasher = blake3(derive_key_context=_BLOCK_KEY_CONTEXT)
        hasher.update(namespace)
        hasher.update(previous)
        hasher.update(encoded[start : start + block_bytes])
        previous = hasher.digest()
        keys.append(BlockKey(previous))
    return keys


def _encode_tokens(token_ids: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    array = np.asarray(token_ids)
    if array.size == 0:
        return b""
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InvalidRequestError("token ids form a flat sequence of integers", shape=array.shape, dtype=array.dtype)
    if int(array.min()) < 0 or int(array.max()) >= TOKEN_ID_LIMIT:
        raise InvalidRequestError("token ids lie in [0, 2^32)", smallest=int(array.min()), largest=int(array.max()))
    return array.astype("<u4").tobytes()
