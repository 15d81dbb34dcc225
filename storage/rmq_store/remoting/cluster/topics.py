"""Topics at the brokers of a cluster: ends of queues, settings, creation, deletion (AdminBrokerProcessor.java)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from rmq_store import kinds, real_time
from rmq_store.errors import TopicKindError
from rmq_store.format.text.names import LMQ_PREFIX
from rmq_store.kinds.table import STATIC_TOPICS, Kind
from rmq_store.kinds.topics import kind_by_attributes
from rmq_store.protocol.bodies.groups import GroupList
from rmq_store.protocol.bodies.topics import TopicConfig, TopicConfigTable, TopicStatsTable
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, RemotingError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.admin_headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.cluster.cluster import Cluster, checked
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.routes import TopicRoute

ROUTE_WAIT_MS: Final = 10_000
_LOOK_EVERY_S: Final = 0.1
_DEFAULT_TOPIC: Final = "TBW102"


def topic_stats(cluster: Cluster, topic: str) -> dict[MessageQueue, QueueRange]:
    """The ranges of all queues of a topic that may be read: one request per broker (202), all at once. A broker that
    refuses it is asked for each queue (30, 31).

    While a master does not answer, its slave is asked: ends are those of the slave then, and may be smaller than ends
    that the master has told before.

    Raises:
        UnknownTopicError: no broker has the topic.
        MQBrokerError: a broker refuses these requests, too. RemotingError: neither master nor slave answers.
    """
    wanted = cluster.known_route(topic).read_queues()
    broker_names = sorted({queue.broker_name for queue in wanted})
    wire_topic = cluster.wire_topic(topic)
    commands = [
        (name, request(GetTopicStatsInfoRequestHeader(topic=wire_topic, bname=name))) for name in broker_names
    ]
    ranges: dict[MessageQueue, QueueRange] = {}
    for name, given in zip(broker_names, cluster.read_all(commands), strict=True):
        if isinstance(given, RemotingError):
            raise given
        if given.code == ResponseCode.SUCCESS:
            for queue, found in TopicStatsTable.decode(given.body).offset_table.items():
                start = max(found.min_offset, 0)
                ranges[MessageQueue(topic, name, queue.queue_id)] = QueueRange(start, max(found.max_offset, start))
    # Also queues that may be read but not written: brokers of 4.9 leave them out of the answer.
    missing = [queue for queue in wanted if queue not in ranges]
    if missing:
        ranges |= queue_ranges(cluster, missing)
    return {queue: ranges[queue] for queue in wanted}


def topic_config(cluster: Cluster, topic: str, broker_name: str) -> TopicConfig | None:
    """A topic's settings at one broker (351); None: the broker does not have it, or is older than 5.0."""
    header = GetTopicConfigRequestHeader(topic=cluster.wire_topic(topic), bname=broker_name)
    nothing = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    answer = cluster.read_broker(broker_name, request(header), ok=(ResponseCode.SUCCESS, *nothing))
    return None if answer.code in nothing else TopicConfig.decode(answer.body)


def topic_configs(cluster: Cluster, broker_name: str) -> dict[str, TopicConfig]:
    """The settings of all topics of a broker (21), by their names on the wire."""
    answer = cluster.read_broker(broker_name, request(GetAllTopicConfigRequestHeader()))
    return dict(TopicConfigTable.decode(answer.body).topic_config_table)


def refuse_to_read_topic(cluster: Cluster, topic: str) -> None:
    """Refuse a topic whose queues brokers keep in another way, so that offsets or frames are other ones.

    Raises:
        TopicKindError: batch queues, compaction, a static topic, or a queue of other topics' messages (LMQ).
        UnknownTopicError: no broker has the topic.
    """
    _refuse(cluster, topic, kinds.refuse_to_read_topic)


def refuse_to_write_topic(cluster: Cluster, topic: str) -> None:
    """Refuse a topic to which nothing may be sent from here. Raises as `refuse_to_read_topic`."""
    _refuse(cluster, topic, kinds.refuse_to_write_topic)


