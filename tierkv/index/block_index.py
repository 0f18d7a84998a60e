"""The block index: key → entry, the longest held prefix, and what used to be here.

Leaves residency decisions to placement. Invariants: an entry is in the index exactly while it is held or reserved; so is its parent (no
orphans: what is held can be used).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from tierkv.index.entry import BlockEntry
from tierkv.model.chains import Chains
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.lifecycle import BlockState
from tierkv.model.outcomes import MissReason


class BlockIndex:
    """All entries of a store, and a bounded memory of why blocks are gone."""

    def __init__(self, *, history_limit: int) -> None:
        self._entries: dict[BlockKey, BlockEntry] = {}
        self.chains: Chains[BlockKey] = Chains()
        """Which of the entries follow which; read by the policies."""
        self._history: OrderedDict[BlockKey, MissReason] = OrderedDict()
        self._history_limit = history_limit
        self._generation = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[BlockEntry]:
        return iter(self._entries.values())

    def get(self, key: BlockKey) -> BlockEntry | None:
        return self._entries.get(key)

    def is_current(self, entry: BlockEntry) -> bool:
        """Whether `entry` is still the one its key leads to."""
        return self._entries.get(entry.key) is entry

    def add(self, entry: BlockEntry) -> None:
        self._entries[entry.key] = entry
        if entry.parent is not None:
            self.chains.link(entry.parent, entry.key)
        self._history.pop(entry.key, None)

    def replace(self, entry: BlockEntry, successor: BlockEntry) -> None:
        """`successor` is what the key of `entry` leads to from now on."""
        assert self._entries[entry.key] is entry
        self._entries[entry.key] = successor

    def remove(self, entry: BlockEntry, reason: MissReason | None) -> None:
        """Takes an entry out; reason — what a later miss on it will say (None: nothing is remembered)."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
            if entry.parent is not None:
                self.chains.unlink(entry.parent, entry.key)
        if reason is not None:
            self._history[entry.key] = reason
            if len(self._history) > self._history_limit:
                self._history.popitem(last=False)

    def parent_of(self, key: BlockKey) -> BlockKey | None:
        """The key before `key`; None at the head of a sequence, and for a key without an entry."""
        entry = self._entries.get(key)
        return None if entry is None else entry.parent

    def ancestors(self, key: BlockKey | None) -> list[BlockEntry]:
        """The entry of `key` and those of everything before it, head first, as far as they are known."""
        found: list[BlockEntry] = []
        entry = None if key is None else self._entries.get(key)
        while entry is not None:
            found.append(entry)
            entry = None if entry.parent is None else self._entries.get(entry.parent)
        found.reverse()
        return found

    def descendants(self, key: BlockKey) -> list[BlockEntry]:
        """The entries of everything that follows `key`, parents before their children."""
        return [self._entries[below] for below in self.chains.descendants(key)]

    def with_descendants(self, entries: Iterable[BlockEntry]) -> list[BlockEntry]:
        """The entries and those of everything that follows them, each once, in no order. O(1) an entry, whoever follows whom."""
        found = dict.fromkeys(entries)
        stack = list(found)
        while stack:
            for key in self.chains.children(stack.pop().key):
                below = self._entries[key]
                if below not in found:
                    found[below] = None
                    stack.append(below)
        return list(found)

    def match(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> list[BlockEntry]:
        """Entries of the longest held prefix. Cost: one dictionary look-up a block."""
        found: list[BlockEntry] = []
        entries = self._entries
        for key in keys:
            entry = entries.get(key)
            if entry is None or not entry.is_held or entry.namespace_id != namespace_id:
                break
            found.append(entry)
        return found

    def miss_reason(self, key: BlockKey) -> MissReason:
        """Why `key` cannot be served."""
        return self._history.get(key, MissReason.NEVER_SEEN)

    def remembered_keys(self) -> list[BlockKey]:
        """Every key that is in the index or was not long ago. A copy, O(n)."""
        return [*self._entries, *self._history]

    def next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def saw_generation(self, generation: int) -> None:
        """Recovery: later generations must be larger than any that was seen."""
        self._generation = max(self._generation, generation)

    def check_integrity(self) -> None:
        for key, entry in self._entries.items():
            assert key == entry.key
            assert entry.is_held or entry.state is BlockState.RESERVED, (entry.state, key.hex())
            assert (entry.extent is None) == (entry.state is BlockState.FREE), (entry.state, entry.extent)
            assert entry.pins >= 0
            assert entry.moves >= 0
            assert entry.state is not BlockState.LOST
            is_orphan = entry.parent is not None and entry.parent not in self._entries
            assert not is_orphan or entry.state is BlockState.RESERVED, f"an orphan: {key.hex()}"
            if entry.state is BlockState.LEASED:
                assert entry.pins > 0
            if entry.state is BlockState.READY:
                assert entry.pins == 0
