"""A servicer over a real, tiny store, on a Unix socket of the test's own loop; time is the test's."""

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass

import grpc.aio

from tierkv.assemble import open_tiered_store
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Extent
from tierkv.settings import MIB, DiskSettings, HostSettings, LimitSettings, StoreSettings
from tierkv.store import TieredStore
from tierkv.testing.clock import ManualClock
from tierkv.wire import messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire._generated import tierkv_pb2_grpc
from tierkv.wire.addresses import RunFolder, create_run_folder
from tierkv.wire.limits import SESSION_METADATA
from tierkv.wire.pools import MapPool, ask_for_pool
from tierkvd.attach import AttachServer
from tierkvd.pools import Pools
from tierkvd.rpc import RpcServer
from tierkvd.servicer import Servicer

BLOCK_BYTES = 4096
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
IDENTITY = Identity(weights="unit")
NAMESPACE = IDENTITY.fingerprint(LAYOUT)
KEYS = chain_keys(NAMESPACE, range(4 * 16), block_tokens=4)
TIMEOUT_S = 20
POOLS_LIMIT = 3


def content_of(key):
    return key * (BLOCK_BYTES // len(key))


@dataclass
class Rig:
    """What a test needs of the daemon. stub — a client's stub, without a session in its metadata."""

    store: TieredStore
    clock: ManualClock
    servicer: Servicer
    attach: AttachServer
    pools: Pools
    folder: RunFolder
    stub: tierkv_pb2_grpc.TierKVStub

    @contextlib.asynccontextmanager
    async def session(self, *, shares_memory=True):
        """An open session: its stream, and the metadata of its calls."""
        secret = self.servicer.sessions.new_attach_secret() if shares_memory else b""
        stream = self.stub.OpenSession(pb.OpenSessionRequest(label="unit", attach_secret=secret))
        opened = (await stream.read()).opened
        try:
            yield stream, ((SESSION_METADATA, opened.session_secret),)
        finally:
            stream.cancel()

    async def map_pool(self, metadata, device="cpu", *, namespace_id=NAMESPACE):
        """A pool connection of the session whose calls have this metadata, and what the daemon offered. The descriptor is closed."""

        def ask():
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self.folder.attach_socket))
                request = MapPool(metadata[0][1], namespace_id, device)
                return connection, ask_for_pool(connection, request, lambda: TIMEOUT_S)
            except BaseException:
                connection.close()
                raise

        connection, found = await asyncio.to_thread(ask)
        if found.memory_fd is not None:
            os.close(found.memory_fd)
        return connection, found.offer

    def extent(self, offset):
        return Extent(offset, BLOCK_BYTES)

    async def register(self, metadata):
        request = pb.RegisterRequest(identity=messages.identity_message(IDENTITY), layout=messages.layout_message(LAYOUT))
        await self.stub.Register(request, metadata=metadata, timeout=TIMEOUT_S)

    async def save(self, metadata, keys, parent=b""):
        """Puts blocks, each with the content of its key."""

        async def parts():
            yield pb.PutRequest(header=pb.PutHeader(namespace_id=NAMESPACE, keys=b"".join(keys), parent=parent))
            for idx, key in enumerate(keys):
                yield pb.PutRequest(chunk=pb.PutChunk(block_idx=idx, data=content_of(key)))

        return await self.stub.Put(parts(), metadata=metadata, timeout=TIMEOUT_S)


@contextlib.asynccontextmanager
async def running(tmp_path):
    clock = ManualClock()
    settings = StoreSettings(
        data_folder=tmp_path / "data",
        host=HostSettings(memory_bytes=MIB, folder=tmp_path / "arena", prefault=False),
        disk=DiskSettings(capacity_bytes=8 * MIB, segment_bytes=MIB, interval_s=0.0, direct_io=False),
        limits=LimitSettings(sessions=64),
    )
    store = open_tiered_store(settings, clock)
    folder = create_run_folder(tmp_path / "run")
    servicer = Servicer(store, clock, settings.limits)
    server = RpcServer(servicer)
    await server.listen_unix(folder.grpc_socket)
    pools = Pools(store, servicer.sessions, limit=POOLS_LIMIT)
    attach = AttachServer(folder.attach_socket, store, servicer.sessions, pools)
    attach.start()
    async with grpc.aio.insecure_channel(f"unix:{folder.grpc_socket}") as channel:
        yield Rig(store, clock, servicer, attach, pools, folder, tierkv_pb2_grpc.TierKVStub(channel))
    await attach.stop()
    await server.stop(0)
    servicer.scrubs.join(TIMEOUT_S)
    store.check_integrity()
    store.close(discard_arena=True)
