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

class PageOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAGE_OUTCOME_UNSPECIFIED: _ClassVar[PageOutcome]
    PAGE_OUTCOME_COMMITTED: _ClassVar[PageOutcome]
    PAGE_OUTCOME_PRESENT: _ClassVar[PageOutcome]
    PAGE_OUTCOME_REFUSED: _ClassVar[PageOutcome]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]
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
PAGE_OUTCOME_UNSPECIFIED: PageOutcome
PAGE_OUTCOME_COMMITTED: PageOutcome
PAGE_OUTCOME_PRESENT: PageOutcome
PAGE_OUTCOME_REFUSED: PageOutcome
PRIORITY_UNSPECIFIED: Priority
PRIORITY_LOW: Priority
PRIORITY_NORMAL: Priority
PRIORITY_HIGH: Priority

class Hints(_message.Message):
    __slots__ = ("request_id", "session_closed", "expected_idle_s", "priority", "pin_until_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_CLOSED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_IDLE_S_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PIN_UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    session_closed: bool
    expected_idle_s: float
    priority: Priority
    pin_until_s: float
    def __init__(self, request_id: _Optional[str] = ..., session_closed: _Optional[bool] = ..., expected_idle_s: _Optional[float] = ..., priority: _Optional[_Union[Priority, str]] = ..., pin_until_s: _Optional[float] = ...) -> None: ...

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
    __slots__ = ("namespace_id", "keys", "parent", "hints")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    parent: bytes
    hints: Hints
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("namespace_id", "keys", "hints")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    hints: Hints
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

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

class AdviseRequest(_message.Message):
    __slots__ = ("namespace_id", "keys", "hints")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    hints: Hints
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

class AdviseReply(_message.Message):
    __slots__ = ("advised",)
    ADVISED_FIELD_NUMBER: _ClassVar[int]
    advised: int
    def __init__(self, advised: _Optional[int] = ...) -> None: ...

class ReservePagesRequest(_message.Message):
    __slots__ = ("pool_id", "count")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    pool_id: int
    count: int
    def __init__(self, pool_id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ReservePagesReply(_message.Message):
    __slots__ = ("pages",)
    PAGES_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pages: _Optional[_Iterable[int]] = ...) -> None: ...

class PageRun(_message.Message):
    __slots__ = ("keys", "pages", "parent")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    pages: _containers.RepeatedScalarFieldContainer[int]
    parent: bytes
    def __init__(self, keys: _Optional[bytes] = ..., pages: _Optional[_Iterable[int]] = ..., parent: _Optional[bytes] = ...) -> None: ...

class CommitPagesRequest(_message.Message):
    __slots__ = ("pool_id", "namespace_id", "runs", "hints")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    pool_id: int
    namespace_id: bytes
    runs: _containers.RepeatedCompositeFieldContainer[PageRun]
    hints: Hints
    def __init__(self, pool_id: _Optional[int] = ..., namespace_id: _Optional[bytes] = ..., runs: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

class CommitPagesReply(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[PageOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[PageOutcome, str]]] = ...) -> None: ...

class AcquirePagesRequest(_message.Message):
    __slots__ = ("pool_id", "namespace_id", "keys", "hints")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    pool_id: int
    namespace_id: bytes
    keys: bytes
    hints: Hints
    def __init__(self, pool_id: _Optional[int] = ..., namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

class AcquirePagesReply(_message.Message):
    __slots__ = ("pages", "tiers", "miss", "num_ready", "await_id")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    NUM_READY_FIELD_NUMBER: _ClassVar[int]
    AWAIT_ID_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedScalarFieldContainer[int]
    tiers: _containers.RepeatedScalarFieldContainer[Tier]
    miss: MissReason
    num_ready: int
    await_id: int
    def __init__(self, pages: _Optional[_Iterable[int]] = ..., tiers: _Optional[_Iterable[_Union[Tier, str]]] = ..., miss: _Optional[_Union[MissReason, str]] = ..., num_ready: _Optional[int] = ..., await_id: _Optional[int] = ...) -> None: ...

class AwaitPagesRequest(_message.Message):
    __slots__ = ("pool_id", "await_id")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    AWAIT_ID_FIELD_NUMBER: _ClassVar[int]
    pool_id: int
    await_id: int
    def __init__(self, pool_id: _Optional[int] = ..., await_id: _Optional[int] = ...) -> None: ...

class AwaitPagesEvent(_message.Message):
    __slots__ = ("ready", "ended")
    READY_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ready: PagesReady
    ended: PagesEnded
    def __init__(self, ready: _Optional[_Union[PagesReady, _Mapping]] = ..., ended: _Optional[_Union[PagesEnded, _Mapping]] = ...) -> None: ...

class PagesReady(_message.Message):
    __slots__ = ("num_ready",)
    NUM_READY_FIELD_NUMBER: _ClassVar[int]
    num_ready: int
    def __init__(self, num_ready: _Optional[int] = ...) -> None: ...

class PagesEnded(_message.Message):
    __slots__ = ("num_blocks", "miss")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    miss: MissReason
    def __init__(self, num_blocks: _Optional[int] = ..., miss: _Optional[_Union[MissReason, str]] = ...) -> None: ...

class ReleasePagesRequest(_message.Message):
    __slots__ = ("pool_id", "pages")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    pool_id: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pool_id: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleasePagesReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("version", "uptime_s", "tiers", "hits", "misses", "sessions", "leases", "reservations", "counters", "degraded", "policies", "write_budget_left_bytes")
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
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    WRITE_BUDGET_LEFT_BYTES_FIELD_NUMBER: _ClassVar[int]
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
    policies: _containers.RepeatedCompositeFieldContainer[PolicyStats]
    write_budget_left_bytes: int
    def __init__(self, version: _Optional[str] = ..., uptime_s: _Optional[float] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., hits: _Optional[_Mapping[str, int]] = ..., misses: _Optional[_Mapping[str, int]] = ..., sessions: _Optional[int] = ..., leases: _Optional[int] = ..., reservations: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., degraded: _Optional[_Iterable[str]] = ..., policies: _Optional[_Iterable[_Union[PolicyStats, _Mapping]]] = ..., write_budget_left_bytes: _Optional[int] = ...) -> None: ...

class PolicyStats(_message.Message):
    __slots__ = ("tier", "name", "t1_bytes", "t2_bytes", "b1_keys", "b2_keys", "ghost_hits_b1", "ghost_hits_b2", "p", "w", "waiting_bytes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    T1_BYTES_FIELD_NUMBER: _ClassVar[int]
    T2_BYTES_FIELD_NUMBER: _ClassVar[int]
    B1_KEYS_FIELD_NUMBER: _ClassVar[int]
    B2_KEYS_FIELD_NUMBER: _ClassVar[int]
    GHOST_HITS_B1_FIELD_NUMBER: _ClassVar[int]
    GHOST_HITS_B2_FIELD_NUMBER: _ClassVar[int]
    P_FIELD_NUMBER: _ClassVar[int]
    W_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    tier: str
    name: str
    t1_bytes: int
    t2_bytes: int
    b1_keys: int
    b2_keys: int
    ghost_hits_b1: int
    ghost_hits_b2: int
    p: float
    w: float
    waiting_bytes: int
    def __init__(self, tier: _Optional[str] = ..., name: _Optional[str] = ..., t1_bytes: _Optional[int] = ..., t2_bytes: _Optional[int] = ..., b1_keys: _Optional[int] = ..., b2_keys: _Optional[int] = ..., ghost_hits_b1: _Optional[int] = ..., ghost_hits_b2: _Optional[int] = ..., p: _Optional[float] = ..., w: _Optional[float] = ..., waiting_bytes: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("key", "request_id", "token_ids")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    request_id: str
    token_ids: bytes
    def __init__(self, key: _Optional[bytes] = ..., request_id: _Optional[str] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("key", "request_id", "found", "tier", "miss", "reason", "events")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    request_id: str
    found: bool
    tier: Tier
    miss: MissReason
    reason: str
    events: _containers.RepeatedCompositeFieldContainer[TrailEvent]
    def __init__(self, key: _Optional[bytes] = ..., request_id: _Optional[str] = ..., found: _Optional[bool] = ..., tier: _Optional[_Union[Tier, str]] = ..., miss: _Optional[_Union[MissReason, str]] = ..., reason: _Optional[str] = ..., events: _Optional[_Iterable[_Union[TrailEvent, _Mapping]]] = ...) -> None: ...

class TrailEvent(_message.Message):
    __slots__ = ("at", "what", "why")
    AT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    at: float
    what: str
    why: str
    def __init__(self, at: _Optional[float] = ..., what: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class RecordRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordEvent(_message.Message):
    __slots__ = ("timestamp_ms", "input_length", "hash_ids", "block_tokens", "session", "dropped", "is_save")
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    INPUT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HASH_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    IS_SAVE_FIELD_NUMBER: _ClassVar[int]
    timestamp_ms: float
    input_length: int
    hash_ids: _containers.RepeatedScalarFieldContainer[int]
    block_tokens: int
    session: int
    dropped: int
    is_save: bool
    def __init__(self, timestamp_ms: _Optional[float] = ..., input_length: _Optional[int] = ..., hash_ids: _Optional[_Iterable[int]] = ..., block_tokens: _Optional[int] = ..., session: _Optional[int] = ..., dropped: _Optional[int] = ..., is_save: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("namespace_id", "keys", "parent", "durability", "hints")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    parent: bytes
    durability: Durability
    hints: Hints
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., durability: _Optional[_Union[Durability, str]] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("namespace_id", "keys", "hints")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    hints: Hints
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., hints: _Optional[_Union[Hints, _Mapping]] = ...) -> None: ...

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
