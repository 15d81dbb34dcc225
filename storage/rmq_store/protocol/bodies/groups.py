"""Bodies about groups: settings, offsets, members (SubscriptionGroupConfig.java, ConsumeStats.java)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Final

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.bodies.topics import DataVersion
from rmq_store.protocol.messages import MessageQueue

CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig(JsonBody):
    """The settings of a group at one broker (200, 201, 352); the defaults are Java's."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    group_retry_policy: Any = None
    attributes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupTable(JsonBody):
    """All groups of a broker (201)."""

    subscription_group_table: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList(JsonBody):
    """Names of groups (300)."""

    group_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWrapper(JsonBody):
    """A group in one queue; `last_timestamp` is the store time in ms of its last message, 0 if it is not known."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int | None = None
    last_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStats(JsonBody):
    """The offsets of a group at one broker (208)."""

    offset_table: Mapping[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatsList(JsonBody):
    """The offsets of all groups at one broker (317): for each group those of each of its topics."""

    consume_stats_list: tuple[Mapping[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str = ""
    total_diff: int = 0
    total_inflight_diff: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimeSpan(JsonBody):
    """Store times of one queue in ms, -1 without a message: of its first and last message, and of the last one that a
    group has consumed. `delay_time`: the age of the oldest one that it has not, in ms; 0 if it has consumed all.
    """

    wire_names: ClassVar = {
        "min_timestamp": "minTimeStamp", "max_timestamp": "maxTimeStamp", "consume_timestamp": "consumeTimeStamp",
    }  # fmt: skip

    message_queue: MessageQueue
    min_timestamp: int
    max_timestamp: int
    consume_timestamp: int
    delay_time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeTimeSpanBody(JsonBody):
    """How far behind a group is in each queue of a topic (303)."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData(JsonBody):
    """A topic and a condition; `code_set` has the hash of each tag, as String.hashCode."""

    topic: str
    sub_string: str
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySubscriptionResponseBody(JsonBody):
    """The subscription of a group's members to a topic (345); without one no member has it."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(JsonBody):
    """One live client of a group; `version` is the ordinal of its MQVersion."""

    client_id: str
    client_addr: str = ""
    language: str = "OTHER"
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection(JsonBody):
    """The live members of a group at one broker (203)."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: Mapping[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None

    ordinals: ClassVar = {
        "consume_type": CONSUME_TYPES, "message_model": MESSAGE_MODELS, "consume_from_where": CONSUME_FROM_WHERE,
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConnection(JsonBody):
    """The live producers of a group at one broker (204)."""

    connection_set: tuple[Connection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo(JsonBody):
    """One live producer; `last_update_timestamp`: when it was heard for the last time, in ms."""

    wire_names: ClassVar = {"remote_ip": "remoteIP"}

    client_id: str
    remote_ip: str = ""
    language: str = "OTHER"
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTableInfo(JsonBody):
    """The live producers of all groups at one broker (328)."""

    data: Mapping[str, tuple[ProducerInfo, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerList(JsonBody):
    """The client ids of a group (38)."""

    consumer_id_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetBody(JsonBody):
    """The offsets that a group is set to (220, and the answer to 222)."""

    offset_table: Mapping[MessageQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatusBody(JsonBody):
    """The offsets in the memory of consumers (221): of one client, or by client id."""

    message_queue_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumer_table: Mapping[str, Mapping[MessageQueue, int]] | None = None
