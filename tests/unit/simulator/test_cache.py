"""The cache as the daemon drives it: order of events, two tiers, orphans; and a textbook twin of its simplest form."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulator.streams import requests
from tierkv.policies import ArcPolicy, LruPolicy
from tierkv.simulator.cache import Served, TierCache
from tierkv.simulator.catalogue import DAEMON_POLICIES


def lru(host, disk=None, *, write_back=False):
    return TierCache(LruPolicy, host, disk, write_back=write_back)


class TestOneTier:
    def test_a_request_hits_its_leading_run_and_leaves_its_head_most_recent(self):
        cache = lru(4)
        assert cache.request([1, 2, 3]) == Served(0, 0)
        assert cache.request([1, 2, 4]) == Served(2, 2)
        assert list(cache.host) == [3, 4, 2, 1]

    def test_a_victim_takes_what_follows_it(self):
        cache = lru(4)
        cache.request([1, 2, 3])
        cache.request([5, 6])
        assert list(cache.host) == [2, 1, 6, 5]
        cache.request([7, 8, 9])
        assert sorted(cache) == [5, 7, 8, 9]
        assert cache.chains.children(1) == ()
        assert cache.chains.children(7) == (8,)

    def test_what_does_not_fit_is_not_held(self):
        cache = lru(2)
        cache.request([1, 2, 3])
        assert sorted(cache) == [1, 2]
        assert cache.chains.children(2) == ()
        assert cache.request([1, 2, 3]).prefix_hits == 2

    def test_one_request_adds_an_eighth_of_a_full_arc(self):
        cache = TierCache(DAEMON_POLICIES["arc"], 16)
        cache.request(range(16))
        cache.request(range(100, 110))
        assert sorted(key for key in cache if key >= 100) == [100, 101]

    def test_no_block_is_no_request(self):
        cache = lru(2)
        assert cache.request([]) == Served(0, 0)
        assert list(cache) == []


class TestWriteThrough:
    def test_every_fresh_block_is_written_once_and_found_again(self):
        cache = lru(2, 10)
        cache.request([1, 2])
        assert (sorted(cache.disk), cache.disk_writes) == ([1, 2], 2)
        cache.request([3, 4])
        assert sorted(cache.host) == [3, 4]
        assert cache.request([1, 2]) == Served(2, 2, disk_hits=2)
        assert sorted(cache.host) == [1, 2]
        assert (sorted(cache.disk), cache.disk_writes) == ([1, 2, 3, 4], 4)

    def test_a_load_is_one_access_and_the_blocks_in_host_another(self):
        cache = TierCache(DAEMON_POLICIES["arc"], 4, 20)
        cache.request([1, 2, 3, 4])
        cache.request([1, 9])  # its share is one block, for which the oldest, 4, leaves
        assert sorted(cache.host) == [1, 2, 3, 9]
        before = cache.host.state().events
        assert cache.request([1, 2, 3, 4]) == Served(4, 4, disk_hits=1)
        assert cache.host.state().events == before + 2
        assert isinstance(cache.host, ArcPolicy)
        assert cache.host.snapshot().t2 == (1, 2, 3, 4)

    @pytest.mark.parametrize(("staging_blocks", "num_on_disk"), [(0, 2), (3, 5), (8, 10), (9, 10)])
    def test_what_the_cap_keeps_out_of_the_host_goes_to_disk_as_far_as_it_can_pass_through(self, staging_blocks, num_on_disk):
        cache = TierCache(DAEMON_POLICIES["arc"], 16, 200, staging_blocks=staging_blocks)
        cache.request(range(16))
        cache.request(range(100, 110))
        assert sorted(key for key in cache.host if key >= 100) == [100, 101]
        assert [key for key in range(100, 110) if key in cache.disk] == list(range(100, 100 + num_on_disk))
        assert cache.request(range(100, 110)).disk_hits == num_on_disk - 2

    def test_the_prefix_ends_where_the_host_cannot_take_more(self):
        cache = TierCache(DAEMON_POLICIES["arc"], 4, 100)
        cache.request([1, 2, 3, 4])
        cache.request([1, 2, 3, 4, 5, 6, 7])  # all its blocks are pinned: nothing goes
        assert 5 not in cache
        cache = TierCache(DAEMON_POLICIES["arc"], 4, 100, staging_blocks=6)
        cache.request([8, 9, 10, 11])
        cache.request([1, 2, 3, 4, 5, 6, 7])  # the cap: one to the host, the others to disk
        assert (1 in cache.host, 2 in cache.host, 7 in cache.disk) == (True, False, True)
        assert cache.request([1, 2, 3, 4, 5, 6, 7]) == Served(4, 4, disk_hits=3)

    def test_what_a_request_finds_is_used_on_disk_too(self):
        cache = lru(1, 3)
        for key in (1, 2, 3, 1, 4):
            cache.request([key])
        assert list(cache.disk) == [3, 1, 4]


class TestWriteBack:
    def test_blocks_are_written_when_they_leave_and_their_copy_stays_valid(self):
        cache = lru(2, 10, write_back=True)
        cache.request([1, 2])
        assert cache.disk_writes == 0
        cache.request([3, 4])
        assert (sorted(cache.host), sorted(cache.disk), cache.disk_writes) == ([3, 4], [1, 2], 2)
        assert cache.request([1, 2]) == Served(2, 2, disk_hits=2)
        assert (sorted(cache.host), sorted(cache.disk), cache.disk_writes) == ([1, 2], [1, 2, 3, 4], 4)
        cache.request([3, 4])
        assert cache.disk_writes == 4

    def test_an_ancestor_on_disk_outlives_what_is_written_below_it(self):
        cache = lru(2, 2, write_back=True)
        for chain in ([1], [5, 6], [1], [1, 2]):
            cache.request(chain)
        assert (list(cache.host), list(cache.disk)) == ([2, 1], [1, 5])
        cache.request([7, 8])  # 2 goes to disk for the first time; 1, which is there and is the oldest, must not make room for it
        assert sorted(cache.disk) == [1, 2]
        assert cache.request([1, 2]) == Served(2, 2, disk_hits=2)

    def test_what_hangs_below_a_lost_block_in_another_tier_is_lost_with_it(self):
        cache = lru(3, 1, write_back=True)
        for chain in ([1, 3], [0, 2], [1], [1, 3, 5]):
            cache.request(chain)
        assert (list(cache.host), list(cache.disk)) == ([5, 3, 1], [3])
        cache.request([0, 2, 4])  # the disk has no room for 1 beside 3, which is of no use without it
        assert (list(cache.host), list(cache.disk)) == ([4, 2, 0], [])
        assert cache.chains.children(1) == ()


def chain_parents(chains):
    return {key: parent for chain in chains for parent, key in zip([None, *chain], chain, strict=False)}


def check(cache, parents):
    """What holds after every request."""
    cache.check_integrity()
    held = set(cache)
    assert len([*cache]) == len(held)
    assert held == {*cache.host, *(cache.disk or ())}
    for key in held:
        assert parents[key] is None or parents[key] in held, f"{key} is an orphan"
        assert parents[key] is None or key in cache.chains.children(parents[key])
    linked = {child for parent in parents for child in cache.chains.children(parent)}
    assert linked <= held, "a key that nobody holds is linked"


@pytest.mark.parametrize("write_back", [False, True])
@pytest.mark.parametrize("policy", DAEMON_POLICIES)
@settings(max_examples=120, deadline=None)
@given(host=st.integers(1, 12), disk=st.none() | st.integers(1, 16), staging=st.integers(0, 4), chains=requests(num_keys=12))
def test_no_orphans_and_true_books(policy, write_back, host, disk, staging, chains):
    """After every request of a random tree, in whichever tiers; and hits are what was held before."""
    cache = TierCache(DAEMON_POLICIES[policy], host, disk, write_back=write_back, staging_blocks=staging)
    parents = chain_parents(chains)
    writes = 0
    for chain in chains:
        before, on_host, on_disk = set(cache), set(cache.host), set(cache.disk or ())
        served = cache.request(chain)
        check(cache, parents)
        num_held = next((idx for idx, key in enumerate(chain) if key not in before), len(chain))
        assert served.block_hits == served.prefix_hits <= num_held
        assert served.prefix_hits == num_held or len(on_host & set(chain)) + served.disk_hits == host
        assert served.disk_hits == sum(key not in on_host for key in chain[: served.prefix_hits])
        assert cache.disk_writes - writes >= len(set(cache.disk or ()) - on_disk)
        if disk is not None and not write_back:
            again = len(on_host - set(cache.host) - on_disk)  # the disk had let them go, and they left the host now
            assert cache.disk_writes - writes <= len(chain) - num_held + again, "only fresh blocks are written"
        writes = cache.disk_writes


class TextbookChainLru:
    """Least recent last, a request's head most recent; a victim takes its held descendants along."""

    def __init__(self, capacity, parents):
        self.capacity, self.parents, self.held = capacity, parents, []

    def is_below(self, key, ancestor):
        while key is not None and key != ancestor:
            key = self.parents[key]
        return key == ancestor

    def request(self, chain):
        hits = next((idx for idx, key in enumerate(chain) if key not in self.held), len(chain))
        fresh = chain[hits:]
        spare = [key for key in self.held if key not in chain]
        fresh = fresh[: self.capacity - len(self.held) + len(spare)]
        while len(self.held) + len(fresh) > self.capacity:
            victim = next(key for key in reversed(self.held) if key not in chain)
            self.held = [key for key in self.held if not self.is_below(key, victim)]
        used = chain[: hits + len(fresh)]
        self.held = [*used, *(key for key in self.held if key not in used)]
        return hits


@settings(max_examples=200, deadline=None)
@given(host=st.integers(1, 12), chains=requests())
def test_agrees_with_a_textbook_lru_over_chains(host, chains):
    cache, textbook = lru(host), TextbookChainLru(host, chain_parents(chains))
    for chain in chains:
        assert cache.request(chain).prefix_hits == textbook.request(chain)
        assert list(cache.host) == list(reversed(textbook.held))
