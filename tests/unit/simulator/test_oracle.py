"""What an agent framework would tell of its sessions, and what it does to the order of leaving."""

import pytest

from tests.unit.simulator.streams import trace_of
from tierkv.policies import ArcPolicy, LruPolicy
from tierkv.simulator.cache import TierCache
from tierkv.simulator.oracle import HintKind, SessionOracle, next_requests
from tierkv.simulator.replay import Run, replay
from tierkv.testing.clock import ManualClock


def played(chains, sessions, kind, capacity=10, make=LruPolicy):
    """The cache after these requests, each followed by what the framework says."""
    trace = trace_of(chains, sessions)
    cache, oracle = TierCache(make, capacity), SessionOracle(trace, kind)
    for idx, request in enumerate(trace.requests):
        cache.request(request.keys)
        oracle.after(idx, cache)
    return cache


def test_a_closed_session_leaves_first_but_for_what_others_share():
    # Keys are numbered in order of appearance: session 0 has 0 1 2, session 1 has 0 3.
    cache = played([[0, 1, 2], [0, 3], [0, 1, 2], [0, 3]], [0, 1, 0, 1], HintKind.CLOSED)
    assert list(cache.host) == [3, 2, 1, 0]
    cache = played([[0, 3], [0, 1, 2], [0, 3]], [1, 0, 1], HintKind.CLOSED)
    # 0 1 | 0 2 3: the end of the session in the middle, 2 3, stood first until the last one's end went before it.
    assert list(cache.host) == [1, 3, 2, 0]


def test_what_another_session_used_stays_though_nothing_branches_off():
    cache = played([[0, 1], [5], [0, 1], [6]], [1, None, 0, 1], HintKind.CLOSED)
    assert list(cache.host) == [3, 2, 1, 0]  # of the closed sessions only 6, key 3, was nobody else's


def test_every_chain_of_a_closed_session_is_closed():
    chains = [[9], [0, 1], [0, 2], [9]]
    cache = played(chains, [1, 0, 0, 1], HintKind.CLOSED)
    assert list(cache.host) == [0, 3, 2, 1]  # 9 is key 0, closed last; 1 is the root of both chains


def test_an_open_session_is_left_alone():
    cache = played([[0, 1], [2], [0, 1]], [0, 1, 0], HintKind.IDLE)
    assert list(cache.host) == [2, 1, 0]


@pytest.mark.parametrize(("idle_requests", "gives_way"), [(40, True), (5, False)])
def test_an_idle_time_that_the_cache_does_not_outlast_makes_way(idle_requests, gives_way):
    """A full cache of 16 gets a new block with every request: each waits about 16 requests."""
    chains = [[n] for n in range(30)] + [[100, 101]] + [[n] for n in range(200, 200 + idle_requests - 1)] + [[100, 101]]
    sessions: list[int | None] = [0 if chain == [100, 101] else None for chain in chains]
    trace = trace_of(chains, sessions)
    cache, oracle = TierCache(ArcPolicy, 16), SessionOracle(trace, HintKind.IDLE)
    for idx in range(32):
        cache.request(trace.requests[idx].keys)
        oracle.after(idx, cache)
    root, tail = trace.requests[30].keys
    assert root in cache
    assert (tail not in cache) == gives_way


def test_next_requests():
    assert next_requests([5, None, 6, 5, 6, 7]) == [3, None, 4, None, None, None]


@pytest.mark.parametrize("kind", HintKind)
def test_hints_leave_no_orphans_and_help_where_sessions_end(chat_trace, kind):
    def run(hints):
        return replay(chat_trace, Run("arc", "109", 109, None, hints), write_back=False, clock=ManualClock())

    hinted = run(kind)
    assert hinted.orphans == 0
    assert hinted.prefix_hit > run(None).prefix_hit
