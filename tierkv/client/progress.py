"""What a lease knows while its events arrive: pure bookkeeping.

Two sources: `Acquire` and `Await` name arena offsets of blocks that are readable, `Get` carries the bytes themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierkv.errors import DataError
from tierkv.interface import ReadyRun
from tierkv.model.outcomes import MissReason, TierName
from tierkv.wire import messages
from tierkv.wire._generated import tierkv_pb2 as pb

View = Callable[[int], memoryview]
"""Arena offset → the block there, read-only."""


class LeaseProgress:
    """Blocks so far, in order. `ready` takes what an event brought and returns the run to hand out, if any."""

    def __init__(self) -> None:
        self.tiers: tuple[TierName, ...] = ()
        self.miss: MissReason | None = None
        self.num_blocks = 0
        self.blocks: list[memoryview] = []
        self.lease_id: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every block that the lease holds has arrived."""
        return len(self.blocks) == self.num_blocks

    def granted(self, tiers: tuple[TierName, ...], miss: MissReason | None) -> None:
        self.tiers, self.miss, self.num_blocks = tiers, miss, len(tiers)

    def ended(self, num_blocks: int, miss: MissReason | None) -> None:
        """The prefix ends here."""
        self.num_blocks = min(num_blocks, len(self.blocks))
        self.tiers = self.tiers[: self.num_blocks]
        self.miss = miss

    def ready(self, start_idx: int, blocks: Sequence[memoryview]) -> ReadyRun | None:
        if start_idx != len(self.blocks) or start_idx + len(blocks) > self.num_blocks:
            raise DataError("the daemon's events are out of order", expected=len(self.blocks), got=start_idx)
        self.blocks.extend(blocks)
        return ReadyRun(start_idx, tuple(blocks)) if blocks else None

    def take_reply(self, reply: pb.AcquireReply, view: View) -> ReadyRun | None:
        """The answer of `Acquire`: what is held, and the run that is readable now."""
        self.lease_id = reply.lease_id if reply.tiers else None  # where nothing is held there is nothing to release
        self.granted(messages.tiers_of(reply.tiers), messages.miss_of(reply.miss))
        return self.ready(0, [view(offset) for offset in reply.offsets])

    def take_await(self, event: pb.AwaitEvent, view: View) -> ReadyRun | None:
        """One event of `Await`. Raises DataError for events that make no sense."""
        kind = event.WhichOneof("event")
        if kind == "ready":
            return self.ready(event.ready.start_idx, [view(offset) for offset in event.ready.offsets])
        if kind == "ended":
            self.ended(event.ended.num_blocks, messages.miss_of(event.ended.miss))
            return None
        raise DataError("the daemon sent an event that this version does not know")


class ChunkAssembler:
    """Puts the chunks of `Get` together, block by block."""

    def __init__(self, progress: LeaseProgress) -> None:
        self._progress = progress
        self._block_bytes = 0
        self._block = bytearray()
        self._filled = 0

    def take(self, event: pb.GetEvent) -> ReadyRun | None:
        """One event of `Get`; the run of a block that is complete now. Raises DataError for chunks out of order."""
        if event.WhichOneof("event") == "header":
            self._block_bytes = event.header.block_bytes
            self._progress.granted(messages.tiers_of(event.header.tiers), messages.miss_of(event.header.miss))
            return None
        idx, data = event.chunk.block_idx, event.chunk.data
        if idx != len(self._progress.blocks) or self._filled + len(data) > self._block_bytes:
            raise DataError("a chunk is out of order", block=idx, expected=len(self._progress.blocks))
        if self._filled == 0:
            self._block = bytearray(self._block_bytes)
        self._block[self._filled : self._filled + len(data)] = data
        self._filled += len(data)
        if self._filled < self._block_bytes:
            return None
        self._filled = 0
        return self._progress.ready(idx, [memoryview(self._block).toreadonly()])

    def end(self) -> None:
        """The stream is over; blocks that did not come were lost on the way."""
        if not self._progress.is_complete:
            self._progress.ended(len(self._progress.blocks), MissReason.CHECKSUM)
