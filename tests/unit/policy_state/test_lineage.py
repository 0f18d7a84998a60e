"""Lists named by their ends: a list is a chain exactly if the ends give it back."""

import random

import pytest

from tierkv.errors import DataError
from tierkv.model.keys import BlockKey
from tierkv.policy_state.lineage import Lineage, Run
from tierkv.testing.policy_traffic import key_of

K = [key_of(number) for number in range(200)]


def runs_of(lineage, resident):
    return sorted((run.keys, run.parent) for run in lineage.settle(set(resident)))


@pytest.fixture
def tree():
    """1 2 3 4, then 5 6 behind 2, then 7 behind 6."""
    lineage = Lineage()
    lineage.admit(K[1:5], None)
    lineage.admit(K[5:7], K[2])
    lineage.admit([K[7]], K[6])
    return lineage


@pytest.mark.parametrize("keys", [[1], [1, 2, 3, 4], [2, 3], [1, 2, 5, 6], [2, 5, 6, 7], [1, 2, 5, 6, 7], [7]])
def test_what_lies_on_one_path_is_a_chain(tree, keys):
    listed = [K[number] for number in keys]
    assert tree.is_chain(listed)
    assert tree.is_chain(tuple(listed))
    assert tree.chain(listed[-1], len(listed)) == listed


@pytest.mark.parametrize("keys", [[1, 3], [2, 1], [1, 2, 6], [3, 5, 6], [4, 5], [9], [1, 2, 3, 9], [9, 1], [1, 1, 2], [6, 6, 7]])
def test_what_does_not_is_none(tree, keys):
    assert not tree.is_chain([K[number] for number in keys])


def test_a_chain_longer_than_what_is_known_is_refused(tree):
    with pytest.raises(DataError, match="goes back further"):
        tree.chain(K[7], 6)
    with pytest.raises(DataError, match="goes back further"):
        tree.chain(K[9], 1)


def test_keys_that_left_are_in_no_chain_and_come_back_in_another(tree):
    tree.forget([K[7], K[6]])
    assert not tree.is_chain([K[6]])
    assert len(tree) == 5
    tree.admit([K[6]], K[4])
    assert tree.is_chain([K[3], K[4], K[6]])
    assert not tree.is_chain([K[5], K[6]])


def test_settling_cuts_runs_at_their_holes_and_forgets_parents_that_left(tree):
    tree.forget([K[2]])
    assert runs_of(tree, {K[1], K[3], K[4], K[5], K[6], K[7]}) == [
        ([K[1]], None),
        ([K[3], K[4]], None),
        ([K[5], K[6]], None),
        ([K[7]], K[6]),
    ]


def test_settling_follows_what_is_resident(tree):
    assert runs_of(tree, {K[1], K[2], K[9]}) == [([K[1], K[2]], None), ([K[9]], None)]
    assert len(tree) == 3


def test_a_lineage_read_back_is_the_same():
    """Random admissions, departures and relinked lists: what a settled lineage names, one made of its runs names too."""
    chance = random.Random(3)
    lineage = Lineage()
    resident: list[BlockKey] = []
    for _ in range(300):
        keys = chance.sample([key for key in K if key not in resident], chance.randint(1, 6)) if len(resident) < 150 else []
        lineage.admit(keys, chance.choice(resident) if resident and chance.random() < 0.7 else None)
        resident += keys
        gone = chance.sample(resident, chance.randint(0, min(5, len(resident))))
        lineage.forget(gone)
        resident = [key for key in resident if key not in gone]
        if len(resident) > 3 and chance.random() < 0.2:
            lineage.admit(chance.sample(resident, 3), None)
        if chance.random() < 0.1:
            copy = Lineage(Run(list(run.keys), run.parent) for run in lineage.settle(set(resident)))
            assert len(copy) == len(lineage) == len(resident)
            for tail in resident:
                assert lengths(copy, tail) == lengths(lineage, tail)


def lengths(lineage, tail):
    """All chains that end in a key."""
    found = []
    for num_keys in range(1, 50):
        try:
            found.append(lineage.chain(tail, num_keys))
        except DataError:
            return found
    return found


def test_a_run_does_not_keep_what_left_at_its_end():
    lineage = Lineage()
    lineage.admit(K[1:100], None)
    lineage.forget(reversed(K[2:100]))
    (run,) = lineage.settle({K[1]})
    assert run.keys == [K[1]]


def test_a_long_list_is_compared_at_its_ends_and_in_between():
    lineage = Lineage()
    lineage.admit(K[:100], None)
    lineage.admit(K[100:200], K[99])
    assert lineage.is_chain(K)
    assert lineage.is_chain([BlockKey(bytes(bytearray(key))) for key in K])
    assert not lineage.is_chain([*K[1:100], K[0], *K[100:]])
    assert not lineage.is_chain([*K[:10], *K[11:]])
    assert not lineage.is_chain([K[1], *K[1:]])
