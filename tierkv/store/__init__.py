"""The store: its verbs (`verbs`) over its care (`care`) over what both stand on (`base`)."""

from tierkv.answers import (
    Acquisition,
    CommitResult,
    DamagedFrame,
    Explanation,
    PendingRun,
    ReserveResult,
    RunResult,
    VerifyReport,
)
from tierkv.index.holds import SessionId
from tierkv.store.verbs import TieredStore

__all__ = [
    "Acquisition",
    "CommitResult",
    "DamagedFrame",
    "Explanation",
    "PendingRun",
    "ReserveResult",
    "RunResult",
    "SessionId",
    "TieredStore",
    "VerifyReport",
]
