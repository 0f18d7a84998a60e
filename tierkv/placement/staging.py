"""What waits to be copied from a page to the host tier, and on whose account. Values; `tierkv.placement.page_mover` does it."""

from __future__ import annotations

from dataclasses import dataclass

from tierkv.index.entry import BlockEntry
from tierkv.index.holds import SessionId
from tierkv.placement.page_books import Page, PageBooks


@dataclass(frozen=True, slots=True)
class StagingFor:
    """Why a block goes to the host tier: its request, whose share of a full tier it then takes from; None for a retry, which takes only
    what is free there.
    """

    session: SessionId | None = None
    request_id: str = ""
    is_retry: bool = False


RETRY = StagingFor(is_retry=True)


@dataclass(slots=True, eq=False)
class Staging:
    """One block to copy. The moves of the entry and of the page are raised for it."""

    entry: BlockEntry
    pool: PageBooks
    page: Page
    request: StagingFor
