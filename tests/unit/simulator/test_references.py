"""Reference policies against textbook twins: plain lists, slow on purpose; and Belady as the bound of all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulator.streams import requests, trace_of
from tierkv.policies import ArcPolicy, LruPolicy, Rule
from tierkv.simulator.catalogue import POLICY_NAMES, is_daemon_policy, make_cache
from tierkv.simulator.references.base import BlockByBlock, PolicyAlone

STREAMS = st.lists(st.integers(0, 17), max_size=200)
CAPACITIES = st.integers(1, 12)


def pieces_of(stream, length):
    """The stream in pieces of at most so many different keys."""
    pieces = [[]]
    for key in stream:
        if len(pieces[-1]) == length or key in pieces[-1]:
            pieces.append([])
        pieces[-1].append(key)
    return pieces


class TextbookLru:
    def __init__(self, capacity, _stream):
        self.capacity, self.held = capacity, []

    def access(self, _position, key):
        is_hit = key in self.held
        if is_hit:
            self.held.remove(key)
        elif len(self.held) == self.capacity:
            self.held.pop(0)
        self.held.append(key)
        return is_hit


class TextbookS3Fifo:
    """Algorithm 1 of the paper on lists, oldest first, with the warm-up and the queue limits of the authors' simulator."""

    def __init__(self, capacity, _stream):
        self.c, self.s = capacity, max(1, capacity // 10)
        self.small, self.main, self.ghost, self.uses, self.evicted = [], [], [], {}, False

    @property
    def held(self):
        return self.small + self.main

    def access(self, _position, x):
        if x in self.small or x in self.main:
            self.uses[x] = min(self.uses[x] + 1, 3)
            return True
        while len(self.small) + len(self.main) >= self.c:
            self.evicted = True
            if len(self.main) > self.c - self.s or not self.small:
                self.evict_main()
            else:
                self.evict_small()
        self.uses[x] = 0
        if x in self.ghost:
            self.ghost.remove(x)
            self.main.append(x)
        elif len(self.small) >= self.s and not self.evicted:
            self.main.append(x)
        else:
            self.small.append(x)
        return False

    def evict_small(self):
        while self.small:
            t = self.small.pop(0)
            if self.uses[t] > 1:
                self.uses[t] = 0
                self.main.append(t)
            else:
                self.ghost = [*self.ghost, t][-(self.c * 9 // 10) :] if self.c > 1 else []
                return

    def evict_main(self):
        while self.main:
            t = self.main.pop(0)
            if self.uses[t] == 0:
                return
            self.uses[t] -= 1
            self.main.append(t)


class TextbookMin:
    """Of those held and the newcomer, the one wanted last is not held; who is never wanted again goes before all others."""

    def __init__(self, capacity, stream):
        self.capacity, self.stream, self.held = capacity, stream, []

    def access(self, position, key):
        is_hit = key in self.held
        future = self.stream[position + 1 :]
        candidates = {*self.held, key}
        wanted = [other for other in candidates if other in future]
        self.held = sorted(wanted, key=future.index)[: self.capacity]
        return is_hit


@pytest.mark.parametrize(("name", "twin"), [("lru", TextbookLru), ("s3fifo", TextbookS3Fifo), ("belady", TextbookMin)])
@settings(max_examples=150, deadline=None)
@given(capacity=CAPACITIES, stream=STREAMS, pieces=st.integers(1, 5))
def test_agrees_with_the_textbook(name, twin, capacity, stream, pieces):
    """However many accesses come at once."""
    numbers = {}
    stream = [numbers.setdefault(key, len(numbers)) for key in stream]
    trace = trace_of([[key] for key in stream])
    made = make_cache(name, trace, capacity, None, write_back=False)
    assert isinstance(made, BlockByBlock)
    textbook = twin(capacity, stream)
    position = 0
    for piece in pieces_of(stream, pieces):
        hits = [textbook.access(position + idx, key) for idx, key in enumerate(piece)]
        position += len(piece)
        assert made.cache.access(piece) == hits
        assert set(made) == set(textbook.held)
        made.check_integrity()


@settings(max_examples=150, deadline=None)
@given(capacity=CAPACITIES, chains=requests())
def test_no_policy_has_more_block_hits_than_belady(capacity, chains):
    trace = trace_of(chains)
    hits = {}
    for name in POLICY_NAMES:
        cache = make_cache(name, trace, capacity, None, write_back=False)
        served = [cache.request(request.keys) for request in trace.requests]
        hits[name] = sum(each.block_hits for each in served)
        assert sum(each.prefix_hits for each in served) <= hits[name]
    assert max(hits.values()) == hits["belady"]


@settings(max_examples=100, deadline=None)
@given(capacity=CAPACITIES, stream=STREAMS, pieces=st.integers(2, 6))
def test_hits_in_a_row_are_one_access_after_the_other(capacity, stream, pieces):
    """ARC as printed: the order within its lists is that of single accesses."""
    at_once, one_by_one = (ArcPolicy(capacity, rule=Rule.PAPER) for _ in range(2))
    for piece in pieces_of(stream, pieces):
        assert PolicyAlone(at_once).access(piece) == [hit for key in piece for hit in PolicyAlone(one_by_one).access([key])]
        assert at_once.snapshot() == one_by_one.snapshot()


def test_a_prefix_ends_at_the_first_miss():
    cache = BlockByBlock(PolicyAlone(LruPolicy(10)))
    cache.request([0, 2, 4])
    served = cache.request([0, 2, 3, 4])
    assert (served.block_hits, served.prefix_hits) == (3, 2)


def test_the_daemons_policies_are_told_apart():
    assert {name for name in POLICY_NAMES if is_daemon_policy(name)} == {"arc", "arc-size", "lru-chain"}
