"""The client's page verbs against a daemon whose store says what a test wants: answers that do not come, or make no sense.

What real stores make of the verbs: `integration/test_pages.py`.
"""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from tests.unit.tierkvd.daemon_rig import IDENTITY, KEYS, LAYOUT, NAMESPACE, TIMEOUT_S
from tests.unit.tierkvd.fake_pages import MEMORY_BYTES, PAGE_BYTES
from tests.unit.tierkvd.test_servicer import eventually
from tierkv.answers import PageAcquisition, PageCommit, PendingRun, RunResult
from tierkv.client import Client
from tierkv.client.address import LocalAddress, RemoteAddress
from tierkv.client.verbs import Registration
from tierkv.errors import ClosedError, ConflictError, DataError, InvalidRequestError, UnavailableError
from tierkv.mapping import ArenaMap
from tierkv.model.layout import Layout
from tierkv.model.outcomes import MissReason, TierName
from tierkv.pages import PageOutcome, PageRun
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import SESSION_METADATA

NUM_PAGES = MEMORY_BYTES // PAGE_BYTES


@pytest.fixture
async def client(rig, pages):
    """Attached, with a registered namespace; its verbs block, so they run in threads."""
    attached = Client(LocalAddress(rig.folder.path), timeout_s=TIMEOUT_S)
    await asyncio.to_thread(attached.register, IDENTITY, LAYOUT)
    yield attached
    await asyncio.to_thread(attached.close)


@pytest.fixture
async def pool(client):
    return await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu")


async def test_a_pool_is_the_daemon_s_memory(client, pages, pool):
    assert (pool.device, pool.page_bytes, pool.num_pages, len(pool.buffer)) == ("cpu", PAGE_BYTES, NUM_PAGES, MEMORY_BYTES)
    ours = ArenaMap(pages.memory, MEMORY_BYTES)
    pool.buffer[PAGE_BYTES : PAGE_BYTES + 4] = b"here"
    assert bytes(ours.view(PAGE_BYTES, 4)) == b"here"
    assert client.pool_is_alive
    ours.close()


async def test_a_pool_without_a_descriptor_has_a_handle_and_no_buffer(client):
    found = await asyncio.to_thread(client.open_pool, NAMESPACE, "cuda:0")
    assert (found.buffer, found.ipc_handle) == (None, b"handle")


async def test_without_a_pool_every_verb_says_what_to_do(client):
    for verb in (
        lambda: client.reserve_pages(1),
        lambda: client.commit_pages(NAMESPACE, []),
        lambda: client.acquire_pages(NAMESPACE, KEYS),
    ):
        with pytest.raises(InvalidRequestError, match="open_pool"):
            verb()
    client.release_pages([1])
    client.close_pool()
    assert not client.pool_is_alive


async def test_pages_smaller_than_a_block_are_refused(client, pages):
    pages.page_bytes = PAGE_BYTES // 2
    with pytest.raises(DataError, match="smaller than a block"):
        await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu")
    await eventually(lambda: len(pages.ended) == 1)


async def test_a_client_on_another_machine_opens_no_pool():
    remote = Client(RemoteAddress("127.0.0.1:1", None, None))
    remote._attachment.known[NAMESPACE] = Registration(IDENTITY, LAYOUT, None)

    class Link:
        address = remote._attachment._address
        is_alive = True

        def close(self):
            pass

    remote._attachment._link = Link()
    with pytest.raises(InvalidRequestError, match="on this machine"):
        remote.open_pool(NAMESPACE, "cpu")
    remote.close()


async def test_outcomes_come_back_run_by_run(client, pages, pool):
    pages.commit = PageCommit([(PageOutcome.COMMITTED, PageOutcome.PRESENT), (), (PageOutcome.REFUSED,)], None)
    runs = [PageRun(KEYS[:2], [5, 6]), PageRun([], []), PageRun([KEYS[3]], [9], parent=KEYS[2])]
    assert await asyncio.to_thread(client.commit_pages, NAMESPACE, runs) == pages.commit.outcomes
    assert pages.committed[0][1] == runs
    with pytest.raises(DataError):
        await asyncio.to_thread(client.commit_pages, NAMESPACE, runs[:1])


async def test_a_hit_on_the_device_is_one_call_and_starts_nothing(client, pages, pool):
    pages.acquisition = PageAcquisition((3, 4), (TierName.DEVICE,) * 2, (), MissReason.EVICTED)
    calls = client.counters["calls"]
    lease = await asyncio.to_thread(client.acquire_pages, NAMESPACE, KEYS[:3])
    assert client.counters["calls"] == calls + 1
    assert (lease.pages, lease.num_ready, lease.is_settled, lease.miss) == ((3, 4), 2, True, MissReason.EVICTED)
    assert not client._listening
    assert client.counters["misses_evicted"] == 1


