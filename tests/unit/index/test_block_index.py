"""The index: what follows what."""

import pytest

from tierkv.index.block_index import BlockIndex
from tierkv.index.entry import BlockEntry
from tierkv.model.chains import Chains
from tierkv.model.keys import BlockKey, NamespaceId

NUM_BLOCKS = 64


def entry_of(number, parent=None):
    parent_key = None if parent is None else BlockKey(parent.to_bytes(32, "big"))
    return BlockEntry(BlockKey(number.to_bytes(32, "big")), NamespaceId(bytes(32)), parent_key, 4096)


@pytest.fixture
def index():
    return BlockIndex(history_limit=16)


@pytest.mark.parametrize("step", [1, -1])
def test_what_follows_a_chain_is_found_by_one_look_at_each_block(index, monkeypatch, step):
    """A look at everything below each block of a chain would be quadratic: seconds under the lock for a long one."""
    chain = [entry_of(number, number - 1 if number > 1 else None) for number in range(1, NUM_BLOCKS + 1)]
    for entry in chain:
        index.add(entry)
    looks = []
    children = Chains.children

    def looked_at(self, key):
        looks.append(key)
        return children(self, key)

    monkeypatch.setattr(Chains, "children", looked_at)
    found = index.with_followers(chain[: NUM_BLOCKS // 2][::step])
    assert set(found) == set(chain)
    assert len(found) == len(looks) == NUM_BLOCKS


def test_what_follows_in_another_chain_is_found_too(index):
    entries = [entry_of(1), entry_of(2, 1), entry_of(3, 1), entry_of(4, 3), entry_of(5)]
    for entry in entries:
        index.add(entry)
    assert set(index.with_followers([entries[2], entries[0]])) == set(entries[:4])
