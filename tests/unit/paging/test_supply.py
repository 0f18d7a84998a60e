"""Pages between the sequences of an engine and its store."""

import threading

import pytest

from tests.unit.engine.engine_rig import BLOCK_TOKENS, IDENTITY, LAYOUT, SlowCourier
from tests.unit.engine.fake_daemon import FakeDaemon
from tierkv.errors import DataError
from tierkv.model.hints import Hints
from tierkv.model.keys import chain_keys
from tierkv.paging.supply import RETRY_S, PageSupply

NUM_PAGES = 12


@pytest.fixture
def store():
    return FakeDaemon(NUM_PAGES * LAYOUT.block_bytes)


@pytest.fixture
def supply(store):
    """With two pages in stock, over a store that answers when `carry` is called."""
    namespace = store.register(IDENTITY, LAYOUT)
    pool = store.open_pool(namespace.namespace_id, "cpu")
    supply = PageSupply(store, namespace.namespace_id, pool, reserve_pages=2)
    supply._courier = SlowCourier(store, namespace.namespace_id, fence=lambda: store.calls.append("fence"), notify=None)
    return supply


def carry(supply, now_s=0.0):
    supply.flush()
    supply._courier._carry()
    supply.poll(now_s)


def keys_of(supply, count):
    return chain_keys(supply.namespace_id, range(count * BLOCK_TOKENS), block_tokens=BLOCK_TOKENS)


def test_a_stock_is_filled_ahead_and_taking_calls_nobody(supply, store):
    carry(supply)
    assert supply.num_stocked == 4
    store.calls.clear()
    assert len(supply.take(2)) == 2 and supply.num_stocked == 2
    assert store.calls == []
    supply.check_integrity(supply._owners)


def test_what_is_not_at_hand_comes_with_the_next_answer(supply):
    assert supply.take(5) is None
    assert not supply.is_short
    carry(supply)
    assert len(supply.take(5)) == 5


def test_a_store_without_pages_is_asked_again_after_a_while_or_a_release(supply, store):
    others = store.inner.reserve_pages(NUM_PAGES - 3)
    assert supply.take(5) is None
    carry(supply)
    assert supply.take(5) is None and supply.is_short
    store.calls.clear()
    carry(supply, RETRY_S / 2)
    assert store.calls == []
    mine = supply.take(3)
    assert supply.take(5) is None
    store.inner.release_pages(others)
    carry(supply, 2 * RETRY_S)
    supply.take(5)
    carry(supply, 4 * RETRY_S)
    assert len(supply.take(5)) == 5
    supply.release(mine)
    assert not supply.is_short


def test_a_page_that_was_never_named_goes_back_to_the_stock_and_a_named_one_to_the_store(supply, store):
    carry(supply)
    first, second = supply.take(2)
    supply.commit(keys_of(supply, 1), [first], None)
    supply.release([first, second])
    assert second in supply._stock and first not in supply._stock
    carry(supply)
    assert store.inner.num_held == supply.num_stocked
    store.inner.check_integrity()


def test_a_shared_page_stays_until_its_last_owner_goes(supply, store):
    carry(supply)
    (page,) = supply.take(1)
    supply.commit(keys_of(supply, 1), [page], None)
    supply.share([page])
    supply.release([page])
    carry(supply)
    supply.check_integrity([page])
    held = store.inner.num_held
    supply.release([page])
    carry(supply)
    assert store.inner.num_held == held - 1


def test_two_fetches_of_a_block_hold_it_twice(supply, store):
    carry(supply)
    pages = supply.take(2)
    keys = keys_of(supply, 2)
    supply.commit(keys, pages, None)
    supply.release(pages)
    one, two = supply.fetch(keys), supply.fetch(keys)
    carry(supply)
    assert supply.collect(one)[0] == supply.collect(two)[0] == pages
    supply.check_integrity(pages * 2)
    supply.release(pages)
    carry(supply)
    supply.check_integrity(pages)
    supply.release(pages)
    carry(supply)
    supply.check_integrity([])
    assert store.inner.num_held == supply.num_stocked