async def test_what_is_on_its_way_becomes_ready_by_itself(client, pages, pool):
    runs = (PendingRun(1, 1, Future()), PendingRun(2, 2, Future()))
    pages.acquisition = PageAcquisition((3, 4, 5, 6), (TierName.HOST,) * 4, runs, None)
    lease = await asyncio.to_thread(client.acquire_pages, NAMESPACE, KEYS[:4])
    assert (lease.num_ready, lease.num_blocks, lease.is_settled) == (1, 4, False)
    runs[0].done.set_result(RunResult(1, None))
    await eventually(lambda: lease.num_ready == 2)
    runs[1].done.set_result(RunResult(1, MissReason.CHECKSUM))
    assert await asyncio.to_thread(lease.wait) == 3
    assert (lease.num_ready, lease.miss, lease.pages) == (3, MissReason.CHECKSUM, (3, 4, 5, 6))
    await eventually(lambda: not client._listening)


async def test_a_wait_ends_with_its_time_and_the_pool_with_what_arrives(client, pages, pool):
    pages.acquisition = PageAcquisition((3, 4), (TierName.HOST,) * 2, (PendingRun(0, 2, Future()),), None)
    lease = await asyncio.to_thread(client.acquire_pages, NAMESPACE, KEYS[:2])
    assert await asyncio.to_thread(lease.wait, 0) == 0
    assert lease.miss is MissReason.TIMEOUT
    other = await asyncio.to_thread(client.acquire_pages, NAMESPACE, KEYS[:2])
    await asyncio.to_thread(client.close_pool)
    assert (other.wait(), other.miss) == (0, MissReason.UNAVAILABLE)
    assert not client._listening


async def test_without_a_thread_to_listen_the_lease_ends_and_names_its_pages(client, pages, pool, monkeypatch):
    start = threading.Thread.start

    def start_others(thread):
        if thread.name == "tierkv-pages":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_others)
    pages.acquisition = PageAcquisition((3, 4), (TierName.HOST,) * 2, (PendingRun(1, 1, Future()),), None)
    lease = await asyncio.to_thread(client.acquire_pages, NAMESPACE, KEYS[:2])
    assert (lease.pages, lease.num_blocks, lease.miss) == ((3, 4), 1, MissReason.UNAVAILABLE)
    assert client.pool_is_alive
    await asyncio.to_thread(client.close_pool)


async def test_released_pages_are_sent_and_nobody_waits(client, pages, pool):
    client.release_pages([4, 4, 2])
    client.release_pages([])
    client.release_pages([-1, NUM_PAGES, 7])
    await eventually(lambda: pages.released == [[4, 4, 2], [7]])


async def test_a_release_waits_for_a_busy_daemon_as_long_as_it_takes(client, pages, pool, monkeypatch):
    stub, timeouts = client._mapped.link.stub, []
    release = stub.ReleasePages

    class Watched:
        @staticmethod
        def future(request, **options):
            timeouts.append(options["timeout"])
            return release.future(request, **options)

    monkeypatch.setattr(stub, "ReleasePages", Watched)
    client.release_pages([4])
    await eventually(lambda: pages.released == [[4]])
    assert timeouts == [None]


async def test_no_call_overtakes_a_release(rig, client, pages, pool, monkeypatch):
    order = []

    def reserve(_, count):
        order.append(count)
        return []

    monkeypatch.setattr(rig.store, "release_pages", lambda _, released: order.append(released))
    monkeypatch.setattr(rig.store, "reserve_pages", reserve)
    for number in range(20):
        client.release_pages([number % NUM_PAGES])
        await asyncio.to_thread(client.reserve_pages, 1)
    assert order[::2] == [[number % NUM_PAGES] for number in range(20)]
    assert order[1::2] == [1] * 20


async def test_closing_the_pool_ends_its_connection_and_not_the_session(rig, client, pages, pool):
    await asyncio.to_thread(client.close_pool)
    assert not client.pool_is_alive
    await eventually(lambda: len(pages.ended) == 1)
    with pytest.raises(UnavailableError, match="open it again"):
        client.reserve_pages(1)
    client.release_pages([1])
    with pytest.raises(ValueError, match="released"):
        pool.buffer[0]
    assert await asyncio.to_thread(client.clear, NAMESPACE) == 0
    assert client.counters["reattached"] == 0
    await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu")
    assert await asyncio.to_thread(client.reserve_pages, 2) == [0, 1]
    assert pages.released == []


async def test_what_was_released_late_does_not_meet_the_next_pool(client, pages, pool):
    late = client._mapped
    await asyncio.to_thread(client.close_pool)
    await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu")
    client._releasing_pages.send(late.link, "ReleasePages", pb.ReleasePagesRequest(pool_id=late.pool_id, pages=[5]))
    await eventually(lambda: client.counters["release_failures"] == 1)
    assert pages.released == []


async def test_opening_what_is_open_asks_nobody_and_keeps_what_is_held(client, pages, pool):
    assert await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu") is pool
    assert len(pages.opened) == 1


