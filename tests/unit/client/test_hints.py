"""Hints arrive wherever a client passes them on: in streamed puts, and through the coroutines."""

import itertools

import pytest

from tierkv.client.aio import AsyncClient
from tierkv.client.scratch import put_requests
from tierkv.client.verbs import PutCall
from tierkv.model.hints import NO_HINTS, Hints
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.testing.fake_store import FakeBlockStore
from tierkv.wire import messages

LAYOUT = Layout(shape=(32,), dtype="uint8", block_tokens=1)
IDENTITY = Identity(weights="hints")
NAMESPACE = IDENTITY.fingerprint(LAYOUT)
KEYS = chain_keys(NAMESPACE, range(4), block_tokens=1)
BLOCK = memoryview(bytes(32))
PINNED = Hints(pin_until_s=1e11)


@pytest.mark.parametrize("hints", [NO_HINTS, PINNED])
def test_a_streamed_put_has_its_hints_in_the_header(hints):
    header, chunk = itertools.islice(put_requests(PutCall(NAMESPACE, KEYS[:1], [BLOCK], None, None, hints)), 2)
    assert header.header.HasField("hints") == (hints is not NO_HINTS)
    assert messages.hints_of(header.header.hints) == hints
    assert chunk.chunk.data == BLOCK


@pytest.fixture
async def client():
    async with AsyncClient(FakeBlockStore()) as client:
        await client.register(IDENTITY, LAYOUT)
        yield client


def kept(client):
    return [client.store.backend.advice.is_retained(key) for key in KEYS[:3]]


async def test_coroutines_pass_hints_on(client):
    await client.put(NAMESPACE, KEYS[:1], [BLOCK], hints=PINNED)
    assert kept(client) == [True, False, False]
    reservation = await client.reserve(NAMESPACE, KEYS[1:2], parent=KEYS[0], hints=PINNED)
    await client.commit(reservation)
    assert kept(client) == [True, True, False]
    await client.put(NAMESPACE, KEYS[2:4], [BLOCK] * 2, parent=KEYS[1])
    await client.release(await client.acquire(NAMESPACE, KEYS[:3], hints=PINNED))
    assert kept(client) == [True, True, True]


@pytest.mark.parametrize("verb", ["get", "advise"])
async def test_coroutines_pass_hints_on_to_get_and_advise(client, verb):
    await client.put(NAMESPACE, KEYS[:3], [BLOCK] * 3)
    if verb == "get":
        assert await client.get(NAMESPACE, KEYS[:2], [memoryview(bytearray(32))] * 2, hints=PINNED) == 2
    else:
        assert await client.advise(NAMESPACE, KEYS[:2], PINNED) == 2
    assert kept(client) == [True, True, False]
