"""Groups at the brokers of a cluster: members, heartbeats, creation, progress (ClientManageProcessor.java)."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from rmq_store.protocol.answers import GROUP_UNKNOWN
from rmq_store.protocol.bodies.clients import HeartbeatData
from rmq_store.protocol.bodies.groups import (
    ConsumerConnection,
    ConsumerList,
    ConsumeStats,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.admin_headers import (
    GetAllSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    UpdateSubscriptionGroupRequestHeader,
)
from rmq_store.protocol.wire.group_headers import (
    GetConsumerListByGroupRequestHeader,
    HeartbeatRequestHeader,
    UnregisterClientRequestHeader,
)
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.cluster.cluster import Cluster, checked, is_nothing


class GroupProgress(NamedTuple):
    """How far a group is in a queue. `last_timestamp_ms`: when its last message was stored; 0: unknown."""

    broker_offset: int
    consumer_offset: int
    last_timestamp_ms: int


def heartbeat(
    cluster: Cluster, data: HeartbeatData, broker_names: Collection[str] | None = None, timeout_ms: int | None = None
) -> list[str]:
    """Tell the masters of all brokers, or of some, about a client (34): the names of those that have answered.

    The groups and topics in `data` are those of the wire. A broker that does not answer is left out, as in Java's
    client: it learns of the client by the next heartbeat.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: none has answered.
    """
    names = sorted(cluster.broker_names() if broker_names is None else broker_names)
    body = data.encode()
    answers = cluster.call_all([(name, request(HeartbeatRequestHeader(), body)) for name in names], timeout_ms)
    reached = [name for name, given in zip(names, answers, strict=True) if not isinstance(given, RemotingError)]
    for name, given in zip(names, answers, strict=True):
        if not isinstance(given, RemotingError):
            checked(given, name)
        elif not reached:
            raise given
    return reached


def unregister(
    cluster: Cluster,
    client_id: str,
    *,
    consumer_group: str | None = None,
    producer_group: str | None = None,
    broker_names: Collection[str] | None = None,
) -> None:
    """Leave a group at all brokers, or at some (35); one that does not answer forgets the client after 120 s."""
    header = UnregisterClientRequestHeader(
        client_id=client_id,
        producer_group=producer_group and cluster.wire_group(producer_group),
        consumer_group=consumer_group and cluster.wire_group(consumer_group),
    )
    names = cluster.broker_names() if broker_names is None else broker_names
    cluster.call_all([(name, request(header)) for name in names])


def consumer_ids(cluster: Cluster, group: str, broker_name: str) -> list[str]:
    """The ids of the live members of a group, sorted, as one broker knows them (38)."""
    header = GetConsumerListByGroupRequestHeader(consumer_group=cluster.wire_group(group))
    answer = cluster.call_broker(broker_name, request(header), ok=None)
    if is_nothing(answer):  # nobody is online
        return []
    return sorted(ConsumerList.decode(checked(answer, broker_name).body).consumer_id_list)


def consumer_connections(cluster: Cluster, group: str) -> dict[str, ConsumerConnection]:
    """The live members of a group with their subscriptions (203), by broker name; without brokers that know none.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: a master does not answer.
    """
    header = GetConsumerConnectionListRequestHeader(consumer_group=cluster.wire_group(group))
    names = cluster.broker_names()
    found = {}
    for name, given in zip(names, cluster.call_all([(name, request(header)) for name in names]), strict=True):
        answer = checked(given, name, (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE))
        if answer.code == ResponseCode.SUCCESS:
            found[name] = ConsumerConnection.decode(answer.body)
    return found


def live_members(cluster: Cluster, group: str, broker_names: Collection[str] | None = None) -> set[str]:
    """The ids of the live members of a group, as those masters that answer know them, of these brokers or of all (203).

    Raises:
        MQBrokerError: a broker refuses.
    """
    header = GetConsumerConnectionListRequestHeader(consumer_group=cluster.wire_group(group))
    names = sorted(cluster.broker_names() if broker_names is None else broker_names)
    found: set[str] = set()
    for name, given in zip(names, cluster.call_all([(name, request(header)) for name in names]), strict=True):
        if isinstance(given, RemotingError):
            continue
        answer = checked(given, name, (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE))
        if answer.code == ResponseCode.SUCCESS:
            found |= {one.client_id for one in ConsumerConnection.decode(answer.body).connection_set}
    return found


def create_group(cluster: Cluster, group: str, broker_name: str) -> None:
    """Create a group with the settings of a new one at the master of a broker (200). On return it has stored it.

    Raises:
        MQBrokerError: the broker refuses; 16: no rights. RemotingError: the master does not answer.
    """
    made = SubscriptionGroupConfig(group_name=cluster.wire_group(group))
    cluster.call_broker(broker_name, request(UpdateSubscriptionGroupRequestHeader(), made.encode()))


def group_configs(cluster: Cluster, broker_name: str) -> dict[str, SubscriptionGroupConfig]:
    """The settings of all groups of a broker (201), by their names on the wire."""
    answer = cluster.read_broker(broker_name, request(GetAllSubscriptionGroupRequestHeader()))
    return dict(SubscriptionGroupTable.decode(answer.body).subscription_group_table)


def consume_stats(cluster: Cluster, group: str, topic: str | None = None) -> dict[MessageQueue, GroupProgress]:
    """How far a group is in all of its queues, or in those of one topic, `%RETRY%` included (208).

    A broker that does not know the group is left out.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: neither master nor slave answers.
    """
    header = GetConsumeStatsRequestHeader(
        consumer_group=cluster.wire_group(group), topic=None if topic is None else cluster.wire_topic(topic)
    )
    names = cluster.broker_names()
    found: dict[MessageQueue, GroupProgress] = {}
    for name, given in zip(names, cluster.read_all([(name, request(header)) for name in names]), strict=True):
        try:
            answer = checked(given, name)
        except MQBrokerError as error:
            if error.response_code in GROUP_UNKNOWN:
                continue
            raise
        for queue, one in ConsumeStats.decode(answer.body).offset_table.items():
            plain = MessageQueue(cluster.plain_name(queue.topic), queue.broker_name, queue.queue_id)
            found[plain] = GroupProgress(one.broker_offset, one.consumer_offset, one.last_timestamp)
    return found
