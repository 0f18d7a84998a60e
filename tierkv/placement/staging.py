"""What waits to be copied from a page to the host tier, and on whose account. Values; `tierkv.placement.page_mover` does it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tierkv.index.entry import BlockEntry
from tierkv.index.holds import SessionId
from tierkv.placement.page_books import Page, PageBooks


class Claim(StrEnum):
    """What a block may take of a full host tier. Whatever it says, a block that is promised to the disk gets its way there."""

    SHARE = "share"
    """Its request's share, as any save."""
    FREE = "free"
    """What is free: it was refused before, and is tried again without being asked for."""
    NEED = "need"
    """What it needs: somebody waits for it to be on disk."""


@dataclass(frozen=True, slots=True)
class StagingFor:
    """Why a block goes to the host tier; session and request_id — whose share it takes from."""

    claim: Claim
    session: SessionId | None = None
    request_id: str = ""


AGAIN = StagingFor(Claim.FREE)
NEEDED = StagingFor(Claim.NEED)


@dataclass(slots=True, eq=False)
class Staging:
    """One block to copy. The moves of the entry and of the page are raised for it."""

    entry: BlockEntry
    pool: PageBooks
    page: Page
    request: StagingFor
