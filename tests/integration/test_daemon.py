"""The daemon as processes meet it: sharing, kills, restarts, damage, strangers. Every test has a daemon of its own."""

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tierkv.client import connect
from tierkv.errors import ConflictError, InvalidRequestError, TierKVError, UnavailableError
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability, ReserveOutcome, TierName
from tierkv.testing.daemon import DaemonOptions, DaemonProcess, start_daemon
from tierkv.testing.deadline import wait_until
from tierkv.wire import attach
from tierkv.wire._generated.tierkv_pb2 import StatsRequest

BLOCK_BYTES = 16 * 1024
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
IDENTITY = Identity(weights="integration")
NAMESPACE = IDENTITY.fingerprint(LAYOUT)
KEYS = chain_keys(NAMESPACE, range(4 * 24), block_tokens=4)


def content_of(key):
    return key * (BLOCK_BYTES // len(key))


def put(store, keys, **options):
    store.register(IDENTITY, LAYOUT)
    return store.put(NAMESPACE, keys, [memoryview(content_of(key)) for key in keys], **options)


def held(store, keys):
    """Length of the leading run that comes back; its content is checked."""
    store.register(IDENTITY, LAYOUT)
    targets = [memoryview(bytearray(BLOCK_BYTES)) for _ in keys]
    count = store.get(NAMESPACE, keys, targets)
    assert [bytes(target) for target in targets[:count]] == [content_of(key) for key in keys[:count]]
    return count


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tierkv.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )


@pytest.fixture
def options(tmp_path):
    return DaemonOptions(
        data=tmp_path / "data", run_dir=tmp_path / "run", host_memory="4MiB", disk="32MiB", arena_folder=tmp_path / "arena"
    )


@pytest.fixture
def daemon(options, tmp_path):
    with start_daemon(options, log=tmp_path / "log") as running:
        yield running


@pytest.fixture
def client(daemon, options):
    with connect(options.run_dir) as attached:
        yield attached


def ready_event(daemon):
    return next(event for event in daemon.log_events() if event.get("event") == "ready")


