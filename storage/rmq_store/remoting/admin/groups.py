"""Groups at single brokers: settings, progress, live members (AdminBrokerProcessor.java)."""

from __future__ import annotations

from collections.abc import Iterable

from rmq_store.protocol.answers import GROUP_UNKNOWN
from rmq_store.protocol.bodies.clients import ConsumerRunningInfo
from rmq_store.protocol.bodies.groups import (
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.admin_headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    UpdateSubscriptionGroupRequestHeader,
)
from rmq_store.protocol.wire.group_headers import GetConsumerRunningInfoRequestHeader
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.admin.scope import BrokerProcess, ask
from rmq_store.remoting.cluster.cluster import Cluster


def group_configs(cluster: Cluster, process: BrokerProcess) -> dict[str, SubscriptionGroupConfig]:
    """The settings of all groups of a broker (201), by their names on the wire. Raises as `scope.ask`."""
    answer = ask(cluster, process, request(GetAllSubscriptionGroupRequestHeader()))
    return dict(SubscriptionGroupTable.decode(answer.body).subscription_group_table)


def group_config(cluster: Cluster, process: BrokerProcess, group: str) -> SubscriptionGroupConfig | None:
    """A group's settings at one broker; None: it has none. They are among those of all groups (201): brokers of 4.x
    do not know the question for one. Raises as `scope.ask`.
    """
    return group_configs(cluster, process).get(cluster.wire_group(group))


def update_group(cluster: Cluster, process: BrokerProcess, config: SubscriptionGroupConfig) -> None:
    """Make a group at one broker, or change it (200); its name is that of the wire. Raises as `scope.ask`."""
    ask(cluster, process, request(UpdateSubscriptionGroupRequestHeader(), config.encode()))


def delete_group(cluster: Cluster, process: BrokerProcess, group: str, *, clean_offset: bool) -> None:
    """Delete a group at one broker, with `clean_offset` its offsets, too (207). Raises as `scope.ask`."""
    header = DeleteSubscriptionGroupRequestHeader(group_name=cluster.wire_group(group), clean_offset=clean_offset)
    ask(cluster, process, request(header))


def consume_stats(
    cluster: Cluster, process: BrokerProcess, group: str, topic: str | None = None
) -> ConsumeStats | None:
    """How far a group is at one broker (208); None: the broker does not know the group. Raises as `scope.ask`."""
    header = GetConsumeStatsRequestHeader(
        consumer_group=cluster.wire_group(group), topic=None if topic is None else cluster.wire_topic(topic)
    )
    answer = ask(cluster, process, request(header), ok=(ResponseCode.SUCCESS, *GROUP_UNKNOWN))
    return ConsumeStats.decode(answer.body) if answer.code == ResponseCode.SUCCESS else None


def connections(cluster: Cluster, process: BrokerProcess, group: str) -> ConsumerConnection | None:
    """The live members of a group, as one broker knows them (203); None: it knows none. Raises as `scope.ask`."""
    header = GetConsumerConnectionListRequestHeader(consumer_group=cluster.wire_group(group))
    answer = ask(cluster, process, request(header), ok=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE))
    return ConsumerConnection.decode(answer.body) if answer.code == ResponseCode.SUCCESS else None


def running_info(cluster: Cluster, process: BrokerProcess, group: str, client_id: str) -> ConsumerRunningInfo:
    """A member's description of itself, by way of a broker that it is connected with (307). Raises as `scope.ask`."""
    header = GetConsumerRunningInfoRequestHeader(
        consumer_group=cluster.wire_group(group), client_id=client_id, jstack_enable=False
    )
    return ConsumerRunningInfo.decode(ask(cluster, process, request(header)).body)


def topic_groups(cluster: Cluster, brokers: Iterable[BrokerProcess], topic: str) -> list[str]:
    """The groups that consume a topic, or have offsets in it, at these brokers, sorted (300). Raises as `scope.ask`."""
    header = QueryTopicConsumeByWhoRequestHeader(topic=cluster.wire_topic(topic))
    found: set[str] = set()
    for process in brokers:
        found.update(GroupList.decode(ask(cluster, process, request(header)).body).group_list)
    return sorted(cluster.plain_name(group) for group in found)