def _refuse(cluster: Cluster, topic: str, refuse: Callable[[str, Kind | None], None]) -> None:
    if topic.startswith(LMQ_PREFIX):
        raise TopicKindError(
            f"topic {topic!r} is a queue of other topics' messages (LMQ): read the topics that these were sent to"
        )
    route = cluster.known_route(topic)
    if route.is_static:
        raise TopicKindError(
            f"topic {topic!r}: {STATIC_TOPICS.what}. Over the network it is neither read nor written here"
        )
    names = sorted(route.queues)
    header = GetTopicConfigRequestHeader(topic=cluster.wire_topic(topic))
    for given in cluster.read_all([(name, request(header)) for name in names]):
        # An older broker does not know the request, nor these kinds; one may refuse it for want of rights.
        if not isinstance(given, RemotingError) and given.code == ResponseCode.SUCCESS:
            refuse(topic, kind_by_attributes(TopicConfig.decode(given.body).attributes or {}))


def create_topic(
    cluster: Cluster,
    topic: str,
    queue_count: int = 4,
    *,
    perm: int = 6,
    order: bool = False,
    attributes: Mapping[str, str] | None = None,
    broker_names: Collection[str] | None = None,
) -> TopicRoute:
    """Create a topic, or change it, at the masters of all brokers or of some (17), and wait until it has its route.

    On return every one of these brokers has stored the topic.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: a master does not answer; others may have the topic already.
        RemotingConnectError: the name servers show no broker.
    """
    names = sorted(cluster.broker_names() if broker_names is None else broker_names)
    if not names:
        raise RemotingConnectError(f"topic {topic!r} cannot be made: no broker is registered at the name servers now")
    header = CreateTopicRequestHeader(
        topic=cluster.wire_topic(topic),
        default_topic=_DEFAULT_TOPIC,
        read_queue_nums=queue_count,
        write_queue_nums=queue_count,
        perm=perm,
        topic_sys_flag=0,
        order=order,
        attributes=",".join(f"+{key}={value}" for key, value in (attributes or {}).items()) or None,
    )
    for name in names:
        cluster.call_broker(name, request(header))
    until = real_time.monotonic() + ROUTE_WAIT_MS / 1000
    while True:
        route = cluster.refresh_route(topic)
        if route is not None and set(names) <= set(route.queues):
            return route
        if real_time.monotonic() >= until:
            raise MQBrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"the brokers {', '.join(names)} have the topic {topic!r}, but the name server shows no route to all "
                f"of them after {ROUTE_WAIT_MS // 1000} s",
            )
        time.sleep(_LOOK_EVERY_S)


def delete_topic(cluster: Cluster, topic: str) -> None:
    """Delete a topic with its messages at all brokers (215), then its route at all name servers (216).

    Raises:
        MQBrokerError: a broker refuses. RemotingError: a broker or a name server does not answer: repeat the call.
    """
    wire_topic = cluster.wire_topic(topic)
    for name in cluster.broker_names():
        cluster.call_broker(name, request(DeleteTopicRequestHeader(topic=wire_topic)))
    answers = cluster.name_servers.call_each(
        request(DeleteTopicFromNamesrvRequestHeader(topic=wire_topic)), cluster.settings.timeout_ms
    )
    for address, answer in answers.items():
        checked(answer, f"name server {address}")
    cluster.refresh_route(topic)


def topic_groups(cluster: Cluster, topic: str) -> list[str]:
    """The groups that consume a topic, or have offsets in it, at any of its brokers, sorted (300)."""
    header = QueryTopicConsumeByWhoRequestHeader(topic=cluster.wire_topic(topic))
    names = sorted(cluster.known_route(topic).queues)
    found: set[str] = set()
    for name, given in zip(names, cluster.read_all([(name, request(header)) for name in names]), strict=True):
        found.update(GroupList.decode(checked(given, name).body).group_list)
    return sorted(cluster.plain_name(group) for group in found)
