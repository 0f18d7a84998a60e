"""The policies by name: how each is made for a capacity, and how requests reach it.

`arc`, `arc-size` and `lru-chain` are driven as the daemon drives them (`TierCache`: whole requests, full blocks only); the others
are references that take one block after the other (`BlockByBlock`).
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tierkv.errors import InvalidRequestError
from tierkv.policies import ArcPolicy, LruPolicy, PolicyState, Rule
from tierkv.simulator.cache import PolicyMaker, Served, TierCache
from tierkv.simulator.references.base import BlockByBlock, BlockCache, PolicyAlone
from tierkv.simulator.references.belady import Belady, next_uses
from tierkv.simulator.references.s3fifo import S3Fifo
from tierkv.simulator.trace import Trace


def _belady(blocks: int, trace: Trace) -> Belady:
    return Belady(blocks, *_future(trace))


@functools.lru_cache(maxsize=1)
def _future(trace: Trace) -> tuple[list[int], list[int]]:
    """The stream of a trace's accesses and when each comes again; kept, because several capacities ask for it in turn."""
    stream = [key for request in trace.requests for key in request.keys]
    return stream, next_uses(stream)


DAEMON_POLICIES: dict[str, PolicyMaker] = {
    "arc": lambda blocks, chains: ArcPolicy(blocks, chains, rule=Rule.AGE),
    "arc-size": lambda blocks, chains: ArcPolicy(blocks, chains, rule=Rule.SIZE),
    "lru-chain": LruPolicy,
}

_REFERENCES: dict[str, Callable[[int, Trace], BlockCache]] = {
    "arc-paper": lambda blocks, _trace: PolicyAlone(ArcPolicy(blocks, rule=Rule.PAPER)),
    "lru": lambda blocks, _trace: PolicyAlone(LruPolicy(blocks)),
    "s3fifo": lambda blocks, _trace: S3Fifo(blocks),
    "belady": _belady,
}

BOUND = "belady"
"""The policy that the others are compared with."""

POLICY_NAMES = (*DAEMON_POLICIES, *_REFERENCES)


class Cache(Protocol):
    """What a replay drives: requests in, hits out."""

    disk_writes: int

    def __contains__(self, key: int) -> bool: ...

    def __iter__(self) -> Iterator[int]: ...

    def request(self, keys: Sequence[int]) -> Served: ...

    def save(self, keys: Sequence[int]) -> None: ...

    def state(self) -> PolicyState | None: ...

    def check_integrity(self) -> None: ...


def check_policy(name: str) -> str:
    """Returns a known policy's name; InvalidRequestError with the known ones, and the nearest, otherwise."""
    if name in POLICY_NAMES:
        return name
    nearest = difflib.get_close_matches(name, POLICY_NAMES, n=1)
    meant = {"did_you_mean": nearest[0]} if nearest else {}
    raise InvalidRequestError("no policy has this name", policy=name, **meant, known=", ".join(POLICY_NAMES))


def is_daemon_policy(name: str) -> bool:
    """True for a policy that takes whole requests, full blocks only."""
    return name in DAEMON_POLICIES


def make_cache(name: str, trace: Trace, host_blocks: int, disk_blocks: int | None, *, write_back: bool) -> Cache:
    """A cold cache under a known policy. References have one tier, whatever `disk_blocks` says."""
    maker = DAEMON_POLICIES.get(name)
    if maker is None:
        return BlockByBlock(_REFERENCES[name](host_blocks, trace))
    return TierCache(maker, host_blocks, disk_blocks, write_back=write_back)
