"""Groups: settings, members, progress (AdminBrokerProcessor.java, ConsumerManageProcessor.java).

`read_*` raise MQBrokerError if the answer is a refusal, and the error itself if one stands in its place.
"""

from __future__ import annotations

from collections.abc import Collection

from rmq_store.protocol.answers import GROUP_UNKNOWN
from rmq_store.protocol.bodies.clients import (
    ConsumerRunningInfo,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from rmq_store.protocol.bodies.groups import (
    ConsumerConnection,
    ConsumerList,
    ConsumeStats,
    GroupList,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.admin_headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    UpdateSubscriptionGroupRequestHeader,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.group_headers import (
    GetConsumerListByGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    HeartbeatRequestHeader,
    LockBatchMqRequestHeader,
    UnlockBatchMqRequestHeader,
    UnregisterClientRequestHeader,
)
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.questions.answer import Given, Names, checked, is_nothing

# -- settings ----------------------------------------------------------------------------------------------------------


def ask_update_group(config: SubscriptionGroupConfig) -> RemotingCommand:
    """Make a group, or change it (200); its name is that of the wire."""
    return request(UpdateSubscriptionGroupRequestHeader(), config.encode())


def ask_group_configs() -> RemotingCommand:
    """The settings of all groups (201). Brokers of 4.x do not know the question for one."""
    return request(GetAllSubscriptionGroupRequestHeader())


def read_group_configs(answer: Given, broker_name: str) -> dict[str, SubscriptionGroupConfig]:
    """By the groups' names on the wire."""
    return dict(SubscriptionGroupTable.decode(checked(answer, broker_name).body).subscription_group_table)


def ask_delete_group(names: Names, group: str, *, clean_offset: bool) -> RemotingCommand:
    """Delete a group, with `clean_offset` its offsets, too (207)."""
    return request(
        DeleteSubscriptionGroupRequestHeader(group_name=names.wire_group(group), clean_offset=clean_offset)
    )


# -- members -----------------------------------------------------------------------------------------------------------


def ask_heartbeat(data: HeartbeatData) -> RemotingCommand:
    """Tell a broker about a client (34); groups and topics are those of the wire."""
    return request(HeartbeatRequestHeader(), data.encode())


def ask_unregister(
    names: Names, client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> RemotingCommand:
    """A client leaves a group (35)."""
    header = UnregisterClientRequestHeader(
        client_id=client_id,
        producer_group=producer_group and names.wire_group(producer_group),
        consumer_group=consumer_group and names.wire_group(consumer_group),
    )
    return request(header)


def ask_consumer_ids(names: Names, group: str) -> RemotingCommand:
    """The ids of the live members of a group (38)."""
    return request(GetConsumerListByGroupRequestHeader(consumer_group=names.wire_group(group)))


def read_consumer_ids(answer: Given, broker_name: str) -> list[str]:
    """Sorted; [] if nobody is online (1)."""
    if is_nothing(answer):
        return []
    return sorted(ConsumerList.decode(checked(answer, broker_name).body).consumer_id_list)


def ask_consumer_connections(names: Names, group: str) -> RemotingCommand:
    """The live members of a group with their subscriptions (203)."""
    return request(GetConsumerConnectionListRequestHeader(consumer_group=names.wire_group(group)))


def read_consumer_connections(answer: Given, broker_name: str) -> ConsumerConnection | None:
    """None: the broker knows no member (206)."""
    found = checked(answer, broker_name, (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE))
    return ConsumerConnection.decode(found.body) if found.code == ResponseCode.SUCCESS else None


def ask_running_info(names: Names, group: str, client_id: str) -> RemotingCommand:
    """A member's description of itself, by way of a broker that it is connected with (307)."""
    header = GetConsumerRunningInfoRequestHeader(
        consumer_group=names.wire_group(group), client_id=client_id, jstack_enable=False
    )
    return request(header)


def read_running_info(answer: Given, broker_name: str) -> ConsumerRunningInfo:
    """The member's description."""
    return ConsumerRunningInfo.decode(checked(answer, broker_name).body)


# -- locks of queues, which masters forget after 60 s ------------------------------------------------------------------


def ask_lock(names: Names, group: str, client_id: str, queues: Collection[MessageQueue]) -> RemotingCommand:
    """Lock queues of one broker for a client of the group, or renew its locks (41)."""
    return request(LockBatchMqRequestHeader(), _locks(names, group, client_id, queues))


def read_lock(names: Names, queues: Collection[MessageQueue], answer: Given, broker_name: str) -> set[MessageQueue]:
    """Those of the queues that the client holds now."""
    held = LockBatchResponseBody.decode(checked(answer, broker_name).body).lock_ok_mq_set
    return {queue for queue in queues if _on_wire(names, queue) in held}


def ask_unlock(names: Names, group: str, client_id: str, queues: Collection[MessageQueue]) -> RemotingCommand:
    """Release locks of the client at one broker (42); those of others stay."""
    return request(UnlockBatchMqRequestHeader(), _locks(names, group, client_id, queues))


def _locks(names: Names, group: str, client_id: str, queues: Collection[MessageQueue]) -> bytes:
    on_wire = tuple(_on_wire(names, queue) for queue in queues)
    return LockBatchRequestBody(consumer_group=names.wire_group(group), client_id=client_id, mq_set=on_wire).encode()


def _on_wire(names: Names, queue: MessageQueue) -> MessageQueue:
    return MessageQueue(names.wire_topic(queue.topic), queue.broker_name, queue.queue_id)


# -- progress ----------------------------------------------------------------------------------------------------------


def ask_consume_stats(names: Names, group: str, topic: str | None = None) -> RemotingCommand:
    """How far a group is in all of its queues, or in those of one topic, `%RETRY%` included (208)."""
    header = GetConsumeStatsRequestHeader(
        consumer_group=names.wire_group(group), topic=None if topic is None else names.wire_topic(topic)
    )
    return request(header)


def read_consume_stats(answer: Given, broker_name: str) -> ConsumeStats | None:
    """By queues with their names on the wire; None: the broker does not know the group (26, 206)."""
    found = checked(answer, broker_name, (ResponseCode.SUCCESS, *GROUP_UNKNOWN))
    return ConsumeStats.decode(found.body) if found.code == ResponseCode.SUCCESS else None


def ask_topic_groups(names: Names, topic: str) -> RemotingCommand:
    """The groups that consume a topic, or have offsets in it (300)."""
    return request(QueryTopicConsumeByWhoRequestHeader(topic=names.wire_topic(topic)))


def read_topic_groups(answer: Given, broker_name: str) -> tuple[str, ...]:
    """Their names on the wire."""
    return GroupList.decode(checked(answer, broker_name).body).group_list
