from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lineage(_message.Message):
    __slots__ = ("step", "quorum_id")
    STEP_FIELD_NUMBER: _ClassVar[int]
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    step: int
    quorum_id: int
    def __init__(self, step: _Optional[int] = ..., quorum_id: _Optional[int] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("run", "config_digest", "groups", "min_groups", "start_wait_s", "failure_detection_s", "steps", "first_step_limit_s", "join_interval_s", "exact", "software", "machine", "heal_limit_s")
    class SoftwareEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MachineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MIN_GROUPS_FIELD_NUMBER: _ClassVar[int]
    START_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    FAILURE_DETECTION_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    JOIN_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    HEAL_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    run: str
    config_digest: str
    groups: int
    min_groups: int
    start_wait_s: float
    failure_detection_s: float
    steps: int
    first_step_limit_s: float
    join_interval_s: float
    exact: bool
    software: _containers.ScalarMap[str, str]
    machine: _containers.ScalarMap[str, str]
    heal_limit_s: float
    def __init__(self, run: _Optional[str] = ..., config_digest: _Optional[str] = ..., groups: _Optional[int] = ..., min_groups: _Optional[int] = ..., start_wait_s: _Optional[float] = ..., failure_detection_s: _Optional[float] = ..., steps: _Optional[int] = ..., first_step_limit_s: _Optional[float] = ..., join_interval_s: _Optional[float] = ..., exact: _Optional[bool] = ..., software: _Optional[_Mapping[str, str]] = ..., machine: _Optional[_Mapping[str, str]] = ..., heal_limit_s: _Optional[float] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("terms", "group", "life", "pid", "ranks", "host", "config", "manager")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    terms: Terms
    group: str
    life: str
    pid: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    host: str
    config: str
    manager: bool
    def __init__(self, terms: _Optional[_Union[Terms, _Mapping]] = ..., group: _Optional[str] = ..., life: _Optional[str] = ..., pid: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., host: _Optional[str] = ..., config: _Optional[str] = ..., manager: _Optional[bool] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "quorum_lost")
    REASON_FIELD_NUMBER: _ClassVar[int]
    QUORUM_LOST_FIELD_NUMBER: _ClassVar[int]
    reason: str
    quorum_lost: bool
    def __init__(self, reason: _Optional[str] = ..., quorum_lost: _Optional[bool] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("seated", "refused")
    SEATED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    seated: Seated
    refused: Refusal
    def __init__(self, seated: _Optional[_Union[Seated, _Mapping]] = ..., refused: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class Seated(_message.Message):
    __slots__ = ("incarnation", "epoch", "ended")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    epoch: int
    ended: Lineage
    def __init__(self, incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., ended: _Optional[_Union[Lineage, _Mapping]] = ...) -> None: ...

class VouchRequest(_message.Message):
    __slots__ = ("group", "incarnation", "store", "golden")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    incarnation: int
    store: str
    golden: str
    def __init__(self, group: _Optional[str] = ..., incarnation: _Optional[int] = ..., store: _Optional[str] = ..., golden: _Optional[str] = ...) -> None: ...

class VouchReply(_message.Message):
    __slots__ = ("refused", "buried", "ended", "epoch")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BURIED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    refused: Refusal
    buried: Refusal
    ended: Lineage
    epoch: int
    def __init__(self, refused: _Optional[_Union[Refusal, _Mapping]] = ..., buried: _Optional[_Union[Refusal, _Mapping]] = ..., ended: _Optional[_Union[Lineage, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class AskRequest(_message.Message):
    __slots__ = ("group", "incarnation", "lineage", "void", "drain", "finished", "fresh", "disk", "transfer", "disputed", "needs_state")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    DISPUTED_FIELD_NUMBER: _ClassVar[int]
    NEEDS_STATE_FIELD_NUMBER: _ClassVar[int]
    group: str
    incarnation: int
    lineage: Lineage
    void: bool
    drain: bool
    finished: bool
    fresh: bool
    disk: _containers.RepeatedCompositeFieldContainer[Lineage]
    transfer: _containers.RepeatedScalarFieldContainer[str]
    disputed: bool
    needs_state: bool
    def __init__(self, group: _Optional[str] = ..., incarnation: _Optional[int] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ..., void: _Optional[bool] = ..., drain: _Optional[bool] = ..., finished: _Optional[bool] = ..., fresh: _Optional[bool] = ..., disk: _Optional[_Iterable[_Union[Lineage, _Mapping]]] = ..., transfer: _Optional[_Iterable[str]] = ..., disputed: _Optional[bool] = ..., needs_state: _Optional[bool] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("group", "incarnation", "transfer")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    group: str
    incarnation: int
    transfer: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., incarnation: _Optional[int] = ..., transfer: _Optional[_Iterable[str]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("attempt", "quorum_id", "kind", "members", "up_to_date", "current", "restore", "reason", "fences")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    UP_TO_DATE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    quorum_id: int
    kind: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    up_to_date: _containers.RepeatedScalarFieldContainer[str]
    current: Lineage
    restore: Lineage
    reason: str
    fences: _containers.RepeatedCompositeFieldContainer[Lineage]
    def __init__(self, attempt: _Optional[int] = ..., quorum_id: _Optional[int] = ..., kind: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., up_to_date: _Optional[_Iterable[str]] = ..., current: _Optional[_Union[Lineage, _Mapping]] = ..., restore: _Optional[_Union[Lineage, _Mapping]] = ..., reason: _Optional[str] = ..., fences: _Optional[_Iterable[_Union[Lineage, _Mapping]]] = ...) -> None: ...

class AskReply(_message.Message):
    __slots__ = ("grant", "refused", "buried", "ended", "epoch")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BURIED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    grant: Grant
    refused: Refusal
    buried: Refusal
    ended: Lineage
    epoch: int
    def __init__(self, grant: _Optional[_Union[Grant, _Mapping]] = ..., refused: _Optional[_Union[Refusal, _Mapping]] = ..., buried: _Optional[_Union[Refusal, _Mapping]] = ..., ended: _Optional[_Union[Lineage, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class RankPulse(_message.Message):
    __slots__ = ("attempt", "phase", "age_s", "silent_s")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    phase: str
    age_s: float
    silent_s: float
    def __init__(self, attempt: _Optional[int] = ..., phase: _Optional[str] = ..., age_s: _Optional[float] = ..., silent_s: _Optional[float] = ...) -> None: ...

class Pulse(_message.Message):
    __slots__ = ("group", "incarnation", "ranks", "usual_s", "step", "tokens")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    USUAL_S_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    group: str
    incarnation: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankPulse]
    usual_s: float
    step: int
    tokens: int
    def __init__(self, group: _Optional[str] = ..., incarnation: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankPulse, _Mapping]]] = ..., usual_s: _Optional[float] = ..., step: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class Dead(_message.Message):
    __slots__ = ("group", "incarnation", "cause", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    incarnation: int
    cause: str
    reason: str
    def __init__(self, group: _Optional[str] = ..., incarnation: _Optional[int] = ..., cause: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("epoch", "dead", "over", "buried", "ended")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    BURIED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    dead: _containers.RepeatedCompositeFieldContainer[Dead]
    over: _containers.RepeatedScalarFieldContainer[int]
    buried: str
    ended: Lineage
    def __init__(self, epoch: _Optional[int] = ..., dead: _Optional[_Iterable[_Union[Dead, _Mapping]]] = ..., over: _Optional[_Iterable[int]] = ..., buried: _Optional[str] = ..., ended: _Optional[_Union[Lineage, _Mapping]] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("group", "incarnation", "phase", "attempt", "step", "tokens", "ended")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    group: str
    incarnation: int
    phase: str
    attempt: int
    step: int
    tokens: int
    ended: Lineage
    def __init__(self, group: _Optional[str] = ..., incarnation: _Optional[int] = ..., phase: _Optional[str] = ..., attempt: _Optional[int] = ..., step: _Optional[int] = ..., tokens: _Optional[int] = ..., ended: _Optional[_Union[Lineage, _Mapping]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("group", "incarnation", "life", "cause", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    incarnation: int
    life: str
    cause: str
    reason: str
    def __init__(self, group: _Optional[str] = ..., incarnation: _Optional[int] = ..., life: _Optional[str] = ..., cause: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("refused", "epoch")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    refused: Refusal
    epoch: int
    def __init__(self, refused: _Optional[_Union[Refusal, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class KillRequest(_message.Message):
    __slots__ = ("group", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    reason: str
    def __init__(self, group: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigReply(_message.Message):
    __slots__ = ("config",)
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    config: str
    def __init__(self, config: _Optional[str] = ...) -> None: ...
