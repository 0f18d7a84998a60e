from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_DEVICE: _ClassVar[Tier]
    TIER_HOST: _ClassVar[Tier]
    TIER_DISK: _ClassVar[Tier]
    TIER_REMOTE: _ClassVar[Tier]

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    DURABILITY_VOLATILE: _ClassVar[Durability]
    DURABILITY_INTERVAL: _ClassVar[Durability]
    DURABILITY_STRICT: _ClassVar[Durability]

class MissReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISS_REASON_UNSPECIFIED: _ClassVar[MissReason]
    MISS_REASON_NEVER_SEEN: _ClassVar[MissReason]
    MISS_REASON_EVICTED: _ClassVar[MissReason]
    MISS_REASON_NAMESPACE: _ClassVar[MissReason]
    MISS_REASON_CHECKSUM: _ClassVar[MissReason]
    MISS_REASON_TIMEOUT: _ClassVar[MissReason]
    MISS_REASON_CAPACITY: _ClassVar[MissReason]
    MISS_REASON_UNAVAILABLE: _ClassVar[MissReason]

class ReserveOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESERVE_OUTCOME_UNSPECIFIED: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_GRANTED: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_PRESENT: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_PENDING: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_REFUSED: _ClassVar[ReserveOutcome]
TIER_UNSPECIFIED: Tier
TIER_DEVICE: Tier
TIER_HOST: Tier
TIER_DISK: Tier
TIER_REMOTE: Tier
DURABILITY_UNSPECIFIED: Durability
DURABILITY_VOLATILE: Durability
DURABILITY_INTERVAL: Durability
DURABILITY_STRICT: Durability
MISS_REASON_UNSPECIFIED: MissReason
MISS_REASON_NEVER_SEEN: MissReason
MISS_REASON_EVICTED: MissReason
MISS_REASON_NAMESPACE: MissReason
MISS_REASON_CHECKSUM: MissReason
MISS_REASON_TIMEOUT: MissReason
MISS_REASON_CAPACITY: MissReason
MISS_REASON_UNAVAILABLE: MissReason
RESERVE_OUTCOME_UNSPECIFIED: ReserveOutcome
RESERVE_OUTCOME_GRANTED: ReserveOutcome
RESERVE_OUTCOME_PRESENT: ReserveOutcome
RESERVE_OUTCOME_PENDING: ReserveOutcome
RESERVE_OUTCOME_REFUSED: ReserveOutcome

