"""Random traffic for a policy over 32-byte keys: requests along a growing tree of chains, pins, removals, and calls out of order."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence

from tierkv.model.chains import Chains
from tierkv.model.keys import KEY_BYTES, BlockKey
from tierkv.policies.base import Cause, Policy


def key_of(number: int) -> BlockKey:
    """The key of block `number`."""
    return BlockKey(number.to_bytes(KEY_BYTES, "big"))


def weight_of(key: BlockKey, heaviest: int = 5) -> int:
    """1 to `heaviest`, by the key alone."""
    return 1 + int.from_bytes(key, "big") % heaviest


class PolicyTraffic:
    """Drives a policy as a store does, with whatever `seed` makes it do. `chains` is the policy's."""

    def __init__(self, policy: Policy[BlockKey], chains: Chains[BlockKey], seed: int) -> None:
        self.policy = policy
        self._chains = chains
        self._random = random.Random(seed)
        self._paths: list[list[BlockKey]] = []
        self._num_keys = 0

    def step(self) -> None:
        """One call, or the two of a request."""
        events = [self._request, self._remove, self._make_room, self._scatter, self._repeat]
        self._random.choices(events, weights=[12, 1, 1, 1, 2])[0]()

    def _request(self) -> None:
        path = self._path()
        num_held = self._num_held(path)
        held, rest = path[:num_held], path[num_held:]
        if held and self._random.random() < 0.9:
            self.policy.on_access(held)
        if rest:
            pinned = {*held, *self._some_pins()}
            cause = self._random.choice([Cause.SAVE, Cause.SAVE, Cause.LOAD, Cause.PREFETCH])
            spent = self._random.choice([0, 0, 3])
            weights = [weight_of(key) for key in rest]
            self.policy.admit(rest, weights, pinned.__contains__, cause=cause, head=held, spent=spent)

    def _path(self) -> list[BlockKey]:
        """An old path or the beginning of one, often with something new behind it."""
        known = self._random.choice(self._paths) if self._paths and self._random.random() < 0.85 else []
        path = known[: self._random.randint(1, len(known))] if known and self._random.random() < 0.5 else list(known)
        for _ in range(self._random.choice([0, 0, 1, 3, 9]) if path else self._random.randint(1, 9)):
            self._num_keys += 1
            key = key_of(self._num_keys)
            if path:
                self._chains.link(path[-1], key)
            path.append(key)
        self._paths = [*self._paths[-30:], path]
        return path

    def _num_held(self, path: Sequence[BlockKey]) -> int:
        return next((idx for idx, key in enumerate(path) if key not in self.policy), len(path))

    def _some_pins(self) -> set[BlockKey]:
        resident = list(self.policy)
        return set(self._random.sample(resident, min(len(resident), self._random.choice([0, 0, 2, 20]))))

    def _suffix(self) -> list[BlockKey]:
        """A resident entry and all that follows it, heads before their tails."""
        resident = list(self.policy)
        if not resident:
            return []
        key = self._random.choice(resident)
        return [key, *(below for below in self._chains.descendants(key) if below in self.policy)]

    def _remove(self) -> None:
        for key in reversed(self._suffix()):
            self.policy.on_remove(key)

    def _make_room(self) -> None:
        pins = self._some_pins()
        self.policy.make_room(self._random.randint(1, 6), pins.__contains__)

    def _scatter(self) -> None:
        """An access to entries that are no chain."""
        resident = list(self.policy)
        self.policy.on_access(self._random.sample(resident, self._random.randint(0, len(resident))))

    def _repeat(self) -> None:
        """The same access again and again, at times with another one between."""
        paths = [self._random.choice(self._paths) for _ in range(2)] if self._paths else []
        held = [path[: self._num_held(path)] for path in paths]
        for _ in range(self._random.randint(1, 4)):
            for keys in held[: self._random.randint(1, 2)]:
                if keys:
                    self.policy.on_access(tuple(keys))


class MemoryFiles:
    """The files of a policy's state in memory (`tierkv.policy_state.files.StateFiles`), on a medium that may fail.

    room_bytes — what may still be written; a write beyond it is cut there and fails. kills_before_log — the next snapshot is
    put in place, and then everything ends.
    """

    def __init__(self, snapshot: bytes | None = None, log: bytes | None = None) -> None:
        self.snapshot = snapshot
        self.log = log
        self.room_bytes = 1 << 40
        self.kills_before_log = False
        self.num_appends = 0
        self.is_open = False

    def read_snapshot(self) -> bytes | None:
        return self.snapshot

    def read_log(self) -> bytes | None:
        return self.log

    def replace_snapshot(self, pieces: Sequence[bytes]) -> None:
        content = b"".join(pieces)
        if len(content) > self.room_bytes:
            raise OSError(errno.ENOSPC, "no space left")
        self.snapshot = content
        if self.kills_before_log:
            raise KeyboardInterrupt

    def begin_log(self, header: bytes) -> None:
        self.log, self.is_open = b"", True
        self.append(header)

    def append(self, record: bytes) -> None:
        assert self.is_open
        assert self.log is not None
        self.log += record[: self.room_bytes]
        if len(record) > self.room_bytes:
            raise OSError(errno.ENOSPC, "no space left")
        self.num_appends += 1

    def close(self) -> None:
        self.is_open = False
