"""Chains: which key follows which. A tree for each first block of a sequence; a value, not a tier's matter.

The index keeps one for everything it knows; policies read it to let a block take along what cannot be used without it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar, cast

K = TypeVar("K", bound=Hashable)


class Chains(Generic[K]):
    """Parent → children. Every method costs O(1), save those that return several keys.

    Most keys have one child: it is kept as it is, without a container of its own, which the garbage collector would visit.
    """

    __slots__ = ("_children",)

    def __init__(self) -> None:
        self._children: dict[K, K | dict[K, None]] = {}

    def link(self, parent: K, child: K) -> None:
        """`child` follows `parent`. Idempotent."""
        known = self._children.get(parent)
        if known is None:
            self._children[parent] = child
        elif type(known) is dict:
            known[child] = None
        elif known != child:
            self._children[parent] = {cast("K", known): None, child: None}

    def unlink(self, parent: K, child: K) -> None:
        """`child` does not follow `parent` any more. Idempotent."""
        known = self._children.get(parent)
        if type(known) is dict:
            known.pop(child, None)
            if len(known) == 1:
                self._children[parent] = next(iter(known))
        elif known == child:
            del self._children[parent]

    def children(self, key: K) -> tuple[K, ...]:
        """The keys that follow `key`, oldest link first."""
        known = self._children.get(key)
        if known is None:
            return ()
        return tuple(known) if type(known) is dict else (cast("K", known),)

    def descendants(self, key: K) -> Iterator[K]:
        """Everything below `key`, parents before their children."""
        stack = [*self.children(key)]
        while stack:
            found = stack.pop()
            yield found
            stack.extend(self.children(found))
