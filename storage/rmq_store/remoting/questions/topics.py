"""Topics: settings, ends of all queues, creation, deletion (AdminBrokerProcessor.java).

`read_*` raise MQBrokerError if the answer is a refusal, and the error itself if one stands in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from rmq_store.protocol.bodies.topics import TopicConfig, TopicConfigTable, TopicOffset, TopicStatsTable
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.admin_headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.questions.answer import Given, Names, checked

_DEFAULT_TOPIC: Final = "TBW102"


def ask_create_topic(names: Names, config: TopicConfig, attributes: Mapping[str, str | None]) -> RemotingCommand:
    """Make a topic, or change it (17). `attributes` are changes: a value, or None to remove one."""
    changes = [f"-{name}" if value is None else f"+{name}={value}" for name, value in attributes.items()]
    header = CreateTopicRequestHeader(
        topic=names.wire_topic(config.topic_name),
        default_topic=_DEFAULT_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(changes) or None,
    )
    return request(header)


def ask_topic_configs() -> RemotingCommand:
    """The settings of all topics (21)."""
    return request(GetAllTopicConfigRequestHeader())


def read_topic_configs(answer: Given, broker_name: str) -> dict[str, TopicConfig]:
    """By the topics' names on the wire."""
    return dict(TopicConfigTable.decode(checked(answer, broker_name).body).topic_config_table)


def ask_topic_stats(names: Names, topic: str, broker_name: str) -> RemotingCommand:
    """The ends of a topic's queues (202). Brokers before 5.3 list only queues that may be written:
    `cluster.topics.ends_at_brokers` asks for the others.
    """
    return request(GetTopicStatsInfoRequestHeader(topic=names.wire_topic(topic), bname=broker_name))


class TopicStats(NamedTuple):
    """The ends of queues by queue id, ascending, each with 0 <= minOffset <= maxOffset; and topicPutTps."""

    limits: dict[int, TopicOffset]
    topic_put_tps: float | None


def read_topic_stats(answer: Given, broker_name: str) -> TopicStats:
    """The ends of all queues that the broker lists."""
    table = TopicStatsTable.decode(checked(answer, broker_name).body)
    told = sorted((queue.queue_id, limits) for queue, limits in table.offset_table.items())
    return TopicStats({queue_id: _in_order(limits) for queue_id, limits in told}, table.topic_put_tps)


def _in_order(limits: TopicOffset) -> TopicOffset:
    """A queue without files has -1 and 0 in an answer."""
    if 0 <= limits.min_offset <= limits.max_offset:
        return limits
    start = max(limits.min_offset, 0)
    return replace(limits, min_offset=start, max_offset=max(limits.max_offset, start))


def ask_delete_topic(names: Names, topic: str) -> RemotingCommand:
    """Delete a topic with its messages (215)."""
    return request(DeleteTopicRequestHeader(topic=names.wire_topic(topic)))


def ask_topic_config(names: Names, topic: str) -> RemotingCommand:
    """The settings of one topic (351). Brokers of 4.x do not know the request (3): ask for all (21)."""
    return request(GetTopicConfigRequestHeader(topic=names.wire_topic(topic)))


def read_topic_config(answer: Given, broker_name: str) -> TopicConfig | None:
    """None: the broker has no such topic (17)."""
    found = checked(answer, broker_name, (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST))
    return None if found.code == ResponseCode.TOPIC_NOT_EXIST else TopicConfig.decode(found.body)
