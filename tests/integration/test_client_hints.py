"""Hints of a client without shared memory: a pinned block stays in host memory while others leave. The contract suite has the others."""

import pytest

from tests.integration.test_daemon import IDENTITY, LAYOUT, NAMESPACE, content_of, ready_event
from tierkv.client import connect
from tierkv.model.hints import Hints
from tierkv.model.keys import chain_keys
from tierkv.model.outcomes import ReserveOutcome, TierName
from tierkv.testing.daemon import DaemonOptions, start_daemon

PINNED = Hints(pin_until_s=1e11)
ROOM_BLOCKS = (1 << 20) // LAYOUT.block_bytes


@pytest.fixture
def daemon(tmp_path):
    options = DaemonOptions(
        data=tmp_path / "data",
        run_dir=tmp_path / "run",
        host_memory="1MiB",
        disk="32MiB",
        arena_folder=tmp_path / "arena",
        extra=("--listen", "127.0.0.1:0"),
    )
    with start_daemon(options, log=tmp_path / "log") as running:
        yield running


@pytest.fixture
def client(daemon):
    with connect(ready_event(daemon)["listen"]) as attached:
        attached.register(IDENTITY, LAYOUT)
        yield attached


def chain(seed, blocks):
    tokens = range(seed * 1_000_000, seed * 1_000_000 + blocks * LAYOUT.block_tokens)
    return chain_keys(NAMESPACE, tokens, block_tokens=LAYOUT.block_tokens)


def put(client, keys, **options):
    return client.put(NAMESPACE, keys, [memoryview(content_of(key)) for key in keys], **options)


def reserve_and_commit(client, keys):
    reservation = client.reserve(NAMESPACE, keys, hints=PINNED)
    for grant in reservation.grants:
        grant.buffer[:] = content_of(grant.key)
    client.commit(reservation)


def get(client, keys):
    put(client, keys)
    targets = [memoryview(bytearray(LAYOUT.block_bytes)) for _ in keys]
    assert client.get(NAMESPACE, keys, targets, hints=PINNED) == len(keys)


def advise(client, keys):
    put(client, keys)
    assert client.advise(NAMESPACE, [*keys, *chain(9, 1)], PINNED) == len(keys)


@pytest.mark.parametrize("pin", [lambda client, keys: put(client, keys, hints=PINNED), reserve_and_commit, get, advise])
def test_what_a_client_pins_stays(client, pin):
    pinned, other = chain(1, 3), chain(2, 3)
    put(client, other)
    pin(client, pinned)
    for seed in range(10, 58):
        client.flush()
        assert set(put(client, chain(seed, ROOM_BLOCKS // 16))) == {ReserveOutcome.GRANTED}
    assert client.lookup(NAMESPACE, pinned).tiers == (TierName.HOST,) * 3
    assert client.lookup(NAMESPACE, other).tiers == (TierName.DISK,) * 3