def test_a_fetch_that_nobody_wants_any_more_gives_its_pages_back(supply, store):
    carry(supply)
    pages = supply.take(2)
    supply.commit(keys_of(supply, 2), pages, None)
    supply.release(pages)
    fetch = supply.fetch(keys_of(supply, 2))
    supply.drop(fetch)
    carry(supply)
    carry(supply)
    assert store.inner.num_held == supply.num_stocked
    supply.check_integrity([])


def test_a_lease_that_ends_early_gives_back_what_did_not_come(supply, store):
    carry(supply)
    pages = supply.take(2)
    supply.commit(keys_of(supply, 2), pages, None)
    supply.release(pages)
    store.is_pending = True
    fetch = supply.fetch(keys_of(supply, 2))
    carry(supply)
    assert not fetch.is_settled
    store.leases[0].settle(1)
    assert fetch.is_settled
    assert supply.collect(fetch)[0] == pages[:1]
    supply.check_integrity(pages[:1])


def test_commits_come_before_releases_and_after_the_fence_one_call_a_request(supply, store):
    carry(supply)
    first, second = supply.take(2)
    keys = keys_of(supply, 2)
    store.calls.clear()
    hints = Hints(request_id="one")
    supply.commit(keys[:1], [first], None, hints=hints)
    supply.commit(keys[1:], [second], keys[0], hints=hints)
    supply.release([first, second])
    carry(supply)
    assert store.calls[:3] == ["fence", "commit_pages", "release_pages"]
    assert store.inner.acquire_pages(supply.namespace_id, keys).pages == (first, second)


def test_a_store_that_goes_away_is_lost_and_called_no_more(supply, store):
    carry(supply)
    assert supply.lost is None
    fetch = supply.fetch(keys_of(supply, 1))
    store.go()
    carry(supply)
    assert supply.lost is not None
    assert fetch.is_settled and supply.collect(fetch) == ([], ())
    store.calls.clear()
    supply.commit(keys_of(supply, 1), supply.take(1), None)
    carry(supply)
    assert store.calls == []


def test_a_connection_that_ended_is_noticed_without_a_call(supply, store):
    store.pool_is_alive = False
    assert supply.lost is not None


def test_a_call_that_fails_otherwise_costs_a_hit_and_no_more(supply, store, monkeypatch, caplog):
    def refuse(*_args, **_options):
        raise DataError("a block that lies")

    monkeypatch.setattr(store, "acquire_pages", refuse)
    fetch = supply.fetch(keys_of(supply, 1))
    carry(supply)
    assert fetch.is_settled and supply.collect(fetch) == ([], ())
    assert supply.lost is None
    assert "a block that lies" in caplog.text


def test_closing_gives_everything_back(supply, store):
    carry(supply)
    pages = supply.take(3)
    supply.commit(keys_of(supply, 1), pages[:1], None)
    supply.fetch(keys_of(supply, 1))
    supply.close()
    assert store.inner.num_held == 0


def test_a_thread_carries_what_was_asked_for(store):
    namespace = store.register(IDENTITY, LAYOUT)
    pool = store.open_pool(namespace.namespace_id, "cpu")
    answered = threading.Event()
    supply = PageSupply(store, namespace.namespace_id, pool, reserve_pages=2, notify=answered.set)
    supply.start()
    assert answered.wait(10)
    supply.poll(0.0)
    assert len(supply.take(4) or ()) == 4
    supply.close()
    assert store.inner.num_held == 0


def test_pages_that_are_named_already_are_not_named_again(supply, store):
    carry(supply)
    first, second, third = supply.take(3)
    keys = keys_of(supply, 3)
    supply.commit(keys[:1], [first], None)
    supply.share([first])
    # Two sequences that share the first page name all of theirs, in one batch; a page may stand in a call once.
    supply.commit(keys[:2], [first, second], None)
    supply.commit(keys, [first, second, third], None)
    carry(supply)
    assert store.inner.acquire_pages(supply.namespace_id, keys).pages == (first, second, third)
