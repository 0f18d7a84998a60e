"""Images: all that a policy knows, copied out and put back, and the events by which a second policy follows a first.

An image and the outcomes of what came after it give the same policy again: same lists, same order, same moments (`docs/format.md`,
"Policy state"). Who is pinned is not known then, so that victims are told, not chosen.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from tierkv.policies.base import Admission, Cause, Policy

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PolicyImage(Generic[K]):
    """All that a policy knows. What it does not have is empty.

    name — as in `PolicyState`; now — its time in events; t1, t2 — resident keys, least recent first; ghosts — who left longest ago
    first; in_b2 — which of them are in B2; keys, weights — of all of them, in no order; touched_at — of resident keys, the moment of
    the last access. Lists and dicts are the holder's own.
    """

    name: str
    capacity: int
    now: int = 0
    p: float = 0.0
    w: float = 0.0
    hits_b1: int = 0
    hits_b2: int = 0
    t1: list[K] = field(default_factory=list)
    t2: list[K] = field(default_factory=list)
    ghosts: list[K] = field(default_factory=list)
    in_b2: set[K] = field(default_factory=set)
    keys: list[K] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    touched_at: dict[K, int] = field(default_factory=dict)

    def weight_of(self) -> dict[K, int]:
        """The weight of each key. O(n), which is why it is not done where the copy is made."""
        return dict(zip(self.keys, self.weights, strict=True))

    def is_same(self, other: PolicyImage[K]) -> bool:
        """Whether two policies know the same. O(n)."""
        one, two = (replace(image, keys=[], weights=[]) for image in (self, other))
        return one == two and self.weight_of() == other.weight_of()


class RestorablePolicy(Policy[K], Protocol[K]):
    """A policy that can be copied out, put back and led through what another one decided.

    The caller guarantees that told outcomes are those of a policy in the same state; whatever else is told, the policy may raise
    KeyError and is to be restored anew.
    """

    def export_image(self) -> PolicyImage[K]:
        """A copy of everything. O(n), copies of whole lists only."""
        ...

    def restore_image(self, image: PolicyImage[K]) -> None:
        """Becomes the policy that `image` was taken of, its capacity included. Raises DataError for one of another kind, and changes nothing."""
        ...

    def replay_admit(
        self,
        keys: Sequence[K],
        weights: Sequence[int],
        outcome: Admission[K],
        *,
        cause: Cause,
        head: Sequence[K] = (),
    ) -> None:
        """`admit`, with the outcome told."""
        ...

    def let_go(self, keys: Sequence[K]) -> None:
        """These resident entries leave, whoever decided it, as victims do."""
        ...

    def pass_time(self, num_events: int) -> None:
        """So many events went by of which nothing else remains."""
        ...

    def resize(self, capacity: int) -> tuple[K, ...]:
        """The capacity is another one from now on; returns who had to leave for it. Nobody may be pinned."""
        ...
