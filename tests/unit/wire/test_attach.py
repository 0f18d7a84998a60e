"""The attach messages: round trips, and that no bytes whatever get past the decoder as something else."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierkv.errors import ConflictError, DataError, InvalidRequestError
from tierkv.wire import attach

WELCOME = attach.Welcome(1 << 30, 1 << 20, bytes(range(32)), "0.1.0", "tierkvd.sock")


def split(message):
    kind, length = attach.decode_header(message[: attach.HEADER_BYTES])
    body = message[attach.HEADER_BYTES :]
    assert len(body) == length
    return kind, body


def test_hello_comes_back():
    kind, body = split(attach.encode_hello(attach.Hello("a label, ünicode")))
    assert kind is attach.Kind.HELLO
    assert attach.decode_hello(body) == attach.Hello("a label, ünicode")


def test_welcome_comes_back():
    kind, body = split(attach.encode_welcome(WELCOME))
    assert kind is attach.Kind.WELCOME
    assert attach.decode_welcome(body) == WELCOME


def test_refusal_comes_back_as_its_class():
    kind, body = split(attach.encode_refusal(ConflictError("no", pid=1)))
    assert kind is attach.Kind.REFUSAL
    refusal = attach.decode_refusal(body)
    assert isinstance(refusal, ConflictError)
    assert "pid='1'" in str(refusal)


def test_a_long_label_is_not_sent():
    with pytest.raises(InvalidRequestError):
        attach.encode_hello(attach.Hello("x" * 257))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/x"])
def test_a_socket_outside_its_folder_is_refused(name):
    _, body = split(attach.encode_welcome(attach.Welcome(4096, 0, bytes(32), "1", name)))
    with pytest.raises(DataError):
        attach.decode_welcome(body)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_error(data):
    for decode in (attach.decode_header, attach.decode_hello, attach.decode_welcome, attach.decode_refusal):
        with contextlib.suppress(DataError):
            decode(data)
