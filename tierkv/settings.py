"""Settings: nested scalars only; components are constructor arguments.

Loading from file, environment and flags is `tierkv.config`; sizes that depend on the machine are `tierkv.machine`. Every queue,
pool and table has its bound here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tierkv.errors import InvalidRequestError
from tierkv.model.outcomes import Durability

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


class PolicyName(StrEnum):
    ARC = "arc"
    """ARC that compares ages."""
    ARC_SIZE = "arc-size"
    """ARC with the paper's rule of sizes."""
    LRU = "lru"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The host tier: one arena file in tmpfs."""

    memory_bytes: int
    folder: Path | None = None
    """Where arena and arena index lie; None: a private folder in /dev/shm named after the data folder."""
    keep_on_stop: bool = True
    """Keep the arena after an orderly stop, so that the next start has RAM content; it occupies memory meanwhile."""
    prefault: bool = True
    headroom_ratio: float = 0.05
    """Share of the arena that the policy leaves free, so that a reservation need not wait for a demotion under way."""


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """The disk tier: segment files and an LMDB index. Zero capacity turns it off."""

    capacity_bytes: int
    segment_bytes: int = 256 * MIB
    codec: str = "identity"
    direct_io: bool = True
    interval_s: float = 0.25
    """Longest wait before a committed block of an `interval` namespace is written; the promise is 1 s."""
    batch_bytes: int = 64 * MIB
    """A batch is written as soon as this much waits."""
    retry_s: float = 10.0
    """Pause before a full or failing medium is tried again."""
    quarantine_entries: int = 1024
    write_budget_bytes_per_day: int = 0
    """What may be written in any 24 hours, frames only; 0: no limit. See `tierkv.placement.write_budget`."""


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """The device tier of one device: one pool of pages, which engines map. device — "cpu", "cuda:0", …"""

    device: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Bounds of tables, queues and calls."""

    keys_per_call: int = 65_536
    page_runs_per_call: int = 256
    """Runs of one commit of pages: each is looked at with all that is before it."""
    namespaces: int = 4_096
    sessions: int = 1_024
    leases: int = 65_536
    reservations: int = 16_384
    lease_ttl_s: float = 120.0
    reservation_ttl_s: float = 60.0
    requests: int = 4_096
    """Requests remembered by their id, so that calls of one are one access to each block."""
    miss_history: int = 262_144
    """Evicted keys remembered, to tell `evicted` from `never_seen`."""
    trail_events: int = 65_536
    """Events of blocks remembered, to tell why a block is not held; 0 turns it off."""
    trail_keys: int = 262_144
    """Keys that those events speak of, all together; about 80 bytes each. 0 turns it off."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Everything a `TieredStore` is built from."""

    data_folder: Path
    host: HostSettings
    disk: DiskSettings
    devices: tuple[DeviceSettings, ...] = ()
    limits: LimitSettings = field(default_factory=LimitSettings)
    durability: Durability = Durability.INTERVAL
    policy: PolicyName = PolicyName.ARC
    promote_threads: int = 3
    promote_run_blocks: int = 16
    """Blocks that one promotion job reads and reports together."""
    verify_every_hit: bool = False
    """Check the checksum of every acquired block, not only at crossings."""

    def __post_init__(self) -> None:
        if self.host.memory_bytes < MIB:
            raise InvalidRequestError("host memory must be at least 1MiB", host_memory=self.host.memory_bytes)
        if self.disk.capacity_bytes < 0:
            raise InvalidRequestError("disk capacity cannot be negative; 0 turns the tier off", disk=self.disk.capacity_bytes)
        if 0 < self.disk.capacity_bytes < 4 * KIB:
            raise InvalidRequestError("disk capacity must be at least 4KiB; 0 turns the tier off", disk=self.disk.capacity_bytes)
        if self.disk.write_budget_bytes_per_day < 0:
            raise InvalidRequestError(
                "a write budget cannot be negative; 0 sets no limit", disk_write_budget=self.disk.write_budget_bytes_per_day
            )
        names = [device.device for device in self.devices]
        if len(set(names)) != len(names):
            raise InvalidRequestError("each device has one pool; name it once", devices=", ".join(names))
        for device in self.devices:
            if device.memory_bytes < MIB:
                raise InvalidRequestError("a page pool has at least 1MiB", device=device.device, memory=device.memory_bytes)
        if not 0 <= self.host.headroom_ratio <= 0.5:
            raise InvalidRequestError("headroom_ratio lies between 0 and 0.5", headroom_ratio=self.host.headroom_ratio)
        if not 1 <= self.promote_threads <= 64:
            raise InvalidRequestError("promote_threads lies between 1 and 64", promote_threads=self.promote_threads)
