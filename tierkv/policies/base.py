"""What every eviction policy is: keys, weights and events in, victims out. No I/O, no clock, no threads.

A policy orders the resident entries of one tier and decides who enters and who leaves. It is driven under the store's lock, one
event for all blocks of a request. Its time is the number of events: ages are told in requests.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Cause(StrEnum):
    """Why entries enter a tier."""

    SAVE = "save"
    """A request computed them. That is its one access to each; what it may add to a full tier is bounded."""
    LOAD = "load"
    """A request found them one tier down. That is its one access to each."""
    PREFETCH = "prefetch"
    """They were asked for ahead of need, or survived a restart: no access, nothing is learnt from it."""


class Shortfall(StrEnum):
    """Why not every entry of a request was admitted."""

    CAP = "cap"
    """The tier is full and the request has added its share; the rest has become ghosts, as if it had been here and gone. Also an
    entry of a request's own that is heavier than the tier, which becomes no ghost."""
    PINNED = "pinned"
    """Nothing unpinned is left that could make room, or nothing ever could."""


@dataclass(frozen=True, slots=True)
class Admission(Generic[K]):
    """The leading `num_admitted` entries are resident; `victims` have left for them, every tail before its head."""

    num_admitted: int
    victims: tuple[K, ...] = ()
    shortfall: Shortfall | None = None


@dataclass(frozen=True, slots=True)
class Survivor(Generic[K]):
    """An entry that is there when a policy is put back: what it weighs, whom it follows, and whether a lower tier has it too."""

    key: K
    weight: int
    parent: K | None
    is_below: bool = False


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy tells of itself, for metrics and explanations. Weights are those of its lists; what it has not is zero."""

    name: str
    t1_weight: int = 0
    t2_weight: int = 0
    b1_keys: int = 0
    b2_keys: int = 0
    ghost_hits_b1: int = 0
    ghost_hits_b2: int = 0
    p: float = 0.0
    w: float = 0.0
    events: int = 0
    """Its time: the number of accesses and admissions so far."""
    waiting_weight: int = 0
    """Entries that are expected at a known time, or never."""


class Policy(Protocol[K]):
    """An eviction policy over weighted entries that form chains.

    The caller guarantees:
    1. `admit` is called for keys that are not resident, each at most once, heads before their tails.
    2. `on_access`, `on_remove` and `expect` are called for resident keys only, each at most once, `on_access` head first.
    3. Weights are positive and do not change while an entry is resident.
    4. The ancestors of who is being admitted are pinned. Those of who is pinned are too, or the policy finds out at the cost of a walk.
    5. A sequence that was passed in is not changed afterwards: what follows the policy may keep it instead of a copy.

    The implementation must:
    1. Admit the longest leading run that fits and is allowed. Victims were resident and not pinned; when the call returns they
       have left, the admitted ones are resident, and the resident weight is at most `capacity`.
    2. Let nobody leave when nothing is admitted (an entry heavier than `capacity`, too much is pinned, a share used up), and adapt
       to nobody who stays outside.
    3. Skip pinned entries without changing their rank.
    4. Let an entry leave only together with all entries that follow it and are resident through it (`chains`), or not at all.
    5. Forget a removed key wholly: it does not become a ghost.
    6. Keep `check_integrity` silent after every event.
    """

    capacity: int
    """The largest resident weight."""

    @property
    def used(self) -> int:
        """The resident weight."""
        ...

    def __contains__(self, key: K) -> bool: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[K]:
        """Resident keys, next victim first as far as the policy can tell, tails before their heads. O(n)."""
        ...

    def on_access(self, keys: Sequence[K]) -> None:
        """One request used these resident entries: one access to each, and its head ends most recent."""
        ...

    def admit(
        self,
        keys: Sequence[K],
        weights: Sequence[int],
        is_pinned: Callable[[K], bool],
        *,
        cause: Cause,
        head: Sequence[K] = (),
        spent: int = 0,
    ) -> Admission[K]:
        """Makes room for one request's entries and takes them in.

        head — resident entries that the request has before them: no access, they only stay more recent than what follows them.
        spent — the weight that the request has added before.
        """
        ...

    def make_room(self, weight: int, is_pinned: Callable[[K], bool]) -> tuple[K, ...]:
        """Lets entries leave until at least `weight` more is free than now; nobody, where that cannot be reached."""
        ...

    def on_remove(self, key: K) -> None:
        """A resident entry is gone for a reason of its own (deleted, damaged, aborted)."""
        ...

    def expect(self, keys: Sequence[K], in_events: int | None) -> None:
        """These entries are wanted again after so many events (None: never), as far as anybody can tell; no access.

        Among entries that are all expected at one time the last of `keys` leaves first.
        """
        ...

    def state(self) -> PolicyState:
        """A summary. O(1)."""
        ...

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        ...
