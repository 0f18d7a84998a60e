"""Threads that do random things to one store and check every byte that they read."""

import abc
import contextlib
import random
import threading

from tierkv.errors import CapacityError, ConflictError

BLOCK_BYTES = 32 * 1024
CHAIN_BLOCKS = 10


def content_of(key):
    return key * (BLOCK_BYTES // len(key))


class Actor(threading.Thread, abc.ABC):
    """Random verbs on random prefixes of shared chains. failure — what ended it early."""

    def __init__(self, store, namespace_id, chains, *, seed, steps):
        super().__init__(name=f"actor-{seed}")
        self.failure = None
        self._store = store
        self._namespace_id = namespace_id
        self._chains = chains
        self._random = random.Random(seed)
        self._steps = steps

    def run(self):
        try:
            for step in range(self._steps):
                keys = self._random.choice(self._chains)[: self._random.randint(1, CHAIN_BLOCKS)]
                # Held by another thread, or deleted by one while a strict commit waited.
                with contextlib.suppress(ConflictError, CapacityError):
                    self.act(step, keys)
        except BaseException as error:  # the test's own thread must hear of it
            self.failure = error

    @abc.abstractmethod
    def act(self, step, keys):
        """One thing."""

    @staticmethod
    def check(keys, blocks, *, strict):
        """strict — all of the keys must be there, not only the leading ones."""
        for key, block in zip(keys, blocks, strict=strict):
            assert bytes(block) == content_of(key)
