"""The messages of a pool connection: round trips, what is refused, and that no bytes whatever get past the decoders."""

import contextlib
import os
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire.test_attach import split
from tierkv.errors import CapacityError, DataError, InvalidRequestError, UnavailableError
from tierkv.model.keys import NamespaceId
from tierkv.wire import attach, pools

NAMESPACE = NamespaceId(bytes(range(32, 64)))
REQUEST = pools.MapPool(bytes(range(32)), NAMESPACE, "cuda:0")
CPU = pools.PoolOffer(pool_id=7, memory_bytes=10_000, page_bytes=4096, num_pages=2, num_descriptors=1)
CUDA = pools.PoolOffer(pool_id=7, memory_bytes=10_000, page_bytes=4096, num_pages=2, num_descriptors=0, ipc_handle=b"h" * 64)


def test_a_request_comes_back():
    kind, body = split(pools.encode_map_pool(REQUEST))
    assert kind is attach.Kind.MAP_POOL
    assert pools.decode_map_pool(body) == REQUEST


@pytest.mark.parametrize("offer", [CPU, CUDA])
def test_an_offer_comes_back(offer):
    kind, body = split(pools.encode_pool(offer))
    assert kind is attach.Kind.POOL
    assert pools.decode_pool(body) == offer


@pytest.mark.parametrize(
    "request_",
    [
        pools.MapPool(bytes(32), NAMESPACE, ""),
        pools.MapPool(bytes(32), NAMESPACE, "x" * 65),
        pools.MapPool(bytes(32), NamespaceId(b""), "cpu"),
    ],
)
def test_a_request_that_cannot_be_is_not_sent(request_):
    with pytest.raises(InvalidRequestError):
        pools.encode_map_pool(request_)


@pytest.mark.parametrize(
    "offer",
    [
        pools.PoolOffer(1, 0, 4096, 1, 1),
        pools.PoolOffer(1, 8191, 4096, 2, 1),
        pools.PoolOffer(1, 8192, 0, 2, 1),
        pools.PoolOffer(1, 8192, 4096, 0, 1),
        pools.PoolOffer(1, 8192, 4096, 2, 0),
        pools.PoolOffer(1, 8192, 4096, 2, 1, b"handle too"),
        pools.PoolOffer(1, 8192, 4096, 2, 0, b"h" * 1025),
    ],
)
def test_an_impossible_offer_is_refused(offer):
    _, body = split(pools.encode_pool(offer))
    with pytest.raises(DataError):
        pools.decode_pool(body)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_error(data):
    for decode in (pools.decode_map_pool, pools.decode_pool):
        with contextlib.suppress(DataError):
            decode(data)


@given(st.binary(max_size=70), st.integers(0, 2**16 - 1))
def test_a_device_of_any_length_is_read_whole_or_not_at_all(text, length):
    body = bytes(64) + struct.pack("<H", length) + text
    try:
        found = pools.decode_map_pool(body)
    except DataError:
        return
    assert found.device.encode() == text


def answered(message, descriptors=()):
    """What the client's side makes of an answer."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(theirs, [message], descriptors)
        theirs.shutdown(socket.SHUT_WR)
        return pools.ask_for_pool(ours, REQUEST, lambda: 10.0)


def test_the_client_gets_the_descriptor_of_the_memory_and_owns_it():
    memory = os.memfd_create("pool")
    pool = answered(pools.encode_pool(CPU), [memory])
    assert pool.offer == CPU
    assert os.fstat(pool.memory_fd).st_ino == os.fstat(memory).st_ino
    os.close(pool.memory_fd)
    os.close(memory)
    assert answered(pools.encode_pool(CUDA)) == pools.MappablePool(CUDA, None)


@pytest.mark.parametrize(
    ("message", "num_descriptors", "error"),
    [
        (pools.encode_pool(CPU), 0, DataError),
        (pools.encode_pool(CUDA), 1, DataError),
        (pools.encode_pool(CPU), 2, DataError),
        (pools.encode_map_pool(REQUEST), 1, DataError),
        (attach.encode_refusal(CapacityError("full")), 0, CapacityError),
        (pools.encode_pool(CPU)[:-1], 1, UnavailableError),
    ],
    ids=["no descriptor", "one too many", "two", "an echo", "a refusal", "cut off"],
)
def test_another_answer_is_an_error_and_leaves_no_descriptor(message, num_descriptors, error):
    memory = os.memfd_create("pool")
    try:
        with pytest.raises(error):
            answered(message, [memory] * num_descriptors)
    finally:
        os.close(memory)