def test_what_one_client_saves_another_process_loads(client, options):
    put(client, KEYS)
    script = (
        "import sys; from tests.integration.test_daemon import *\nwith connect(sys.argv[1]) as other: print(held(other, KEYS))\n"
    )
    reader = subprocess.run(
        [sys.executable, "-c", script, str(options.run_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    assert reader.stdout.split() == [str(len(KEYS))]


def test_a_client_killed_between_reserve_and_commit_leaves_nothing(client, options):
    script = (
        "import os, sys; from tests.integration.test_daemon import *\n"
        "other = connect(sys.argv[1]); other.register(IDENTITY, LAYOUT)\n"
        "reservation = other.reserve(NAMESPACE, KEYS)\n"
        "for grant in reservation.grants[:5]: grant.buffer[:] = b'x' * BLOCK_BYTES\n"
        "print('reserved', flush=True); os.kill(os.getpid(), 9)\n"
    )
    writer = subprocess.run(
        [sys.executable, "-c", script, str(options.run_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    assert (writer.stdout.split(), writer.returncode) == (["reserved"], -signal.SIGKILL)
    wait_until(lambda: client.stats().reservations == 0, timeout_s=10, what="the dead client's reservation to return")
    assert held(client, KEYS) == 0
    assert client.stats().tiers[0].used_bytes == 0
    assert set(put(client, KEYS)) == {ReserveOutcome.GRANTED}


def test_sigterm_loses_nothing(daemon, options):
    with connect(options.run_dir) as client:
        put(client, KEYS, durability=Durability.VOLATILE)
    assert daemon.stop() == 0
    shutil.rmtree(options.arena_folder)
    daemon.start()
    daemon.wait_ready()
    with connect(options.run_dir) as client:
        assert held(client, KEYS) == len(KEYS)
        assert client.stats().hits == {"disk": len(KEYS)}


def test_what_is_being_filled_at_sigterm_can_still_be_committed(daemon, options):
    with connect(options.run_dir) as client:
        client.register(IDENTITY, LAYOUT)
        reservation = client.reserve(NAMESPACE, KEYS)
        os.kill(daemon.pid, signal.SIGTERM)
        wait_until(lambda: client._attachment.current.is_stopping, timeout_s=10, what="the client to hear of the stop")
        for grant in reservation.grants:
            grant.buffer[:] = content_of(grant.key)
        assert client.commit(reservation) == len(KEYS)
    wait_until(lambda: not daemon.is_running, timeout_s=30, what="the daemon to end")
    daemon.kill()
    daemon.start()
    daemon.wait_ready()
    with connect(options.run_dir) as client:
        assert held(client, KEYS) == len(KEYS)


def test_after_sigkill_the_arena_is_served_again(daemon, options):
    with connect(options.run_dir) as client:
        put(client, KEYS, durability=Durability.STRICT)  # also sealed, so the arena index has them
        daemon.kill()
        daemon.start()
        daemon.wait_ready()
        wait_until(lambda: is_back(client), timeout_s=10, what="the client to attach again")
        lease = client.acquire(NAMESPACE, KEYS)
        assert [bytes(block) for block in lease.blocks()] == [content_of(key) for key in KEYS]
        assert set(lease.tiers) == {TierName.HOST}
        client.release(lease)
        assert client.counters["reattached"] >= 1


def is_back(client):
    with contextlib.suppress(UnavailableError):
        client.register(IDENTITY, LAYOUT)
        return True
    return False


def test_bytes_that_changed_in_the_arena_come_from_disk_instead(daemon, options):
    with connect(options.run_dir) as client:
        put(client, KEYS, durability=Durability.STRICT)
    daemon.kill()
    arena = options.arena_folder / "arena"
    with arena.open("r+b") as file:
        content = file.read()
        place = content.index(content_of(KEYS[3]))
        file.seek(place + 100)
        file.write(b"\xff\x00\xff")
    daemon.start()
    daemon.wait_ready()
    with connect(options.run_dir) as client:
        assert held(client, KEYS) == len(KEYS)


def test_after_a_reboot_the_disk_is_served(daemon, options):
    with connect(options.run_dir) as client:
        put(client, KEYS, durability=Durability.STRICT)
    daemon.kill()
    shutil.rmtree(options.arena_folder)
    daemon.start()
    daemon.wait_ready()
    with connect(options.run_dir) as client:
        assert held(client, KEYS) == len(KEYS)


def flip_byte_of(options, key):
    segment = options.data / "segments" / "00000000.seg"
    with segment.open("r+b") as file:
        content = file.read()
        place = content.index(content_of(key)) + 5000
        file.seek(place)
        file.write(bytes([content[place] ^ 1]))


def test_a_flipped_byte_is_found_counted_and_never_served(daemon, options):
    with connect(options.run_dir) as client:
        put(client, KEYS, durability=Durability.STRICT)
    daemon.kill()
    shutil.rmtree(options.arena_folder)
    flip_byte_of(options, KEYS[5])

    checked = command("verify", "--data", options.data, "--json")
    found = json.loads(checked.stdout)
    assert checked.returncode == 3
    assert found["frames"] == len(KEYS)
    assert [frame["key"] for frame in found["damaged"]] == [KEYS[5].hex()]

    daemon.start()
    daemon.wait_ready()
    with connect(options.run_dir) as client:
        assert held(client, KEYS) == 5
        stats = client.stats()
        assert stats.misses["checksum"] >= 1
        assert stats.counters["damaged"] == 1
        assert client.lookup(NAMESPACE, KEYS).num_blocks == 5
        # What followed it could never be found without it: it went too.
        assert put(client, KEYS[5:], parent=KEYS[4]) == (ReserveOutcome.GRANTED,) * len(KEYS[5:])
        assert held(client, KEYS) == len(KEYS)
    again = command("verify", "--run-dir", options.run_dir, "--json")
    assert (again.returncode, json.loads(again.stdout)["damaged"]) == (0, [])


def test_a_truncated_segment_costs_its_blocks_only(daemon, options):
    with connect(options.run_dir) as client:
        put(client, KEYS, durability=Durability.STRICT)
    daemon.kill()
    shutil.rmtree(options.arena_folder)
    segment = options.data / "segments" / "00000000.seg"
    os.truncate(segment, 10 * (BLOCK_BYTES + 4096) + 8192)
    daemon.start()
    daemon.wait_ready()
    with connect(options.run_dir) as client:
        assert 0 < held(client, KEYS) < len(KEYS)


def test_a_second_daemon_is_told_who_has_the_folder(daemon, options, tmp_path):
    same_data = command("serve", "--data", options.data, "--run-dir", tmp_path / "other", "--http", "off")
    assert same_data.returncode == 1
    assert str(daemon.pid) in same_data.stderr
    same_run = command("serve", "--data", tmp_path / "elsewhere", "--run-dir", options.run_dir, "--http", "off")
    assert same_run.returncode == 1
    assert "run folder" in same_run.stderr
    assert "Traceback" not in same_data.stderr + same_run.stderr


def test_a_folder_of_a_newer_version_is_refused_untouched(options, tmp_path):
    options.data.mkdir()
    (options.data / "FORMAT").write_text("tierkv-data 99\nstore " + "0" * 32 + "\n")
    refused = DaemonProcess(options, log=tmp_path / "log")
    refused.start()
    with pytest.raises(UnavailableError, match="newer"):
        refused.wait_ready()
    refused.kill()
    assert [path.name for path in options.data.iterdir()] == ["FORMAT"]


def test_a_disk_tier_larger_than_its_medium_is_refused(tmp_path):
    result = command("serve", "--data", tmp_path / "data", "--run-dir", tmp_path / "run", "--disk", "900000TiB", "--http", "off")
    assert result.returncode == 2
    assert "larger than the medium" in result.stderr


def test_a_hanging_daemon_costs_the_deadline_and_then_nothing(daemon, options):
    with connect(options.run_dir, timeout_s=0.3) as client:
        put(client, KEYS)
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            for _ in range(4):
                asked_at_s = time.monotonic()
                with pytest.raises(UnavailableError):
                    client.lookup(NAMESPACE, KEYS)
                # A wide margin for a busy machine; without a deadline the call would wait for the default of 5 s or for good.
                assert time.monotonic() - asked_at_s < 3
            with pytest.raises(UnavailableError, match="not asked again"):
                client.lookup(NAMESPACE, KEYS)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        wait_until(lambda: is_back(client), timeout_s=10, what="the breaker to close")
        assert held(client, KEYS) == len(KEYS)


def test_an_old_reservation_conflicts_after_a_restart_and_its_memory_is_safe(daemon, options):
    with connect(options.run_dir) as client:
        client.register(IDENTITY, LAYOUT)
        reservation = client.reserve(NAMESPACE, KEYS[:2])
        put(client, KEYS[4:6])
        lease = client.acquire(NAMESPACE, KEYS[4:6])
        blocks = lease.blocks()
        daemon.kill()
        daemon.start()
        daemon.wait_ready()
        wait_until(lambda: is_back(client), timeout_s=10, what="the client to attach again")
        with pytest.raises(ConflictError):
            client.commit(reservation)
        assert client.abort(reservation) == 0
        assert not lease.is_valid
        assert len(bytes(blocks[0])) == BLOCK_BYTES
        client.release(lease)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_client_that_still_fills_what_an_earlier_daemon_granted_harms_nobody(daemon, options, end):
    with connect(options.run_dir) as slow:
        slow.register(IDENTITY, LAYOUT)
        buffers = [grant.buffer for grant in slow.reserve(NAMESPACE, KEYS).grants]
        getattr(daemon, end)()
        daemon.start()
        daemon.wait_ready()
        many = chain_keys(NAMESPACE, range(4 * 300), block_tokens=4)  # more than the arena holds
        with connect(options.run_dir) as other:
            put(other, many)
            for buffer in buffers:
                buffer[:] = b"x" * BLOCK_BYTES
            assert sum(held(other, [key]) for key in many) > 100


def test_no_daemon_is_an_error_that_says_where_and_what_to_do(tmp_path):
    with pytest.raises(UnavailableError, match="tierkv serve"):
        connect(tmp_path / "nobody")
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    with pytest.raises(UnavailableError, match=r"attach\.sock"):
        connect(folder)
    result = command("status", "--run-dir", folder)
    assert (result.returncode, "Traceback" in result.stderr) == (1, False)


def raw_exchange(options, message):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(options.run_dir / "attach.sock"))
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(4096):
                answer += part
        return answer


@pytest.mark.parametrize(
    "message",
    [b"", b"GET / HTTP/1.1\r\n\r\n", attach.MAGIC + b"\xff" * 200, bytes(1000), attach.encode_hello(attach.Hello("cut"))[:-2]],
)
def test_garbage_on_the_attach_socket_is_refused_and_nobody_suffers(client, options, message):
    answer = raw_exchange(options, message)
    if answer:
        kind, length = attach.decode_header(answer[: attach.HEADER_BYTES])
        assert kind is attach.Kind.REFUSAL
        assert isinstance(attach.decode_refusal(answer[attach.HEADER_BYTES :][:length]), TierKVError)
    assert set(put(client, KEYS)) == {ReserveOutcome.GRANTED}


def test_a_client_of_a_newer_protocol_is_refused(client, options):
    answer = raw_exchange(options, attach.encode_hello(attach.Hello("later", protocol_version=99)))
    _, length = attach.decode_header(answer[: attach.HEADER_BYTES])
    refusal = attach.decode_refusal(answer[attach.HEADER_BYTES :][:length])
    assert isinstance(refusal, InvalidRequestError)
    assert "99" in str(refusal)


def test_tcp_asks_for_its_token(options, tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text("correct horse battery staple\n")
    token_file.chmod(0o600)
    extra = ("--listen", "127.0.0.1:0", "--token-file", str(token_file))
    with start_daemon(
        DaemonOptions(options.data, options.run_dir, arena_folder=options.arena_folder, extra=extra), log=tmp_path / "log"
    ) as daemon:
        address = ready_event(daemon)["listen"]
        for token in (None, "wrong"):
            with pytest.raises(InvalidRequestError, match="token"):
                connect(address, token=token)
        with connect(address, token="correct horse battery staple") as client:
            put(client, KEYS)
            assert held(client, KEYS) == len(KEYS)


def test_status_prints_the_contract(client, options):
    put(client, KEYS)
    held(client, KEYS)
    result = command("status", "--run-dir", options.run_dir, "--json")
    status = json.loads(result.stdout)
    assert set(status) >= {"version", "uptime_s", "tiers", "hits", "misses", "sessions", "leases"}
    assert [set(tier) for tier in status["tiers"]] == [{"name", "capacity_bytes", "used_bytes", "blocks"}] * 2
    assert status["hits"] == {"host": len(KEYS)}
    assert "host" in command("status", "--run-dir", options.run_dir).stdout


def test_http_health_and_reflection(options, tmp_path):
    with start_daemon(
        DaemonOptions(options.data, options.run_dir, arena_folder=options.arena_folder, http="127.0.0.1:0"), log=tmp_path / "log"
    ) as daemon:
        base = "http://" + ready_event(daemon)["http"]
        with urllib.request.urlopen(base + "/metrics") as answer:  # noqa: S310 - http
            metrics = answer.read().decode()
        assert 'tierkv_tier_capacity_bytes{tier="host"}' in metrics
        assert "tierkv_degraded 0.0" in metrics
        for path in ("/healthz", "/readyz"):
            with urllib.request.urlopen(base + path) as answer:  # noqa: S310 - http
                assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(base + "/admin")  # noqa: S310 - http
        with grpc.insecure_channel(f"unix:{options.run_dir / 'tierkvd.sock'}") as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="tierkv.v1.TierKV"), timeout=10
            )
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            replies = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=10)
            services = {service.name for service in next(iter(replies)).list_services_response.service}
        assert "tierkv.v1.TierKV" in services


def test_sockets_and_folders_are_private(daemon, options):
    assert daemon.is_running
    assert oct(options.run_dir.stat().st_mode & 0o777) == "0o700"
    assert oct(options.data.stat().st_mode & 0o777) == "0o700"
    assert oct(options.arena_folder.stat().st_mode & 0o777) == "0o700"
    for name in ("tierkvd.sock", "attach.sock"):
        assert oct((options.run_dir / name).stat().st_mode & 0o777) == "0o600"


def test_an_open_run_folder_is_refused(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    result = command("serve", "--data", tmp_path / "data", "--run-dir", folder, "--http", "off")
    assert result.returncode == 2
    assert "chmod 700" in result.stderr


def test_a_daemon_out_of_descriptors_attaches_clients_again_when_there_are_some(daemon, options):
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{daemon.pid}/fd")), limits[1]))
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(options.run_dir / "attach.sock"))
        wait_until(lambda: "attach connection not accepted" in daemon.log_tail(), timeout_s=10, what="the daemon to notice")
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
    with connect(options.run_dir) as client:
        assert held(client, KEYS) == 0


def test_a_crowd_that_attaches_at_once_is_let_in(daemon, options):
    os.kill(daemon.pid, signal.SIGSTOP)  # nobody is accepted, so that all of them wait
    with contextlib.ExitStack() as stack:
        try:
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(options.run_dir / "attach.sock"))
        except BlockingIOError:
            pass  # the backlog is full
        with ThreadPoolExecutor(1) as threads:
            late = threads.submit(connect, options.run_dir, timeout_s=20)
            with pytest.raises(TimeoutError):
                late.result(timeout=0.1)
            stack.close()
            os.kill(daemon.pid, signal.SIGCONT)
            with late.result(timeout=30) as client:
                assert held(client, KEYS) == 0


def test_closing_an_attachment_under_another_thread_is_an_error_that_says_so(client):
    put(client, KEYS)
    lease = client.acquire(NAMESPACE, KEYS)
    attachment = client._attachment
    link = attachment.current
    link._channel.close()  # what another thread does that attaches anew
    link.mark_dead()
    with pytest.raises(UnavailableError, match="closed during the call"):
        attachment.call_on(link, "Stats", StatsRequest(), attachment.deadline(5))
    link._is_alive = True  # as a thread sees it that looked just before
    client.release(lease)
    link.mark_dead()


def test_a_namespace_that_a_smaller_daemon_refuses_does_not_shut_out_the_others(daemon, options, tmp_path):
    with connect(options.run_dir) as client:
        client.register(Identity(weights="large"), Layout((2 << 20,), "uint8", 4))
        put(client, KEYS)
        daemon.kill()
        shutil.rmtree(options.arena_folder)
        with start_daemon(dataclasses.replace(options, host_memory="1MiB"), log=tmp_path / "log2"):
            wait_until(lambda: is_back(client), timeout_s=20, what="the client to attach again")
            assert client.counters["register_refused"] == 1
            client.stats()
