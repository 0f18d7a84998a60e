"""Lineage: names long lists of keys by their ends, so that an access to a thousand blocks is one short record.

A run is the keys of one admission, each taken to follow the one before it, the first one to follow the end of the head. Whether
that is true of the blocks does not matter: writer and reader hold the same runs, and a list is named by its ends only where
going back through the runs yields exactly that list.

Invariants: every resident key is in one run at one place; a run loses keys at its end only, what is left inside is a hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tierkv.errors import DataError
from tierkv.model.keys import BlockKey

_PROBES = 8
"""Of a longer piece of a list not every key is looked at, but so many, evenly spread. Both lists are parts of paths from heads to
tails and agree in both ends and in length; only a request that is no path could differ in between, at the price of its own order."""


@dataclass(slots=True, eq=False)
class Run:
    """Keys one after the other, and the key before the first one. has_holes — a key inside has left or is in a later run."""

    keys: list[BlockKey]
    parent: BlockKey | None
    has_holes: bool = False


def _is_same_piece(one: Sequence[BlockKey], one_start: int, other: Sequence[BlockKey], other_start: int, num_keys: int) -> bool:
    step = 1 + num_keys // _PROBES
    return list(one[one_start : one_start + num_keys : step]) == other[other_start : other_start + num_keys : step]


class Lineage:
    """The runs of one policy's resident keys. Cost: O(1) a key admitted or forgotten; a list is compared run by run."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._run_of: dict[BlockKey, Run] = {}
        self._idx_of: dict[BlockKey, int] = {}
        for run in runs:
            self._place(run)

    def __len__(self) -> int:
        return len(self._run_of)

    def admit(self, keys: Sequence[BlockKey], parent: BlockKey | None) -> None:
        """These keys are a run from now on, whatever they were before."""
        if keys:
            self._leave(keys)
            self._place(Run(list(keys), parent))

    def forget(self, keys: Iterable[BlockKey]) -> None:
        """These keys are resident no longer. Keys that are in no run are passed over."""
        self._leave(keys)

    def is_chain(self, keys: Sequence[BlockKey]) -> bool:
        """Whether `chain(keys[-1], len(keys))` is this list. keys — not empty. Cost: see `_PROBES`."""
        end = len(keys)
        key = keys[-1]
        while True:
            run = self._run_of.get(key)
            if run is None:
                return False
            stop = self._idx_of[key] + 1
            num_keys = min(end, stop)
            if not _is_same_piece(keys, end - num_keys, run.keys, stop - num_keys, num_keys):
                return False
            end -= num_keys
            if end == 0:
                return True
            if run.parent is None or keys[end - 1] != run.parent:
                return False
            key = run.parent

    def chain(self, tail: BlockKey, num_keys: int) -> list[BlockKey]:
        """The list that ends in `tail`. Raises DataError where the runs do not go back that far."""
        parts: list[list[BlockKey]] = []
        key: BlockKey | None = tail
        while num_keys:
            run = None if key is None else self._run_of.get(key)
            if key is None or run is None:
                raise DataError("a list goes back further than what is known", tail=tail, missing=num_keys)
            stop = self._idx_of[key] + 1
            start = max(0, stop - num_keys)
            parts.append(run.keys[start:stop])
            num_keys -= stop - start
            key = run.parent
        return [key for part in reversed(parts) for key in part]

    def settle(self, resident: AbstractSet[BlockKey]) -> list[Run]:
        """Makes the runs those of exactly these keys, without holes; returns them, parents of other runs where they are resident.

        What is returned, read back, is this lineage. Cost: O(1) a run and a key in a run with holes.
        """
        self._leave([*(self._run_of.keys() - resident)])
        runs = list(dict.fromkeys(self._run_of.values()))
        for run in runs:
            if run.has_holes:
                self._split(run)
        for key in sorted(resident - self._run_of.keys()):
            self._place(Run([key], None))
        runs = list(dict.fromkeys(self._run_of.values()))
        for run in runs:
            if run.parent not in self._run_of:
                run.parent = None
        return runs

    def _place(self, run: Run) -> None:
        self._run_of.update(dict.fromkeys(run.keys, run))
        self._idx_of.update(zip(run.keys, range(len(run.keys)), strict=True))

    def _leave(self, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            run = self._run_of.pop(key, None)
            if run is None:
                continue
            del self._idx_of[key]
            run.has_holes = True
            while run.keys and self._run_of.get(run.keys[-1]) is not run:
                run.keys.pop()

    def _split(self, run: Run) -> None:
        """The pieces between the holes become runs; only the first one still follows what the run followed."""
        parent = run.parent
        piece: list[BlockKey] = []
        for key in run.keys:
            if self._run_of.get(key) is run:
                piece.append(key)
                continue
            if piece:
                self._place(Run(piece, parent))
            piece, parent = [], None
        self._place(Run(piece, parent))
