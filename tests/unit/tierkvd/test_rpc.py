"""The TCP server: token and TLS, and addresses that cannot be had. HTTP: the same, and readiness."""

import asyncio
import socket
import urllib.error
import urllib.request

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tierkv.config import Address
from tierkv.errors import InvalidRequestError, UnavailableError
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire._generated import tierkv_pb2_grpc
from tierkv.wire.limits import AUTHORIZATION_METADATA
from tierkv.wire.status import error_of_rpc
from tierkvd.http import HttpServer
from tierkvd.rpc import RpcServer, read_token

TOKEN = "a token of enough length"
TIMEOUT_S = 20


@pytest.fixture
async def tcp(rig):
    server = RpcServer(rig.servicer, token=TOKEN)
    port = await server.listen_tcp(Address("127.0.0.1", 0), cert=None, key=None)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


@pytest.mark.parametrize("given", [None, "Bearer wrong", TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN}x"])
async def test_every_call_needs_the_token_health_included(tcp, given):
    metadata = () if given is None else ((AUTHORIZATION_METADATA, given),)
    calls = (
        tierkv_pb2_grpc.TierKVStub(tcp).Stats(pb.StatsRequest(), metadata=metadata, timeout=TIMEOUT_S),
        tierkv_pb2_grpc.TierKVStub(tcp).OpenSession(pb.OpenSessionRequest(), metadata=metadata, timeout=TIMEOUT_S).read(),
        health_pb2_grpc.HealthStub(tcp).Check(health_pb2.HealthCheckRequest(), metadata=metadata, timeout=TIMEOUT_S),
    )
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert isinstance(error_of_rpc(caught.value), InvalidRequestError)


async def test_with_the_token_calls_are_served(tcp):
    metadata = ((AUTHORIZATION_METADATA, f"Bearer {TOKEN}"),)
    stats = await tierkv_pb2_grpc.TierKVStub(tcp).Stats(pb.StatsRequest(), metadata=metadata, timeout=TIMEOUT_S)
    assert [tier.name for tier in stats.tiers] == ["host", "disk"]


async def test_a_taken_address_is_named(rig):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Address("127.0.0.1", other.getsockname()[1])
        server = RpcServer(rig.servicer)
        with pytest.raises(UnavailableError, match=str(taken)):
            await server.listen_tcp(taken, cert=None, key=None)
        with pytest.raises(UnavailableError, match="--http"):
            await HttpServer(taken, rig.store, lambda: True).start()


async def test_a_tls_file_that_is_missing_is_named(rig, tmp_path):
    server = RpcServer(rig.servicer)
    with pytest.raises(InvalidRequestError, match="absent"):
        await server.listen_tcp(Address("127.0.0.1", 0), cert=tmp_path / "absent.pem", key=tmp_path / "absent.key")


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [(TOKEN, 0o644, "chmod 600"), ("short\n", 0o600, "16 characters"), (None, 0o600, "cannot be read")],
)
def test_a_token_file_that_is_open_short_or_missing_is_refused(tmp_path, content, mode, sentence):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(InvalidRequestError, match=sentence):
        read_token(path)


def fetch(address, path):
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_http_tells_health_readiness_and_metrics(rig):
    is_ready = False
    server = HttpServer(Address("127.0.0.1", 0), rig.store, lambda: is_ready)
    address = await server.start()
    assert await asyncio.to_thread(fetch, address, "/healthz") == (200, "ok\n")
    assert (await asyncio.to_thread(fetch, address, "/readyz"))[0] == 503
    is_ready = True
    assert (await asyncio.to_thread(fetch, address, "/readyz"))[0] == 200
    status, text = await asyncio.to_thread(fetch, address, "/metrics")
    assert status == 200
    assert 'tierkv_tier_used_bytes{tier="host"} 0.0' in text
    assert (await asyncio.to_thread(fetch, address, "/else"))[0] == 404
    await server.stop()
    await server.stop()
