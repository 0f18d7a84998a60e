"""What a reference policy is, and how a request reaches it: block by block, head to tail, one access each, partial blocks too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tierkv.policies.base import Cause, Policy, PolicyState
from tierkv.simulator.cache import Served


class BlockCache(Protocol):
    """A cache that sees one access after the other; several at once are the same as one by one."""

    def __contains__(self, key: int) -> bool: ...

    def __iter__(self) -> Iterator[int]: ...

    def access(self, keys: Sequence[int]) -> list[bool]:
        """One access to each of these different keys, in this order; True for a hit. A miss may take the key in."""
        ...

    def state(self) -> PolicyState | None:
        """What one of TierKV's own policies tells of itself; None of the others."""
        ...

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        ...


class BlockByBlock:
    """Feeds requests to a BlockCache."""

    def __init__(self, cache: BlockCache) -> None:
        self.cache = cache
        self.disk_writes = 0
        """References have no disk."""

    def __contains__(self, key: int) -> bool:
        return key in self.cache

    def __iter__(self) -> Iterator[int]:
        return iter(self.cache)

    def request(self, keys: Sequence[int]) -> Served:
        """One request for these blocks, head first."""
        hits = self.cache.access(keys)
        prefix_hits = len(hits) if all(hits) else hits.index(False)
        return Served(sum(hits), prefix_hits)

    def save(self, keys: Sequence[int]) -> None:
        """Blocks that a request saved without asking for them: to these policies an access like any other."""
        self.cache.access(keys)

    def state(self) -> PolicyState | None:
        return self.cache.state()

    def check_integrity(self) -> None:
        self.cache.check_integrity()


class PolicyAlone:
    """One of TierKV's own policies as a BlockCache: the published algorithm, without what requests and chains add."""

    def __init__(self, policy: Policy[int]) -> None:
        """policy — made without chains, for blocks of weight 1."""
        self._policy = policy

    def __contains__(self, key: int) -> bool:
        return key in self._policy

    def __iter__(self) -> Iterator[int]:
        return iter(self._policy)

    def access(self, keys: Sequence[int]) -> list[bool]:
        hits: list[bool] = []
        run: list[int] = []  # hits in a row
        for key in keys:
            is_hit = key in self._policy
            hits.append(is_hit)
            if is_hit:
                run.append(key)
                continue
            self._touch(run)
            run = []
            self._policy.admit((key,), (1,), _is_never_pinned, cause=Cause.SAVE)
        self._touch(run)
        return hits

    def _touch(self, run: list[int]) -> None:
        if run:  # an event touches its keys from the last to the first; turned round, that is one access after the other
            self._policy.on_access(run[::-1])

    def state(self) -> PolicyState:
        return self._policy.state()

    def check_integrity(self) -> None:
        self._policy.check_integrity()


def _is_never_pinned(_key: int) -> bool:
    return False
