"""The life of a block in the host tier, as one transition table. Only this file decides what may follow what.

    FREE ─reserve→ RESERVED ─commit→ READY ⇄ LEASED          (a client wrote it)
    FREE ─promote→ FILLING ─verified→ READY                   (a mover read it, from disk or from a page)
    READY ─evict→ EVICTING ─evicted→ FREE                     (written down, then dropped)
    EVICTING ─touch→ READY                                    (a hit cancels the demotion)
    FILLING, READY, LEASED, EVICTING ─lose→ LOST ─forget→ FREE  (damaged, or deleted while somebody still looks at the bytes)

A block is readable in READY and LEASED only. An extent belongs to a client in RESERVED, to a mover in FILLING, and to whoever
still looks at it in LOST; a LOST block is in no index any more.
"""

from __future__ import annotations

from enum import StrEnum

from tierkv.errors import InternalError


class BlockState(StrEnum):
    FREE = "free"
    RESERVED = "reserved"
    FILLING = "filling"
    READY = "ready"
    LEASED = "leased"
    EVICTING = "evicting"
    LOST = "lost"


class BlockEvent(StrEnum):
    RESERVE = "reserve"
    COMMIT = "commit"
    ABORT = "abort"
    PROMOTE = "promote"
    VERIFIED = "verified"
    PIN = "pin"
    UNPIN = "unpin"
    EVICT = "evict"
    EVICTED = "evicted"
    TOUCH = "touch"
    LOSE = "lose"
    FORGET = "forget"


READABLE = frozenset({BlockState.READY, BlockState.LEASED})

TRANSITIONS: dict[tuple[BlockState, BlockEvent], BlockState] = {
    (BlockState.FREE, BlockEvent.RESERVE): BlockState.RESERVED,
    (BlockState.FREE, BlockEvent.PROMOTE): BlockState.FILLING,
    (BlockState.RESERVED, BlockEvent.COMMIT): BlockState.READY,
    (BlockState.RESERVED, BlockEvent.ABORT): BlockState.FREE,
    (BlockState.FILLING, BlockEvent.VERIFIED): BlockState.READY,
    (BlockState.FILLING, BlockEvent.ABORT): BlockState.FREE,
    (BlockState.FILLING, BlockEvent.LOSE): BlockState.LOST,
    (BlockState.READY, BlockEvent.PIN): BlockState.LEASED,
    (BlockState.LEASED, BlockEvent.UNPIN): BlockState.READY,
    (BlockState.READY, BlockEvent.EVICT): BlockState.EVICTING,
    (BlockState.READY, BlockEvent.LOSE): BlockState.LOST,
    (BlockState.LEASED, BlockEvent.LOSE): BlockState.LOST,
    (BlockState.EVICTING, BlockEvent.EVICTED): BlockState.FREE,
    (BlockState.EVICTING, BlockEvent.TOUCH): BlockState.READY,
    (BlockState.EVICTING, BlockEvent.LOSE): BlockState.LOST,
    (BlockState.LOST, BlockEvent.FORGET): BlockState.FREE,
}


def advance(state: BlockState, event: BlockEvent) -> BlockState:
    """The state that follows. Raises InternalError for a pair that is not in the table: it is our bug, never the caller's."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise InternalError("a block cannot take this step", state=state, event=event)
    return following
