"""What a client is told about where the daemon is."""

from pathlib import Path

import pytest

from tierkv.client.address import LocalAddress, RemoteAddress, parse_address
from tierkv.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, LocalAddress(None)),
        ("/run/user/1/tierkv", LocalAddress(Path("/run/user/1/tierkv"))),
        ("/run/user/1/tierkv/tierkvd.sock", LocalAddress(Path("/run/user/1/tierkv"))),
        (Path("relative/run"), LocalAddress(Path("relative/run"))),
        ("127.0.0.1:9401", RemoteAddress("127.0.0.1:9401", None, None)),
        ("[::1]:9401", RemoteAddress("[::1]:9401", None, None)),
    ],
)
def test_forms(text, expected, monkeypatch):
    monkeypatch.delenv("TIERKV_TOKEN", raising=False)
    assert parse_address(text) == expected


def test_the_token_comes_from_the_argument_or_the_environment(monkeypatch):
    monkeypatch.setenv("TIERKV_TOKEN", "from the environment")
    assert parse_address("h:1").metadata() == (("authorization", "Bearer from the environment"),)
    assert parse_address("h:1", token="given").metadata() == (("authorization", "Bearer given"),)


@pytest.mark.parametrize("text", ["", "host:port", "host:"])
def test_what_is_neither_is_refused(text):
    with pytest.raises(InvalidRequestError):
        parse_address(text)


def test_a_certificate_file_that_is_not_there_is_the_callers_to_mend(tmp_path):
    with pytest.raises(InvalidRequestError, match="certificate file"):
        parse_address("h:1", ca_file=tmp_path / "none.pem")
