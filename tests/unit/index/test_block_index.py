"""The block index: what follows what, without walking anything twice."""

from tierkv.index.block_index import BlockIndex
from tierkv.index.entry import BlockEntry
from tierkv.model.chains import Chains
from tierkv.model.keys import BlockKey, NamespaceId

NAMESPACE = NamespaceId(bytes(32))


def key_of(number):
    return BlockKey(number.to_bytes(32, "big"))


def index_of(parents):
    """parents — number of a block → number of the one before it, or None."""
    index = BlockIndex(history_limit=4)
    for number, parent in parents.items():
        index.add(BlockEntry(key_of(number), NAMESPACE, None if parent is None else key_of(parent), 4096))
    return index


def numbers(entries):
    return sorted(int.from_bytes(entry.key, "big") for entry in entries)


def test_with_descendants_names_each_once():
    index = index_of({1: None, 2: 1, 3: 2, 4: 2, 5: 4, 6: None})
    wanted = [index.get(key_of(number)) for number in (4, 2, 5)]
    assert numbers(index.with_descendants(wanted)) == [2, 3, 4, 5]
    assert index.with_descendants([]) == []


def test_a_whole_chain_with_its_descendants_costs_one_look_a_block(monkeypatch):
    index = index_of({number: number - 1 or None for number in range(1, 501)})
    looked_at, children = [], Chains.children

    def look(chains, key):
        looked_at.append(key)
        return children(chains, key)

    monkeypatch.setattr(Chains, "children", look)
    assert numbers(index.with_descendants(list(index))) == list(range(1, 501))
    assert len(looked_at) == 500
