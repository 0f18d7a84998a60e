"""Assembly: the one module that knows every concrete part and puts a store together from settings."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from tierkv.answers import VerifyReport
from tierkv.clock import Clock, SystemClock
from tierkv.codecs.base import BlockCodec
from tierkv.codecs.checksum import checksum
from tierkv.codecs.frame import FrameCodec
from tierkv.codecs.registry import codec_by_id, codec_by_name
from tierkv.config import parse_devices, parse_size
from tierkv.embedded import EmbeddedStore
from tierkv.errors import DataError, InvalidRequestError, UnavailableError
from tierkv.index.block_index import BlockIndex
from tierkv.index.trail import Trail
from tierkv.machine import default_arena_folder, default_disk_bytes, default_host_bytes
from tierkv.model.chains import Chains
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import BlockRecord, Durability, Extent, TierName
from tierkv.namespaces import NamespaceTable
from tierkv.placement.mover import Mover
from tierkv.placement.page_books import PageBooks
from tierkv.placement.recovery import recover
from tierkv.placement.residency import Residency
from tierkv.policies import ArcPolicy, LruPolicy, RestorablePolicy, Rule
from tierkv.policy_state import PolicyKeeper
from tierkv.scrub import Progress, scrub_disk
from tierkv.settings import DiskSettings, HostSettings, PolicyName, StoreSettings
from tierkv.store import TieredStore
from tierkv.tiers.base import PoolMemory, Tier
from tierkv.tiers.device import open_memory
from tierkv.tiers.disk import DataFolder, DiskTier
from tierkv.tiers.disk.index import DiskIndex
from tierkv.tiers.disk.io import SegmentIO
from tierkv.tiers.host import HostTier
from tierkv.tiers.records import collector_paused
from tierkv.tiers.transform import TransformTier


def open_store(
    path: str | os.PathLike[str],
    *,
    host_memory: int | str | None = None,
    disk: int | str | None = None,
    durability: Durability | str = Durability.INTERVAL,
    device: str | Sequence[str] = (),
) -> EmbeddedStore:
    """A store in this process that keeps its blocks in the folder `path`, without a daemon.

    host_memory, disk — sizes ("4GiB" or bytes); None: a share of what is free, see `tierkv.machine`. durability — or its name.
    device — a page pool, as in "cpu:256MiB" or "cuda:0:8GiB", or several; then it is a `tierkv.pages.PageStore` too. Blocks until the
    index is loaded. Raises ConflictError when another process has the folder open, DataError (folder untouched) for a newer format.
    On `close` everything is on disk and the RAM is given back.
    """
    folder = Path(path)
    memory_bytes = default_host_bytes(default_arena_folder(folder)) if host_memory is None else parse_size(host_memory)
    settings = StoreSettings(
        data_folder=folder,
        host=HostSettings(memory_bytes, keep_on_stop=False),
        disk=DiskSettings(default_disk_bytes(folder) if disk is None else parse_size(disk)),
        devices=parse_devices(device),
        durability=Durability(durability),
    )
    clock = SystemClock()
    return EmbeddedStore(open_tiered_store(settings, clock), clock=clock, discard_arena=True)


def open_tiered_store(settings: StoreSettings, clock: Clock, *, io: SegmentIO | None = None) -> TieredStore:
    """Opens the tiers, takes in what survived, and starts the threads. Whatever fails, nothing stays open or locked.

    Raises UnavailableError where the system does not let us use a folder (full, read-only, not ours), and what the tiers raise.
    """
    opened: list[DataFolder | HostTier | DiskTier | PoolMemory] = []
    try:
        folder = DataFolder.open(settings.data_folder)
        opened.append(folder)
        _check_fits(settings)
        arena_folder = settings.host.folder or default_arena_folder(settings.data_folder)
        host = HostTier(arena_folder, settings.host.memory_bytes, store_id=folder.store_id, checksum=checksum)
        opened.append(host)
        disk: DiskTier | None = None
        if settings.disk.capacity_bytes > 0:
            disk = DiskTier(settings.data_folder, settings.disk, FrameCodec(), io=io)
            opened.append(disk)
        memories: list[PoolMemory] = []
        for device in settings.devices:
            memories.append(open_memory(device.device, device.memory_bytes))
            opened.append(memories[-1])
        return _compose(settings, clock, folder, host, disk, memories)
    except BaseException as error:
        for part in reversed(opened):
            part.close()
        if not isinstance(error, OSError):
            raise
        path = error.filename or settings.data_folder
        raise UnavailableError("a folder of the store cannot be used", path=path, error=error.strerror or error) from error


def verify_folder(path: Path, progress: Progress) -> VerifyReport:
    """Reads and checks every frame of a data folder that nobody serves; changes nothing. progress(frames, frames_total, bytes).

    Raises InvalidRequestError where there is no data folder, ConflictError while a daemon serves it.
    """
    if not (path / "FORMAT").exists():
        raise InvalidRequestError("no data folder here", data=path)
    folder = DataFolder.open(path)
    try:
        settings = DiskSettings(capacity_bytes=DiskIndex.extent_of_data(path / "index"), direct_io=False)
        disk = DiskTier(path, settings, FrameCodec())
        try:
            return scrub_disk(disk.scrub(), len(disk), progress)
        finally:
            disk.close()
    finally:
        folder.close()


def _check_fits(settings: StoreSettings) -> None:
    """Raises InvalidRequestError for a disk tier that its medium could never hold."""
    total_bytes = shutil.disk_usage(settings.data_folder).total
    if settings.disk.capacity_bytes > total_bytes:
        raise InvalidRequestError(
            "the disk tier is larger than the medium of its folder", disk=settings.disk.capacity_bytes, medium=total_bytes
        )


def _compose(
    settings: StoreSettings,
    clock: Clock,
    folder: DataFolder,
    host: HostTier,
    disk: DiskTier | None,
    memories: Sequence[PoolMemory],
) -> TieredStore:
    lock = threading.RLock()
    namespaces = NamespaceTable(limit=settings.limits.namespaces, persist=None if disk is None else disk.put_namespace)
    tier: Tier | None = disk
    if disk is not None:
        namespaces.restore(disk.namespaces())
        tier = _encoded(disk, codec_by_name(settings.disk.codec), namespaces)
    host_capacity = max(1, int(host.capacity_bytes * (1 - settings.host.headroom_ratio)))
    index = BlockIndex(history_limit=settings.limits.miss_history)
    trail = Trail(events=settings.limits.trail_events, keys=settings.limits.trail_keys, clock=clock, lock=lock)
    keeper = PolicyKeeper(settings.data_folder / "policy", lock=lock, checksum=checksum)
    residency = Residency(
        index=index,
        host=host,
        host_policy=keeper.keep(TierName.HOST, _policy(settings.policy, host_capacity, index.chains)),
        disk=tier,
        disk_policy=None
        if disk is None
        else keeper.keep(TierName.DISK, _policy(settings.policy, disk.capacity_bytes, index.chains)),
        is_disk_writable=lambda: mover.writer is not None and mover.writer.is_writable,
        trail=trail,
        pools=[
            PageBooks(memory, index=index, make_policy=lambda capacity: _policy(settings.policy, capacity, index.chains))
            for memory in memories
        ],
    )
    mover = Mover(lock=lock, residency=residency, settings=settings, clock=clock, checksum=checksum)
    with collector_paused():
        recover(residency, namespaces.__contains__, keeper.settle)
    # Once is for all of them: what is pinned is so for every device.
    pinning = next((memory for memory in memories if memory.fd is None), None)
    if pinning is not None:
        pinning.pin_host(host.view(Extent(0, host.arena_bytes)))
    prefaulting = _Prefault([host, *memories]) if settings.host.prefault else None

    def close_parts(discard_arena: bool) -> None:
        if prefaulting is not None:
            prefaulting.stop()
        keeper.stop()
        for memory in memories:
            memory.close()
        host.close(discard=discard_arena)
        if disk is not None:
            disk.close()
        folder.close()

    store = TieredStore(
        settings=settings,
        clock=clock,
        lock=lock,
        residency=residency,
        mover=mover,
        namespaces=namespaces,
        trail=trail,
        checksum=checksum,
        disk_scrub=None if disk is None else disk.scrub,
        keeper=keeper,
        on_close=close_parts,
    )
    store.start()
    keeper.start()
    if prefaulting is not None:
        prefaulting.start()
    return store


def _policy(name: PolicyName, capacity: int, chains: Chains[BlockKey]) -> RestorablePolicy[BlockKey]:
    match name:
        case PolicyName.ARC:
            return ArcPolicy(capacity, chains, rule=Rule.AGE)
        case PolicyName.ARC_SIZE:
            return ArcPolicy(capacity, chains, rule=Rule.SIZE)
        case PolicyName.LRU:
            return LruPolicy(capacity, chains)


def _encoded(disk: DiskTier, codec: BlockCodec, namespaces: NamespaceTable) -> Tier:
    """The disk with blocks encoded by `codec`; frames written with another codec stay readable, each names its own."""

    def encode(record: BlockRecord, block: memoryview) -> tuple[BlockRecord, memoryview]:
        payload = codec.encode(block, namespaces.get(record.namespace_id).layout)
        if len(payload) >= len(block):  # noise does not compress: keep it as it is
            return record, block
        digest = checksum(payload)
        return dataclasses.replace(record, codec=codec.codec_id, payload_bytes=len(payload), payload_checksum=digest), payload

    def decode(record: BlockRecord, payload: memoryview, target: memoryview) -> None:
        codec_by_id(record.codec).decode(payload, target, namespaces.get(record.namespace_id).layout)
        if checksum(target) != record.checksum:
            raise DataError("a decoded block does not have its checksum", key=record.key)

    return TransformTier(disk, encode, decode)


class _Prefault:
    """The thread that puts memory behind the arena and the page pools, one after the other."""

    def __init__(self, memories: Sequence[HostTier | PoolMemory]) -> None:
        self._memories = memories
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tierkv-prefault", daemon=True)

    def _run(self) -> None:
        for memory in self._memories:
            memory.prefault(self._is_stopping.is_set)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()
