"""Recall: what a store knows of blocks, held or gone, brought together for `tierkv.observe.explain`.

Each question takes the lock for a copy or for one look-up, never for a scan.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from tierkv.index.block_index import BlockIndex
from tierkv.index.entry import BlockEntry
from tierkv.index.trail import Trail, TrailEvent
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import MissReason, TierName
from tierkv.namespaces import NamespaceTable
from tierkv.placement import planner


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a block is now.

    tier — that serves it, None where it is not held; is_reserved — a session is writing it; pins — leases on it; page_holds — holds of
    sessions on its pages; miss — what a call that wants it is told.
    """

    tier: TierName | None
    miss: MissReason
    is_on_disk: bool = False
    is_reserved: bool = False
    pins: int = 0
    is_on_device: bool = False
    page_holds: int = 0


class Recall:
    """Reads; changes nothing. Safe to call from any thread."""

    def __init__(self, *, trail: Trail, index: BlockIndex, namespaces: NamespaceTable, lock: threading.RLock) -> None:
        self._trail = trail
        self._index = index
        self._namespaces = namespaces
        self._lock = lock

    def events(self) -> list[TrailEvent]:
        """The whole trail, oldest first."""
        return self._trail.events()

    def namespaces(self) -> list[Namespace]:
        return self._namespaces.all()

    def whereabouts(self, key: BlockKey) -> Whereabouts:
        with self._lock:
            entry = self._index.get(key)
            if entry is None:
                return Whereabouts(None, self._index.miss_reason(key))
            tier = planner.found_in(entry) if entry.is_held else None
            return Whereabouts(
                tier,
                MissReason.NEVER_SEEN,
                is_on_disk=entry.is_on_disk,
                is_reserved=tier is None,
                pins=entry.pins,
                is_on_device=entry.num_device_copies > 0,
                page_holds=entry.page_holds,
            )

    def known_keys(self) -> list[BlockKey]:
        """Keys that are held, reserved or remembered as gone. Those of the trail come in addition."""
        with self._lock:
            return self._index.remembered_keys()

    def held_in(self, namespace_id: NamespaceId) -> list[BlockKey]:
        """Keys held under a namespace."""
        return [entry.key for entry in self._entries() if entry.namespace_id == namespace_id and entry.is_held]

    def held_blocks(self) -> Counter[NamespaceId]:
        """Number of blocks held under each namespace."""
        return Counter(entry.namespace_id for entry in self._entries() if entry.is_held)

    def _entries(self) -> list[BlockEntry]:
        with self._lock:
            return list(self._index)