async def test_another_size_replaces_the_pool_in_its_session(rig, client, pages, pool):
    pages.page_bytes = 2 * PAGE_BYTES
    wide = Layout((2 * PAGE_BYTES,), "uint8", 4)
    namespace_id = (await asyncio.to_thread(client.register, IDENTITY, wide)).namespace_id
    wider = await asyncio.to_thread(client.open_pool, namespace_id, "cpu")
    assert (wider.page_bytes, wider.num_pages) == (2 * PAGE_BYTES, NUM_PAGES // 2)
    await eventually(lambda: len(rig.pools) == 1)
    assert await asyncio.to_thread(client.reserve_pages, 2) == [0, 1]
    assert len({session for session, *_ in pages.opened}) == 1
    assert pages.ended == []


async def test_a_refused_size_leaves_the_pool_that_is_open(client, pages, pool):
    pages.refusal = ConflictError("pages of another size are held")
    wide = Layout((2 * PAGE_BYTES,), "uint8", 4)
    namespace_id = (await asyncio.to_thread(client.register, IDENTITY, wide)).namespace_id
    with pytest.raises(ConflictError):
        await asyncio.to_thread(client.open_pool, namespace_id, "cpu")
    assert client.pool_is_alive
    assert await asyncio.to_thread(client.reserve_pages, 2) == [0, 1]


async def test_a_session_that_ends_takes_the_pool_and_leaves_the_memory(rig, client, pages, pool):
    pool.buffer[:4] = b"mine"
    client._attachment.current._stream.cancel()
    await eventually(lambda: not client.pool_is_alive)
    with pytest.raises(UnavailableError, match="open it again"):
        client.acquire_pages(NAMESPACE, KEYS)
    client.release_pages([1])
    await asyncio.to_thread(client.lookup, NAMESPACE, KEYS)  # attaches again, and does not bring the pool back
    assert not client.pool_is_alive
    assert bytes(pool.buffer[:4]) == b"mine"
    assert pages.ended == []
    await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu")
    await eventually(lambda: len(pages.ended) == 1)
    assert client.pool_is_alive
    assert pages.released == []


async def test_a_session_that_the_daemon_forgot_takes_the_pool(client, pool):
    link = client._attachment.current
    link.metadata = ((SESSION_METADATA, bytes(32)),)
    with pytest.raises(ClosedError):
        await asyncio.to_thread(client.reserve_pages, 1)
    assert not client.pool_is_alive
    await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu")
    assert client.pool_is_alive


async def test_a_forgotten_session_is_opened_anew_with_the_pool(client, pages):
    client._attachment.current.metadata = ((SESSION_METADATA, bytes(32)),)
    await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu")
    assert client.pool_is_alive
    assert client.counters["reattached"] == 1


async def test_a_daemon_that_ends_the_connection_takes_the_pool(rig, client, pool):
    await rig.pools.stop()
    assert not client.pool_is_alive
    with pytest.raises(UnavailableError):
        client.reserve_pages(1)


@pytest.mark.parametrize("verb", [lambda client: client.reserve_pages(1, timeout_s=0.2), lambda client: acquire(client, 0.2)])
async def test_an_answer_that_does_not_come_takes_the_pool(rig, client, pages, pool, monkeypatch, verb):
    """What it named is held by this session, and nobody knows which pages they are."""
    late = threading.Event()
    for name in ("reserve_pages", "acquire_pages"):
        monkeypatch.setattr(rig.store, name, lambda *_: late.wait(TIMEOUT_S))

    def ask():
        with pytest.raises(UnavailableError):
            verb(client)
        late.set()  # the loop stood still until now

    await asyncio.to_thread(ask)
    assert not client.pool_is_alive


def acquire(client, timeout_s):
    return client.acquire_pages(NAMESPACE, KEYS, timeout_s=timeout_s)


async def test_a_pool_that_was_given_up_begins_anew_in_its_session(client, pages, pool):
    with pytest.raises(UnavailableError):
        client.reserve_pages(1, timeout_s=0)
    assert not client.pool_is_alive
    await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu")
    assert client.pool_is_alive
    assert pages.ended == [pages.opened[0][0]] == [pages.opened[1][0]]
    assert client.counters["reattached"] == 0


@pytest.mark.parametrize(
    "acquisition",
    [
        PageAcquisition((NUM_PAGES,), (TierName.DEVICE,), (), None),
        PageAcquisition((1, 2), (TierName.DEVICE,), (), None),
    ],
)
async def test_an_answer_that_makes_no_sense_takes_the_pool(client, pages, pool, acquisition):
    pages.acquisition = acquisition
    with pytest.raises(DataError):
        await asyncio.to_thread(client.acquire_pages, NAMESPACE, KEYS)
    assert not client.pool_is_alive


async def test_a_refusal_of_the_store_is_the_client_s_and_leaves_no_pool(client, pages):
    pages.refusal = ConflictError("pages of another size are held")
    with pytest.raises(ConflictError):
        await asyncio.to_thread(client.open_pool, NAMESPACE, "cpu")
    assert not client.pool_is_alive


async def test_a_closed_client_has_no_pool(client, pages, pool):
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(client.close)
    assert not client.pool_is_alive
    client.release_pages([1])
    with pytest.raises(ClosedError):
        client.reserve_pages(1)
    with pytest.raises(ClosedError):
        client.open_pool(NAMESPACE, "cpu")
    await eventually(lambda: len(pages.ended) == 1)
