"""Room in the host tier: who enters the policy, and an extent for each of them. Pure memory, under the store's lock.

The policy counts bytes, the arena has them in pieces: where room is there by weight but too scattered for a block, more entries leave
than the weight asks for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from tierkv.index.entry import BlockEntry
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import Extent
from tierkv.policies.base import Cause, Policy, Shortfall
from tierkv.tiers.host import HostTier

_DEFRAGMENT_ROUNDS = 4
"""How often more victims are asked for when room is there but too scattered for a block."""


class HostRoom:
    """Makes room. evict — lets victims leave, which the policy knows already; is_pinned — whom it must not name."""

    def __init__(
        self,
        host: HostTier,
        policy: Policy[BlockKey],
        is_pinned: Callable[[BlockKey], bool],
        evict: Callable[[Sequence[BlockKey]], None],
    ) -> None:
        self._host = host
        self._policy = policy
        self._is_pinned = is_pinned
        self._evict = evict

    def enter(
        self, entries: Sequence[BlockEntry], head: Sequence[BlockEntry], cause: Cause, spent: int = 0
    ) -> tuple[int, Shortfall | None]:
        """Takes the leading entries into the host policy and gives an extent to those that have none; how many, and why not more."""
        if not entries:
            return 0, None
        keys = [entry.key for entry in entries]
        weights = [self._host.footprint_bytes(entry.block_bytes) for entry in entries]
        head_keys = [entry.key for entry in head if entry.key in self._policy]
        protected = set(head_keys)
        admission = self._policy.admit(
            keys,
            weights,
            lambda key: key in protected or self._is_pinned(key),
            cause=cause,
            head=head_keys,
            spent=spent,
        )
        self._evict(admission.victims)
        admitted = entries[: admission.num_admitted]
        homeless = [entry for entry in admitted if entry.extent is None]
        extents = self.extents_for(homeless)
        for entry, extent in zip(homeless, extents, strict=False):
            entry.extent = extent
        num_placed = len(admitted)
        if len(extents) < len(homeless):
            num_placed = admitted.index(homeless[len(extents)])
            num_placed += self._place_scattered(admitted[num_placed:], protected)
        for entry in admitted[num_placed:]:
            self._policy.on_remove(entry.key)
        return num_placed, admission.shortfall if num_placed == len(admitted) else Shortfall.PINNED

    def extents_for(self, entries: Sequence[BlockEntry]) -> list[Extent]:
        """Extents for the leading entries, of one length and in one piece where possible (a later write is then one too)."""
        found: list[Extent] = []
        for block_bytes, alike in itertools.groupby(entries, key=lambda entry: entry.block_bytes):
            count = sum(1 for _ in alike)
            extents = self._host.reserve(count, block_bytes)
            found += extents
            if len(extents) < count:
                break
        return found

    def _place_scattered(self, entries: Sequence[BlockEntry], protected: set[BlockKey]) -> int:
        """Extents for admitted entries that found bytes enough, only not in one piece: evicts beyond need until each fits.

        Bytes that are still on their way down are not worth a good block.
        """
        for idx, entry in enumerate(entries):
            if entry.extent is None and not self._place_one_scattered(entry, protected):
                return idx
        return len(entries)

    def _place_one_scattered(self, entry: BlockEntry, protected: set[BlockKey]) -> bool:
        weight = self._host.footprint_bytes(entry.block_bytes)
        for _ in range(_DEFRAGMENT_ROUNDS):
            if self._host.capacity_bytes - self._host.used_bytes < weight:
                return False
            victims = self._policy.make_room(weight, lambda key: key in protected or self._is_pinned(key))
            if not victims:
                return False
            self._evict(victims)
            extents = self._host.reserve(1, entry.block_bytes)
            if extents:
                entry.extent = extents[0]
                return True
        return False
