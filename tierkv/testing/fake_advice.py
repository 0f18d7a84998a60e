"""What hints do in the fake store: the same order of leaving as in a real one, kept as numbers on blocks.

Expected idle times are taken and ignored: the fake knows no pace.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from tierkv.model.chains import Chains
from tierkv.model.hints import Hints, Priority
from tierkv.model.keys import BlockKey
from tierkv.placement.retention import Retention
from tierkv.policies.expiry import unshared_tail

_UNBOUNDED = 1 << 40


class AdvisedBlock(Protocol):
    """What advice needs to know of a block, and changes in it."""

    parent: BlockKey | None
    used_at: int


class FakeAdvice:
    """Advice on the blocks of one backend. capacity_blocks — None: no bound."""

    def __init__(self, blocks: Mapping[BlockKey, AdvisedBlock], capacity_blocks: int | None) -> None:
        self._blocks = blocks
        self._retention: Retention[BlockKey] = Retention(capacity_blocks or _UNBOUNDED)
        self._expired = 0

    def is_retained(self, key: BlockKey) -> bool:
        return self._retention.is_retained(key)

    def expire(self, now_s: float) -> None:
        self._retention.expire(now_s)

    def forget(self, key: BlockKey) -> None:
        self._retention.forget(key)

    def take(self, keys: Sequence[BlockKey], hints: Hints, *, used_by_others: Container[BlockKey], now_s: float) -> None:
        """Does what `hints` say of held blocks, head first."""
        if not keys:
            return
        chains: Chains[BlockKey] = Chains()
        for key, block in self._blocks.items():
            if block.parent is not None:
                chains.link(block.parent, key)
        whole = self._whole_chain(keys)
        if hints.pin_until_s is not None and hints.pin_until_s > now_s:
            self._retention.pin([(key, 1) for key in whole], hints.pin_until_s)
        elif hints.pin_until_s is not None:
            self._retention.unpin(unshared_tail(chains, keys, self._retention.is_pinned, lambda key: False))
        if hints.priority is Priority.HIGH:
            self._retention.protect([(key, 1) for key in whole])
        if hints.session_closed or hints.priority is Priority.LOW:
            leaving = whole if hints.session_closed else keys
            tail = unshared_tail(chains, leaving, self._blocks.__contains__, used_by_others.__contains__)
            self._retention.unprotect(tail)
            for key in tail:  # the last of them leaves first
                self._expired += 1
                self._blocks[key].used_at = -self._expired

    def _whole_chain(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        """`keys` with the held blocks before them, head first."""
        above: list[BlockKey] = []
        parent = self._blocks[keys[0]].parent
        while parent is not None and parent in self._blocks:
            above.append(parent)
            parent = self._blocks[parent].parent
        return [*reversed(above), *keys]
