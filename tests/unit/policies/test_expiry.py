"""What of a chain may leave early, and which idle times the cache does not outlast."""

from tierkv.model.chains import Chains
from tierkv.policies.expiry import unshared_tail

#   a - b - c - d - e
#            \
#             x - y
EDGES = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("c", "x"), ("x", "y")]
CHAIN = list("abcde")


def tail_of(keys, *, held="abcdexy", used=""):
    chains = Chains()
    for parent, child in EDGES:
        chains.link(parent, child)
    return unshared_tail(chains, keys, held.__contains__, used.__contains__)


def test_the_tail_ends_where_another_chain_branches_off():
    assert tail_of(CHAIN) == ["d", "e"]
    assert tail_of(list("abcxy")) == ["x", "y"]


def test_a_branch_that_is_not_held_is_none():
    assert tail_of(CHAIN, held="abcde") == CHAIN


def test_the_tail_ends_at_what_others_use():
    assert tail_of(CHAIN, held="abcde", used="b") == ["c", "d", "e"]
    assert tail_of(CHAIN, held="abcde", used="e") == []


def test_a_conversation_that_goes_on_below_keeps_everything():
    assert tail_of(list("abc")) == []
    assert tail_of(list("abcd"), held="abcde") == []
    assert tail_of(list("abcd"), held="abcd") == list("abcd")


def test_nothing_has_no_tail():
    assert tail_of([]) == []
