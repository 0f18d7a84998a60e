"""One block as the index knows it. Mutable; changed only under the store's lock."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from tierkv.errors import InternalError
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.lifecycle import READABLE, BlockEvent, BlockState, advance
from tierkv.model.outcomes import BlockRecord, Durability, Extent


@dataclass(slots=True, eq=False)
class BlockEntry:
    """Residency and state of one block.

    state and extent speak of the host copy; `is_on_disk` of the disk's. pins — leases that hold the block; moves — jobs of the
    mover that look at its bytes. An extent returns only when both are zero. record — None until the block is sealed (its
    checksum is made); is_verified — whether this process has seen the host bytes match it. is_passing — it is saved through the
    arena to the disk and was never the host policy's: its request has added its share to the host tier already.
    """

    key: BlockKey
    namespace_id: NamespaceId
    parent: BlockKey | None
    block_bytes: int
    generation: int = 0
    state: BlockState = BlockState.FREE
    extent: Extent | None = None
    record: BlockRecord | None = None
    is_on_disk: bool = False
    is_verified: bool = False
    is_passing: bool = False
    was_on_disk: bool = False
    """The disk has had it and let it go: to write it again is no use of it."""
    durability: Durability = Durability.VOLATILE
    pins: int = 0
    moves: int = 0
    promotion: Future[None] | None = None
    num_device_copies: int = 0
    """Devices on which a page holds the whole block; which page is in the books of its pool."""
    page_holds: int = 0
    """Holds of sessions on pages that are the block's, over all devices."""

    @property
    def is_readable(self) -> bool:
        return self.state in READABLE

    @property
    def has_host_copy(self) -> bool:
        """Whether complete bytes lie in the arena (perhaps on their way out)."""
        return self.state in READABLE or self.state is BlockState.EVICTING

    @property
    def is_held(self) -> bool:
        """Whether the block can be served: from the arena, from disk, from a page of a device, or from a promotion under way."""
        return self.is_on_disk or self.has_host_copy or self.state is BlockState.FILLING or self.num_device_copies > 0

    @property
    def is_only_in_pages(self) -> bool:
        """Whether no tier but devices has the block, or is about to."""
        return self.num_device_copies > 0 and self.state is BlockState.FREE and not self.is_on_disk

    @property
    def is_evictable(self) -> bool:
        return self.state is BlockState.READY and self.moves == 0

    @property
    def is_busy(self) -> bool:
        """Whether a lease, a page that somebody holds, or a reservation forbids deleting the block."""
        if self.pins > 0 or self.page_holds > 0 or self.state is BlockState.RESERVED:
            return True
        # A page that is copied to the host is nobody's wish but ours.
        return self.state is BlockState.FILLING and self.num_device_copies == 0

    def step(self, event: BlockEvent) -> None:
        """Advances the state. Raises InternalError where the table forbids it."""
        self.state = advance(self.state, event)

    def placed_at(self) -> Extent:
        """The extent of a block that must have one."""
        if self.extent is None:
            raise InternalError("a block without an extent was asked for its place", key=self.key, state=self.state)
        return self.extent

    def sealed_record(self) -> BlockRecord:
        """The record of a block that must be sealed."""
        if self.record is None:
            raise InternalError("an unsealed block was asked for its record", key=self.key, state=self.state)
        return self.record
