"""Runs `ArcPolicy` through a file of ARC test vectors: `python -m tierkv.testing.arc_vectors FILE [--json]`.

Exit code 0: every hit, every victim with the ghost list it goes to, and every state were reproduced; 1: they were not, and the
first difference is printed; 2: the file is missing or malformed. The form of the file is described in `tests/data/arc_vectors.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from tierkv.errors import InvalidRequestError
from tierkv.policies.arc import ArcPolicy
from tierkv.policies.arc_books import ArcSnapshot, Rule
from tierkv.policies.base import Cause

TOLERANCE_P = 1e-6
CAPACITY_LIMIT = 1 << 20

Key: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class ArcState:
    """The state expected after access `i`: keys from most to least recent, and p."""

    i: int
    t1: tuple[Key, ...]
    t2: tuple[Key, ...]
    b1: tuple[Key, ...]
    b2: tuple[Key, ...]
    p: float

    def matches(self, snapshot: ArcSnapshot[Key]) -> bool:
        same_lists = (self.t1, self.t2, self.b1, self.b2) == (snapshot.t1, snapshot.t2, snapshot.b1, snapshot.b2)
        return same_lists and abs(self.p - snapshot.p) <= TOLERANCE_P


@dataclass(frozen=True, slots=True)
class ArcVector:
    """One trace and what ARC must do with it. victims: (access number, key, "B1", "B2" or "none")."""

    name: str
    capacity: int
    accesses: tuple[Key, ...]
    hits: str
    victims: tuple[tuple[int, Key, str], ...]
    states: tuple[ArcState, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the policy and a vector part; access_idx is None where the vector speaks of no access that exists."""

    vector: str
    access_idx: int | None
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = "past its end" if self.access_idx is None else f"access {self.access_idx}"
        return f"vector '{self.vector}', {where}: {self.what} should be {self.expected}, is {self.found}"


def load_vectors(path: Path) -> list[ArcVector]:
    """Reads a vector file. Raises InvalidRequestError, naming the file and the fault, where it is missing or malformed."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError("cannot read the vector file", path=path, error=error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError("the vector file is not JSON", path=path, error=error) from error
    try:
        vectors = [_parse_vector(item) for item in document["vectors"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError("the vector file is malformed", path=path, error=repr(error)) from error
    if not vectors:
        raise InvalidRequestError("the vector file holds no vectors", path=path)
    return vectors


def first_difference(vector: ArcVector) -> Difference | None:
    """Runs a fresh policy through one vector; None where it reproduces everything."""
    past_end = _first_past_end(vector)
    if past_end is not None:
        return past_end
    policy: ArcPolicy[Key] = ArcPolicy(vector.capacity, rule=Rule.PAPER)
    for access_idx, key in enumerate(vector.accesses):
        hit, victims = _access(policy, key)
        snapshot = policy.snapshot()
        expected_hit = vector.hits[access_idx]
        expected_victims = [(victim, where) for i, victim, where in vector.victims if i == access_idx]
        found_victims = [(victim, _place(victim, snapshot)) for victim in victims]
        if hit != expected_hit:
            return Difference(vector.name, access_idx, "hit", expected_hit, hit)
        if found_victims != expected_victims:
            return Difference(vector.name, access_idx, "victims", str(expected_victims), str(found_victims))
        for state in vector.states:
            if state.i == access_idx and not state.matches(snapshot):
                return Difference(vector.name, access_idx, "state", str(state), str(snapshot))
    return None


def _access(policy: ArcPolicy[Key], key: Key) -> tuple[str, tuple[Key, ...]]:
    if key in policy:
        policy.on_access((key,))
        return "1", ()
    return "0", policy.admit((key,), (1,), lambda _: False, cause=Cause.SAVE).victims


def _place(victim: Key, snapshot: ArcSnapshot[Key]) -> str:
    return "B1" if victim in snapshot.b1 else "B2" if victim in snapshot.b2 else "none"


def _first_past_end(vector: ArcVector) -> Difference | None:
    num_accesses = len(vector.accesses)
    if len(vector.hits) != num_accesses:
        return Difference(vector.name, None, "number of hits and misses", str(len(vector.hits)), str(num_accesses))
    numbers = [victim[0] for victim in vector.victims] + [state.i for state in vector.states]
    outside = [number for number in numbers if not 0 <= number < num_accesses]
    if outside:
        return Difference(vector.name, None, "number of accesses", f"more than {outside[0]}", str(num_accesses))
    return None


def _parse_vector(item: dict[str, object]) -> ArcVector:
    return ArcVector(
        name=_text(item["name"]),
        capacity=_integer(item["capacity"], 1, CAPACITY_LIMIT),
        accesses=_keys(item["accesses"]),
        hits=_text(item["hits"]),
        victims=tuple(_parse_victim(victim) for victim in _items(item["victims"])),
        states=tuple(_parse_state(state) for state in _items(item["states"])),
    )


def _parse_victim(item: object) -> tuple[int, Key, str]:
    number, key, where = _items(item)
    return _integer(number), _key(key), _text(where)


def _parse_state(item: object) -> ArcState:
    if not isinstance(item, dict):
        raise TypeError(f"a state is an object, not {item!r}")
    if isinstance(item["p"], bool) or not isinstance(item["p"], int | float):
        raise TypeError(f"p is a number, not {item['p']!r}")
    return ArcState(
        i=_integer(item["i"]),
        t1=_keys(item["T1"]),
        t2=_keys(item["T2"]),
        b1=_keys(item["B1"]),
        b2=_keys(item["B2"]),
        p=float(item["p"]),
    )


def _items(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, not {value!r}")
    return value


def _keys(value: object) -> tuple[Key, ...]:
    return tuple(_key(item) for item in _items(value))


def _key(value: object) -> Key:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"a key is a whole number or a string, not {value!r}")
    return value


def _integer(value: object, smallest: int | None = None, largest: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected a whole number, not {value!r}")
    if (smallest is not None and value < smallest) or (largest is not None and value > largest):
        raise ValueError(f"{value} does not lie between {smallest} and {largest}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {value!r}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (argparse itself exits with 2 for a wrong call)."""
    parser = argparse.ArgumentParser(prog="python -m tierkv.testing.arc_vectors", description="checks ARC against test vectors")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        vectors = load_vectors(options.file)
    except InvalidRequestError as error:
        print(error, file=sys.stderr)
        return 2
    difference = next((found for found in map(first_difference, vectors) if found is not None), None)
    accesses = sum(len(vector.accesses) for vector in vectors)
    if options.json:
        shown = None if difference is None else asdict(difference)
        print(json.dumps({"vectors": len(vectors), "accesses": accesses, "difference": shown}))
    else:
        print(f"{len(vectors)} vectors, {accesses} accesses: all reproduced" if difference is None else difference)
    return 0 if difference is None else 1


if __name__ == "__main__":
    sys.exit(main())
