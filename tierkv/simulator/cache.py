"""One cache as the daemon drives its policies: a host tier, perhaps a disk below it, whole requests, one access to each block.

Pure books: which key is in which tier. The order of events in a request is the daemon's (`tierkv.placement`), so that a replay
makes the same decisions: load what only the disk has, touch what the host has, save what nobody has.

Invariants: a key that is held somewhere has a parent that is held somewhere (no orphans); only held keys are linked in the chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tierkv.model.chains import Chains
from tierkv.policies.base import Cause, Policy, PolicyState, Shortfall

PolicyMaker = Callable[[int, Chains[int]], Policy[int]]
"""Makes the policy of a tier from its capacity in blocks and the chains that all tiers share."""


class Served(NamedTuple):
    """What one request found, in blocks."""

    block_hits: int
    prefix_hits: int
    disk_hits: int = 0
    """Of the prefix hits: those that were on disk only."""


_NOTHING = Served(0, 0)
_HEADROOM_SHARE = 19
"""The policy's capacity in units of what it leaves free of the arena (95 % to 5 %)."""


class TierCache:
    """Holds full blocks of weight 1. A request costs O(its blocks) beside what the policies do."""

    def __init__(
        self,
        make_policy: PolicyMaker,
        host_blocks: int,
        disk_blocks: int | None = None,
        *,
        write_back: bool = False,
        staging_blocks: int | None = None,
    ) -> None:
        """host_blocks, disk_blocks — capacities, at least 1; no disk where None.

        write_back — a block goes to disk when it leaves the host (durability `volatile`), else right after its request (`interval`).
        staging_blocks — how many blocks of one request can pass through the host straight to disk; None: the daemon's headroom, a
        twentieth of its arena.
        """
        self.chains: Chains[int] = Chains()
        self.host = make_policy(host_blocks, self.chains)
        self.disk = None if disk_blocks is None else make_policy(disk_blocks, self.chains)
        self.disk_writes = 0
        """Blocks written to disk."""
        self._staging_blocks = host_blocks // _HEADROOM_SHARE if staging_blocks is None else staging_blocks
        self._is_write_back = write_back
        self._parents: dict[int, int] = {}

    def __contains__(self, key: int) -> bool:
        return key in self.host or (self.disk is not None and key in self.disk)

    def __iter__(self) -> Iterator[int]:
        """Every key that is held, once."""
        yield from self.host
        if self.disk is not None:
            yield from (key for key in self.disk if key not in self.host)

    def request(self, keys: Sequence[int]) -> Served:
        """One request for these full blocks, head first, each at most once."""
        if not keys:
            return _NOTHING
        is_mine = set(keys).__contains__  # a request pins its blocks while it runs
        num_held = self.num_held(keys)
        served = self._touch(keys[:num_held], is_mine) if num_held else _NOTHING
        if num_held < len(keys):
            self._save(keys, num_held, keys[: served.prefix_hits], is_mine)
        return served

    def num_held(self, keys: Sequence[int]) -> int:
        """How many leading keys are held, in whichever tier."""
        host, disk = self.host, self.disk
        for idx, key in enumerate(keys):
            if key not in host and (disk is None or key not in disk):
                return idx
        return len(keys)

    def state(self) -> PolicyState:
        """What the host's policy tells of itself."""
        return self.host.state()

    @property
    def tiers(self) -> tuple[Policy[int], ...]:
        return (self.host,) if self.disk is None else (self.host, self.disk)

    def check_integrity(self) -> None:
        """Raises AssertionError where a tier's books are wrong, or the chains know other keys than the tiers hold. O(n)."""
        for tier in self.tiers:
            tier.check_integrity()
        assert all(key in self for key in self._parents), "a key is linked and not held"

    def save(self, keys: Sequence[int]) -> None:
        """Full blocks, head first, of which the end was saved without having been asked for; no access to what is held."""
        num_held = self.num_held(keys)
        if num_held < len(keys):
            self._save(keys, num_held, keys[:num_held], set(keys).__contains__)

    def _touch(self, prefix: Sequence[int], is_mine: Callable[[int], bool]) -> Served:
        """The held prefix is used, as far as the host has it or can take it from disk."""
        host, disk = self.host, self.disk
        below = [] if disk is None else [idx for idx, key in enumerate(prefix) if key not in host]
        num_usable, num_loaded = len(prefix), 0
        in_host = prefix
        if below:
            wanted = [prefix[idx] for idx in below]
            admission = host.admit(wanted, [1] * len(wanted), is_mine, cause=Cause.LOAD, head=prefix[: below[0]])
            num_loaded = admission.num_admitted
            if num_loaded < len(wanted):
                num_usable = below[num_loaded]
            skipped = set(wanted)
            in_host = [key for key in prefix[:num_usable] if key not in skipped]
            self._leave_host(admission.victims, is_mine)
        if in_host:
            host.on_access(in_host)
        if disk is not None and (on_disk := [key for key in prefix[:num_usable] if key in disk]):
            disk.on_access(on_disk)
        return Served(num_usable, num_usable, num_loaded)

    def _save(self, keys: Sequence[int], num_held: int, head: Sequence[int], is_mine: Callable[[int], bool]) -> None:
        """What nobody held goes to the host as far as it may, and to disk: at once, or what only the host's cap kept out."""
        fresh = keys[num_held:]
        admission = self.host.admit(fresh, [1] * len(fresh), is_mine, cause=Cause.SAVE, head=head)
        self._leave_host(admission.victims, is_mine)
        num_stored = num_in_host = admission.num_admitted
        if self.disk is not None:
            passing = self._staging_blocks if admission.shortfall is Shortfall.CAP else 0
            num_wanted = min(len(fresh), num_in_host + passing)
            first = num_in_host if self._is_write_back else 0
            num_written = self._write(fresh[first:num_wanted], keys[: num_held + first], is_mine)
            num_stored = max(num_in_host, first + num_written)
        for idx in range(max(num_held, 1), num_held + num_stored):
            self.chains.link(keys[idx - 1], keys[idx])
            self._parents[keys[idx]] = keys[idx - 1]

    def _leave_host(self, victims: Sequence[int], is_mine: Callable[[int], bool]) -> None:
        """What left the host and is not on disk goes there, heads before their tails; what nobody holds then is forgotten."""
        if self.disk is not None:
            batch = [key for key in reversed(victims) if key not in self.disk]
            above = self._ancestors(batch)
            self._write(batch, (), lambda key: key in above or is_mine(key))
        self._forget(victims)

    def _write(self, keys: Sequence[int], head: Sequence[int], is_pinned: Callable[[int], bool]) -> int:
        """Admits keys to disk, as far as it takes them; returns how many."""
        disk = self.disk
        if disk is None or not keys:
            return 0
        host, children = self.host, self.chains.children

        def must_stay(key: int) -> bool:
            # What follows it in the host would be left behind.
            return is_pinned(key) or (key not in host and any(child in host for child in children(key)))

        on_disk = [key for key in head if key in disk]
        admission = disk.admit(keys, [1] * len(keys), must_stay, cause=Cause.LOAD, head=on_disk)
        self.disk_writes += admission.num_admitted
        self._forget(admission.victims)
        return admission.num_admitted

    def _ancestors(self, keys: Iterable[int]) -> set[int]:
        above: set[int] = set()
        for key in keys:
            parent = self._parents.get(key)
            while parent is not None and parent not in above:
                above.add(parent)
                parent = self._parents.get(parent)
        return above

    def _forget(self, keys: Sequence[int]) -> None:
        """Takes keys that have left a tier, children before parents, out of the chains where no other tier has them either.

        What still hangs below such a key in another tier could never be used: it goes too.
        """
        for key in keys:
            if key in self:
                continue
            if self.chains.children(key):
                for orphan in reversed([*self.chains.descendants(key)]):
                    self._drop(orphan)
            self._unlink(key)

    def _drop(self, key: int) -> None:
        for tier in self.tiers:
            if key in tier:
                tier.on_remove(key)
        self._unlink(key)

    def _unlink(self, key: int) -> None:
        parent = self._parents.pop(key, None)
        if parent is not None:
            self.chains.unlink(parent, key)
