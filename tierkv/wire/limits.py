"""Bounds of the protocol, the same on both sides, and the gRPC channel options that enforce them. Source: docs/protocol.md."""

from __future__ import annotations

from tierkv.settings import KIB, MIB

PROTOCOL_VERSION = 1

SESSION_METADATA = "tierkv-session-bin"
ERROR_METADATA = "tierkv-error-bin"
RECORDING_METADATA = "tierkv-recording"
AUTHORIZATION_METADATA = "authorization"

KEYS_PER_CALL = 65_536
"""And pages."""
CHUNK_BYTES = MIB
"""Payload of one chunk of Put and Get; larger messages gain nothing and hold the loop longer."""
MESSAGE_BYTES = 4 * MIB
"""65,536 keys are 2 MiB; a chunk is 1 MiB. Nothing legitimate comes near this."""
LABEL_BYTES = 256
ERROR_CONTEXT_BYTES = 4 * KIB
SECRET_BYTES = 32
DEVICE_BYTES = 64
IPC_HANDLE_BYTES = 1_024
CONCURRENT_CALLS = 4_096

KEEPALIVE_TIME_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
DEFAULT_DEADLINE_S = 30.0
"""What the daemon gives a call that came without a deadline."""

ChannelOptions = tuple[tuple[str, int], ...]

_BOTH_SIDES: ChannelOptions = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


def client_options() -> ChannelOptions:
    """Options of a client's channel. Retries are the client's decision, so gRPC's own are off."""
    return (*_BOTH_SIDES, ("grpc.enable_retries", 0))


def server_options() -> ChannelOptions:
    """Options of the daemon's server. Two daemons must not share a port, and clients may ping as often as they are told to."""
    return (
        *_BOTH_SIDES,
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    )
