"""Chains: links shown one by one, and a dict of lists that they must agree with."""

from hypothesis import given
from hypothesis import strategies as st

from tierkv.model.chains import Chains


def test_a_key_has_the_children_that_were_linked_in_that_order() -> None:
    chains: Chains[str] = Chains()
    assert chains.children("a") == ()
    chains.link("a", "b")
    assert chains.children("a") == ("b",)
    chains.link("a", "b")
    assert chains.children("a") == ("b",)
    chains.link("a", "c")
    chains.link("a", "b")
    chains.link("a", "d")
    assert chains.children("a") == ("b", "c", "d")


def test_unlinking_is_undone_step_by_step() -> None:
    chains: Chains[str] = Chains()
    for child in "bcd":
        chains.link("a", child)
    chains.unlink("a", "c")
    chains.unlink("a", "c")
    assert chains.children("a") == ("b", "d")
    chains.unlink("a", "b")
    assert chains.children("a") == ("d",)
    chains.unlink("a", "b")
    chains.unlink("x", "d")
    assert chains.children("a") == ("d",)
    chains.unlink("a", "d")
    assert chains.children("a") == ()


def test_descendants_come_after_their_parents() -> None:
    chains: Chains[int] = Chains()
    for parent, child in ((1, 2), (2, 3), (2, 4), (1, 5), (4, 6), (9, 10)):
        chains.link(parent, child)
    found = list(chains.descendants(1))
    assert sorted(found) == [2, 3, 4, 5, 6]
    assert found.index(2) < found.index(3) and found.index(2) < found.index(4) < found.index(6)
    assert list(chains.descendants(10)) == []


def test_a_long_chain_is_walked_without_recursion() -> None:
    chains: Chains[int] = Chains()
    for key in range(5000):
        chains.link(key, key + 1)
    assert list(chains.descendants(0)) == list(range(1, 5001))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(4, 9)), max_size=60))
def test_agrees_with_a_dict_of_lists(events: list[tuple[bool, int, int]]) -> None:
    chains: Chains[int] = Chains()
    expected: dict[int, list[int]] = {parent: [] for parent in range(4)}
    for is_link, parent, child in events:
        if is_link:
            chains.link(parent, child)
            if child not in expected[parent]:
                expected[parent].append(child)
        else:
            chains.unlink(parent, child)
            if child in expected[parent]:
                expected[parent].remove(child)
        assert [list(chains.children(key)) for key in range(4)] == list(expected.values())
