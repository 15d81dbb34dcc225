"""Typed headers of the requests of `mqadmin` to brokers (CreateTopicRequestHeader.java and others)."""

from __future__ import annotations

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.header_fields import Int32, RequestHeader, ResponseHeader
from rmq_store.protocol.wire.request_codes import RequestCode


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequestHeader(RequestHeader):
    """A topic, new or changed. `perm`: 4 read, 2 write, 1 inherit. `attributes`: `+key=value,-key`."""

    code = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicRequestHeader(RequestHeader):
    """A topic, at one broker."""

    code = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicFromNamesrvRequestHeader(RequestHeader):
    """A topic, in the routes of a name server."""

    code = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigRequestHeader(RequestHeader):
    """All topics of a broker."""

    code = RequestCode.GET_ALL_TOPIC_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicConfigRequestHeader(RequestHeader):
    """One topic of a broker (5.x)."""

    code = RequestCode.GET_TOPIC_CONFIG

    topic: str
    lo: bool | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSubscriptionGroupRequestHeader(RequestHeader):
    """A group, new or changed; it is in the body."""

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSubscriptionGroupConfigRequestHeader(RequestHeader):
    """One group of a broker (5.x)."""

    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSystemTopicListFromBrokerRequestHeader(RequestHeader):
    """The names of the system's topics."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllSubscriptionGroupRequestHeader(RequestHeader):
    """All groups of a broker."""

    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroupRequestHeader(RequestHeader):
    """A group, at one broker."""

    code = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group_name: str
    clean_offset: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicStatsInfoRequestHeader(RequestHeader):
    """The offsets of all queues of a topic."""

    code = RequestCode.GET_TOPIC_STATS_INFO

    topic: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerConnectionListRequestHeader(RequestHeader):
    """The live members of a group."""

    code = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumer_group: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetProducerConnectionListRequestHeader(RequestHeader):
    """The live producers of a group."""

    code = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsRequestHeader(RequestHeader):
    """A group's offsets, in all of its topics or in one."""

    code = RequestCode.GET_CONSUME_STATS

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicConsumeByWhoRequestHeader(RequestHeader):
    """The groups that consume a topic."""

    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicsByConsumerRequestHeader(RequestHeader):
    """The topics that a group consumes."""

    code = RequestCode.QUERY_TOPICS_BY_CONSUMER

    group: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySubscriptionByConsumerRequestHeader(RequestHeader):
    """The subscription of a group's members to a topic."""

    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str
    topic: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeTimeSpanRequestHeader(RequestHeader):
    """How far behind a group is in each queue of a topic."""

    code = RequestCode.QUERY_CONSUME_TIME_SPAN

    topic: str
    group: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsInBrokerHeader(RequestHeader):
    """The offsets of all groups; `is_order`: in ordered topics only."""

    code = RequestCode.GET_BROKER_CONSUME_STATS

    is_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllProducerInfoRequestHeader(RequestHeader):
    """The producers of all groups."""

    code = RequestCode.GET_ALL_PRODUCER_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerRuntimeInfoRequestHeader(RequestHeader):
    """The figures of a broker."""

    code = RequestCode.GET_BROKER_RUNTIME_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeHAInfoRequestHeader(RequestHeader):
    """The question to a master of 5.x where its HA port is. With fields, it would tell a slave its master."""

    code = RequestCode.EXCHANGE_BROKER_HA_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeHAInfoResponseHeader(ResponseHeader):
    """The addresses of a master; a slave leaves them out."""

    master_ha_address: str | None = None
    master_address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigRequestHeader(RequestHeader):
    """The settings of a broker."""

    code = RequestCode.GET_BROKER_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponseHeader(ResponseHeader):
    """The version of the settings in the body."""

    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBrokerConfigRequestHeader(RequestHeader):
    """Settings to change; they are in the body, as properties."""

    code = RequestCode.UPDATE_BROKER_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBrokerStatsDataRequestHeader(RequestHeader):
    """One rate, for example TOPIC_PUT_NUMS of a topic."""

    code = RequestCode.VIEW_BROKER_STATS_DATA

    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllConsumerOffsetRequestHeader(RequestHeader):
    """consumerOffset.json, for a slave."""

    code = RequestCode.GET_ALL_CONSUMER_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllDelayOffsetRequestHeader(RequestHeader):
    """delayOffset.json, for a slave."""

    code = RequestCode.GET_ALL_DELAY_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTimerCheckPointRequestHeader(RequestHeader):
    """timercheck, for a slave (5.x)."""

    code = RequestCode.GET_TIMER_CHECK_POINT


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTimerMetricsRequestHeader(RequestHeader):
    """timermetrics, for a slave (5.x)."""

    code = RequestCode.GET_TIMER_METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllMessageRequestModeRequestHeader(RequestHeader):
    """messageRequestMode.json, for a slave (5.x)."""

    code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueueRequestHeader(RequestHeader):
    """`count` entries of a queue's files from queue offset `index` on."""

    code = RequestCode.QUERY_CONSUME_QUEUE

    topic: str
    queue_id: Int32
    index: int
    count: Int32
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanExpiredConsumeQueueRequestHeader(RequestHeader):
    """Queue files whose messages are gone are to be deleted."""

    code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteExpiredCommitLogRequestHeader(RequestHeader):
    """Files of the log that are older than fileReservedTime are to be deleted now, at whatever hour."""

    code = RequestCode.DELETE_EXPIRED_COMMITLOG


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanUnusedTopicRequestHeader(RequestHeader):
    """Queues of topics that are gone are to be deleted."""

    code = RequestCode.CLEAN_UNUSED_TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateNamesrvConfigRequestHeader(RequestHeader):
    """Settings of a name server as text: no server of ours takes them (CVE-2023-37582)."""

    code = 318


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateControllerConfigRequestHeader(RequestHeader):
    """Settings of a controller as text: no server of ours takes them."""

    code = 1009


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceClockRequestHeader(RequestHeader):
    """Moves the virtual clock of a served store forward by `duration_ms`; 0 only asks for the time.

    RocketMQ has no such request. Its code spells RMQ, far from all codes of RocketMQ, and does not fit the 16 bits of
    its binary headers: only JSON headers can carry it.
    """

    code = 0x524D51

    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceClockResponseHeader(ResponseHeader):
    """The new time in ms since 1970."""

    time_ms: int
