"""What is kept in spite of the order of eviction, and within which bounds."""

import random

import pytest

from tierkv.placement.retention import Retention


@pytest.fixture
def retention():
    kept = Retention(16)  # pins 8, high priority 4
    yield kept
    kept.check_integrity()


def weighed(keys, weight=1):
    return [(key, weight) for key in keys]


def kept(retention, keys="abcdefghijklmnop"):
    return "".join(key for key in keys if retention.is_retained(key))


def test_a_pin_ends_at_its_moment(retention):
    assert retention.pin(weighed("ab"), 9.5) == 2
    retention.expire(9.9)
    assert kept(retention) == "ab"
    retention.expire(10.0)
    assert kept(retention) == ""


def test_a_longer_pin_stays_and_a_shorter_one_changes_nothing(retention):
    retention.pin(weighed("abc"), 10)
    retention.pin(weighed("ab"), 20)
    retention.pin(weighed("abc"), 5)
    retention.expire(10)
    assert kept(retention) == "ab"
    retention.expire(20)
    assert kept(retention) == ""


def test_pins_hold_half_and_leave_out_the_end(retention):
    assert retention.pin(weighed("abcdefghij"), 10) == 8
    assert kept(retention) == "abcdefgh"
    assert retention.pin(weighed("k"), 10) == 0
    assert retention.pin(weighed("ab"), 20) == 2, "what is pinned already needs no room"
    retention.unpin("gh")
    assert retention.pin(weighed("k", 3), 10) == 0
    assert retention.pin(weighed("k", 2), 10) == 1


def test_high_priority_holds_a_quarter_and_the_oldest_give_way(retention):
    assert retention.protect(weighed("abc")) == 3
    assert retention.protect(weighed("xy")) == 2
    assert kept(retention, "abcxy") == "abxy", "the tail of the older chain"
    assert retention.protect(weighed("ab")) == 2
    assert retention.protect(weighed("m")) == 1
    assert kept(retention, "abcxym") == "abxm", "the tail of the chain that is older now"


def test_a_chain_beyond_the_share_is_protected_as_far_as_it_fits(retention):
    assert retention.protect(weighed("abcdef")) == 4
    assert kept(retention) == "abcd"
    assert retention.protect(weighed("z", 5)) == 0
    assert kept(retention) == "abcd"


def test_what_is_gone_is_forgotten_and_its_room_is_free(retention):
    retention.pin(weighed("ab", 4), 10)
    retention.protect(weighed("ac", 2))
    for key in "ab":
        retention.forget(key)
    retention.forget("unknown")
    assert kept(retention) == "c"
    assert retention.pin(weighed("ef", 4), 10) == 2
    retention.unprotect("cc")
    assert kept(retention) == "ef"


@pytest.mark.parametrize("seed", range(10))
def test_bounds_hold_and_chains_stay_closed(seed):
    """Chains are texts; the key of a block is the text up to it. Whoever is kept has only ancestors that are kept."""
    rng, retention = random.Random(seed), Retention(40)
    for now in range(300):
        text = "".join(rng.choice("ab") for _ in range(rng.randint(1, 8)))
        chain = [(text[: idx + 1], len(text[: idx + 1]) % 3 + 1) for idx in range(len(text))]
        if rng.random() < 0.5:
            retention.pin(chain, now + rng.randint(0, 20))
        else:
            retention.protect(chain)
        retention.expire(now)
        retention.check_integrity()
        for keys in (retention._pins, retention._protected):
            assert all(key[:-1] in keys for key in keys if len(key) > 1)