class Layout(_message.Message):
    __slots__ = ("shape", "dtype", "block_tokens")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    block_tokens: int
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., block_tokens: _Optional[int] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("weights", "config", "kv_dtype", "geometry", "lora", "tenant", "salt")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    weights: str
    config: str
    kv_dtype: str
    geometry: str
    lora: str
    tenant: str
    salt: str
    def __init__(self, weights: _Optional[str] = ..., config: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., geometry: _Optional[str] = ..., lora: _Optional[str] = ..., tenant: _Optional[str] = ..., salt: _Optional[str] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("label", "attach_secret")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    ATTACH_SECRET_FIELD_NUMBER: _ClassVar[int]
    label: str
    attach_secret: bytes
    def __init__(self, label: _Optional[str] = ..., attach_secret: _Optional[bytes] = ...) -> None: ...

class SessionEvent(_message.Message):
    __slots__ = ("opened", "closing")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    opened: SessionOpened
    closing: SessionClosing
    def __init__(self, opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., closing: _Optional[_Union[SessionClosing, _Mapping]] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("session_secret", "daemon_version", "protocol_version", "lease_ttl_s", "reservation_ttl_s")
    SESSION_SECRET_FIELD_NUMBER: _ClassVar[int]
    DAEMON_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_TTL_S_FIELD_NUMBER: _ClassVar[int]
    session_secret: bytes
    daemon_version: str
    protocol_version: int
    lease_ttl_s: float
    reservation_ttl_s: float
    def __init__(self, session_secret: _Optional[bytes] = ..., daemon_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., lease_ttl_s: _Optional[float] = ..., reservation_ttl_s: _Optional[float] = ...) -> None: ...

class SessionClosing(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("identity", "layout", "durability")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    layout: Layout
    durability: Durability
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("namespace_id", "block_bytes", "durability")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    block_bytes: int
    durability: Durability
    def __init__(self, namespace_id: _Optional[bytes] = ..., block_bytes: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("namespace_id", "keys")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class LookupReply(_message.Message):
    __slots__ = ("tiers", "miss")
    TIERS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedScalarFieldContainer[Tier]
    miss: MissReason
    def __init__(self, tiers: _Optional[_Iterable[_Union[Tier, str]]] = ..., miss: _Optional[_Union[MissReason, str]] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("namespace_id", "keys", "parent")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    parent: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., parent: _Optional[bytes] = ...) -> None: ...

class ReserveReply(_message.Message):
    __slots__ = ("reservation_id", "outcomes", "offsets")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    reservation_id: int
    outcomes: _containers.RepeatedScalarFieldContainer[ReserveOutcome]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reservation_id: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[ReserveOutcome, str]]] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("reservation_id", "keys", "durability")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    reservation_id: int
    keys: bytes
    durability: Durability
    def __init__(self, reservation_id: _Optional[int] = ..., keys: _Optional[bytes] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("committed",)
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    committed: int
    def __init__(self, committed: _Optional[int] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("reservation_id", "keys")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    reservation_id: int
    keys: bytes
    def __init__(self, reservation_id: _Optional[int] = ..., keys: _Optional[bytes] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ("aborted",)
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    aborted: int
    def __init__(self, aborted: _Optional[int] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("namespace_id", "keys")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class AcquireReply(_message.Message):
    __slots__ = ("lease_id", "tiers", "miss", "offsets")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    tiers: _containers.RepeatedScalarFieldContainer[Tier]
    miss: MissReason
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_id: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[Tier, str]]] = ..., miss: _Optional[_Union[MissReason, str]] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class AwaitRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    def __init__(self, lease_id: _Optional[int] = ...) -> None: ...

class AwaitEvent(_message.Message):
    __slots__ = ("ready", "ended")
    READY_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ready: BlocksReady
    ended: LeaseEnded
    def __init__(self, ready: _Optional[_Union[BlocksReady, _Mapping]] = ..., ended: _Optional[_Union[LeaseEnded, _Mapping]] = ...) -> None: ...

class BlocksReady(_message.Message):
    __slots__ = ("start_idx", "offsets")
    START_IDX_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    start_idx: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start_idx: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaseEnded(_message.Message):
    __slots__ = ("num_blocks", "miss")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    miss: MissReason
    def __init__(self, num_blocks: _Optional[int] = ..., miss: _Optional[_Union[MissReason, str]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease_ids",)
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrefetchRequest(_message.Message):
    __slots__ = ("namespace_id", "keys")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class PrefetchReply(_message.Message):
    __slots__ = ("started",)
    STARTED_FIELD_NUMBER: _ClassVar[int]
    started: int
    def __init__(self, started: _Optional[int] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("namespace_id", "keys")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("namespace_id",)
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ...) -> None: ...

class ClearReply(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("name", "capacity_bytes", "used_bytes", "blocks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity_bytes: int
    used_bytes: int
    blocks: int
    def __init__(self, name: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., blocks: _Optional[int] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("version", "uptime_s", "tiers", "hits", "misses", "sessions", "leases", "reservations", "counters", "degraded")
    class HitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MissesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    version: str
    uptime_s: float
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    hits: _containers.ScalarMap[str, int]
    misses: _containers.ScalarMap[str, int]
    sessions: int
    leases: int
    reservations: int
    counters: _containers.ScalarMap[str, int]
    degraded: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., uptime_s: _Optional[float] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., hits: _Optional[_Mapping[str, int]] = ..., misses: _Optional[_Mapping[str, int]] = ..., sessions: _Optional[int] = ..., leases: _Optional[int] = ..., reservations: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., degraded: _Optional[_Iterable[str]] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushReply(_message.Message):
    __slots__ = ("written",)
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    written: int
    def __init__(self, written: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("written",)
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    written: int
    def __init__(self, written: _Optional[int] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: PutHeader
    chunk: PutChunk
    def __init__(self, header: _Optional[_Union[PutHeader, _Mapping]] = ..., chunk: _Optional[_Union[PutChunk, _Mapping]] = ...) -> None: ...

class PutHeader(_message.Message):
    __slots__ = ("namespace_id", "keys", "parent", "durability")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    parent: bytes
    durability: Durability
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class PutChunk(_message.Message):
    __slots__ = ("block_idx", "data")
    BLOCK_IDX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    block_idx: int
    data: bytes
    def __init__(self, block_idx: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutReply(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[ReserveOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ReserveOutcome, str]]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("namespace_id", "keys")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class GetEvent(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: GetHeader
    chunk: GetChunk
    def __init__(self, header: _Optional[_Union[GetHeader, _Mapping]] = ..., chunk: _Optional[_Union[GetChunk, _Mapping]] = ...) -> None: ...

class GetHeader(_message.Message):
    __slots__ = ("tiers", "miss", "block_bytes")
    TIERS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedScalarFieldContainer[Tier]
    miss: MissReason
    block_bytes: int
    def __init__(self, tiers: _Optional[_Iterable[_Union[Tier, str]]] = ..., miss: _Optional[_Union[MissReason, str]] = ..., block_bytes: _Optional[int] = ...) -> None: ...

class GetChunk(_message.Message):
    __slots__ = ("block_idx", "data")
    BLOCK_IDX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    block_idx: int
    data: bytes
    def __init__(self, block_idx: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyEvent(_message.Message):
    __slots__ = ("progress", "done")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    progress: VerifyProgress
    done: VerifyDone
    def __init__(self, progress: _Optional[_Union[VerifyProgress, _Mapping]] = ..., done: _Optional[_Union[VerifyDone, _Mapping]] = ...) -> None: ...

class VerifyProgress(_message.Message):
    __slots__ = ("frames", "frames_total", "bytes")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    frames: int
    frames_total: int
    bytes: int
    def __init__(self, frames: _Optional[int] = ..., frames_total: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class DamagedFrame(_message.Message):
    __slots__ = ("key", "where", "what")
    KEY_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    where: str
    what: str
    def __init__(self, key: _Optional[bytes] = ..., where: _Optional[str] = ..., what: _Optional[str] = ...) -> None: ...

class VerifyDone(_message.Message):
    __slots__ = ("frames", "bytes", "damaged")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    frames: int
    bytes: int
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedFrame]
    def __init__(self, frames: _Optional[int] = ..., bytes: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[DamagedFrame, _Mapping]]] = ...) -> None: ...
