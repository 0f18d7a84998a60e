"""What may leave early: the end of a chain that nobody else needs. Pure. Who acts on it: `Policy.expect`, called by placement."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from tierkv.model.chains import Chains

K = TypeVar("K", bound=Hashable)


def unshared_tail(
    chains: Chains[K], keys: Sequence[K], is_held: Callable[[K], bool], used_by_others: Callable[[K], bool]
) -> list[K]:
    """The end of a chain up to where another chain branches off, head first.

    keys — a chain, head first. It ends upwards at the first key that somebody else uses, or that has a held child outside of
    `keys`: above that, the chain belongs to more than one. Empty where the last key has a held child. Cost: O(1) a key returned.
    """
    tail: list[K] = []
    below: K | None = None
    for key in reversed(keys):
        if used_by_others(key) or any(child != below and is_held(child) for child in chains.children(key)):
            break
        tail.append(key)
        below = key
    tail.reverse()
    return tail
