"""Bodies about topics: settings, offsets, rates (TopicConfig.java, TopicStatsTable.java, BrokerStatsData.java)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.messages import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion(JsonBody):
    """The version of a broker's tables; `timestamp` is in ms."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(JsonBody):
    """The settings of a topic at one broker (351, 21). `mapping_detail` is there for static topics (5.x)."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] | None = None
    mapping_detail: Any = None

    ordinals: ClassVar = {"topic_filter_type": ("SINGLE_TAG", "MULTI_TAG")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigTable(JsonBody):
    """All topics of a broker (21, and in registrations)."""

    topic_config_table: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffset(JsonBody):
    """Messages [min_offset, max_offset) of a queue; `last_update_timestamp` is in ms, 0 if the queue is empty."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatsTable(JsonBody):
    """The offsets of a topic's queues at one broker (202)."""

    offset_table: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatsItem(JsonBody):
    """A rate over one span of time: the sum, the rate per second, and the average for each call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatsData(JsonBody):
    """One rate of a broker (315)."""

    stats_minute: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_day: BrokerStatsItem


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeQueueData(JsonBody):
    """One entry of a queue's files: log offset and size in bytes of the record, and the hash of its tag.

    The rest is there if the request has named a group: whether its filter takes the message.
    """

    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueueResponseBody(JsonBody):
    """Entries of a queue's files (321); the queue has [min_queue_index, max_queue_index)."""

    subscription_data: Any = None
    filter_data: str | None = None
    queue_data: tuple[ConsumeQueueData, ...] = ()
    max_queue_index: int = 0
    min_queue_index: int = 0
