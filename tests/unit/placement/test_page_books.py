"""The books of a pool's pages: a few pages, the whole state shown after each step."""

import pytest

from tierkv.errors import InvalidRequestError
from tierkv.index.block_index import BlockIndex
from tierkv.index.entry import BlockEntry
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.placement.page_books import PageBooks
from tierkv.policies import LruPolicy
from tierkv.tiers.device import SharedMemory

PAGE_BYTES = 4096
NUM_PAGES = 4
KEYS = [BlockKey(bytes([idx]) * 32) for idx in range(8)]
A, B, C = KEYS[:3]
ONE, TWO = b"one", b"two"


@pytest.fixture
def index():
    return BlockIndex(history_limit=4)


@pytest.fixture
def memory():
    opened = SharedMemory(NUM_PAGES * PAGE_BYTES + 100)
    yield opened
    opened.close()


@pytest.fixture
def pages(index, memory):
    books = PageBooks(memory, index=index, make_policy=lambda capacity: LruPolicy(capacity, index.chains))
    books.cut(PAGE_BYTES)
    yield books
    books.check_integrity()


def enter(index, key, parent=None):
    index.add(BlockEntry(key, NamespaceId(bytes(32)), parent, PAGE_BYTES))


def state(pages, *, of=KEYS):
    """Free pages; then each other page with its block, holds, jobs, and whether it is ready."""
    pages.check_integrity()
    used = {}
    for number in range(pages.num_pages):
        page = pages.page(number)
        if not page.is_free:
            name = None if page.key is None else page.key[0]
            used[number] = (name, page.num_holds, page.moves, page.is_ready)
    return pages.num_free, used


def test_a_pool_is_cut_into_whole_pages(pages):
    assert (pages.num_pages, pages.num_free) == (4, 4)
    assert pages.policy.capacity == NUM_PAGES * PAGE_BYTES


def test_the_life_of_a_page(index, pages):
    (page,) = pages.take_free(ONE, 1)
    assert state(pages) == (3, {0: (None, 1, 0, False)})
    enter(index, A)
    pages.name([page], [A], (), is_ready=True)
    assert state(pages) == (3, {0: (0, 1, 0, True)})
    assert (index.get(A).num_device_copies, index.get(A).page_holds) == (1, 1)
    pages.hold(TWO, page)
    assert state(pages) == (3, {0: (0, 2, 0, True)})
    pages.release(ONE, 0)
    assert (pages.num_idle, state(pages)) == (0, (3, {0: (0, 1, 0, True)}))
    pages.release(TWO, 0)
    assert (pages.num_idle, state(pages)) == (1, (3, {0: (0, 0, 0, True)}))
    assert index.get(A).page_holds == 0
    pages.forget(page)
    assert state(pages) == (4, {})
    assert index.get(A).num_device_copies == 0
    assert len(pages.policy) == 0


def test_a_page_is_free_only_without_name_hold_and_job(index, pages):
    (page,) = pages.take_free(ONE, 1)
    enter(index, A)
    pages.name([page], [A], (), is_ready=False)
    pages.begin_move(page)
    assert state(pages) == (3, {0: (0, 1, 1, False)})
    pages.release(ONE, 0)
    assert state(pages) == (3, {0: (0, 0, 1, False)})
    pages.forget(page)
    assert state(pages) == (3, {0: (None, 0, 1, False)})
    pages.end_move(page)
    assert state(pages) == (4, {})


def test_a_hold_ends_with_its_own_release_only(pages):
    pages.take_free(ONE, 2)
    pages.release(TWO, 0)
    pages.release(ONE, 3)
    assert state(pages) == (2, {0: (None, 1, 0, False), 1: (None, 1, 0, False)})
    pages.hold(ONE, pages.page(0))
    pages.release(ONE, 0)
    assert state(pages) == (2, {0: (None, 1, 0, False), 1: (None, 1, 0, False)})
    pages.release(ONE, 0)
    pages.release(ONE, 0)
    assert state(pages) == (3, {1: (None, 1, 0, False)})


def test_the_end_of_a_session_ends_its_holds_and_no_others(index, pages):
    first, second = pages.take_free(ONE, 2)
    pages.hold(ONE, first)
    pages.hold(TWO, second)
    pages.end_session(ONE)
    assert state(pages) == (3, {1: (None, 1, 0, False)})
    assert pages.holds_of(ONE) == {}
    pages.end_session(ONE)
    assert pages.holds_of(TWO) == {1: 1}


def test_a_held_page_outlives_its_block(index, pages):
    (page,) = pages.take_free(ONE, 1)
    enter(index, A)
    pages.name([page], [A], (), is_ready=True)
    pages.forget(page)
    index.remove(index.get(A), None)
    assert state(pages) == (3, {0: (None, 1, 0, False)})
    pages.release(ONE, 0)
    assert state(pages) == (4, {})


def test_a_page_that_leaves_is_no_victim_and_can_be_kept(index, pages):
    taken = pages.take_free(ONE, 2)
    enter(index, A)
    enter(index, B, A)
    pages.name(taken, [A, B], (), is_ready=True)
    pages.end_session(ONE)
    assert (pages.num_idle, list(pages.policy)) == (2, [B, A])
    gone = pages.policy.make_room(PAGE_BYTES, lambda key: not pages.page_of(key).is_idle)
    assert gone == (B,)
    leaving = pages.page_of(B)
    pages.leave(leaving)
    pages.begin_move(leaving)
    assert (pages.num_idle, state(pages)) == (1, (2, {0: (0, 0, 0, True), 1: (1, 0, 1, True)}))
    pages.keep(leaving)
    pages.end_move(leaving)
    assert (pages.num_idle, state(pages)) == (2, (2, {0: (0, 0, 0, True), 1: (1, 0, 0, True)}))
    assert set(pages.policy) == {A, B}


def test_a_whole_pool_is_named_at_once_whatever_a_request_may_add(index, pages):
    taken = pages.take_free(ONE, 9)
    assert [page.number for page in taken] == [0, 1, 2, 3]
    for idx, key in enumerate(KEYS[:4]):
        enter(index, key, KEYS[idx - 1] if idx else None)
    pages.name(taken, KEYS[:4], (), is_ready=True)
    assert state(pages) == (0, {number: (number, 1, 0, True) for number in range(4)})
    assert pages.policy.used == pages.policy.capacity


def test_pages_are_cut_anew_when_all_are_free(pages):
    pages.cut(2 * PAGE_BYTES)
    assert (pages.num_pages, pages.num_free, pages.policy.capacity) == (2, 2, 4 * PAGE_BYTES)
    with pytest.raises(InvalidRequestError, match="more memory"):
        pages.cut(5 * PAGE_BYTES)
    (page,) = pages.take_free(ONE, 1)
    with pytest.raises(AssertionError):
        pages.cut(PAGE_BYTES)
    pages.release(ONE, page.number)


def test_a_page_without_memory_behind_it_is_given_to_nobody(pages, memory, monkeypatch):
    monkeypatch.setattr(memory, "back", lambda offset, length: offset < 2 * PAGE_BYTES)
    assert [page.number for page in pages.take_free(ONE, 4)] == [0, 1]
    assert state(pages) == (2, {0: (None, 1, 0, False), 1: (None, 1, 0, False)})
    pages.end_session(ONE)
