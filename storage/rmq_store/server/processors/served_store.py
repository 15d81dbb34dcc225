"""The store that a server serves, and its name and address in the cluster."""

from __future__ import annotations

from typing import Final

from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.broker.store.store import Store
from rmq_store.format.frames.compression import DecompressionError, inflate, plain_bytes_max
from rmq_store.format.text.names import SYSTEM_GROUPS, is_system_group, retry_topic, validate_group
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import ResponseCode
from rmq_store.server.requests.request import refusal

DEFAULT_TOPIC: Final = "TBW102"
"""TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC: producers take its route for a topic that does not exist."""
DEFAULT_TOPIC_QUEUES: Final = 8


@dataclass(frozen=True, slots=True)
class ServedStore:
    """`address` is the `ip:port` that clients are told."""

    store: Store
    broker: LocalBroker
    cluster_name: str
    address: str

    @property
    def name(self) -> str:
        """The broker's name."""
        return self.broker.name

    @property
    def own_topics(self) -> frozenset[str]:
        """Names of topics that a broker makes at its start, and calls system topics: those of its cluster, of itself,
        and of replies (TopicConfigManager#init). Nothing is sent to them here, so the store has none, unless it had one
        before it was served under this name.
        """
        return frozenset((self.cluster_name, self.name, f"{self.cluster_name}_REPLY_TOPIC"))

    def refuse_own_topic(self, name: str) -> None:
        """MQBrokerError 1, as for other system topics: clients neither make nor delete one of `own_topics`."""
        if name in self.own_topics:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")

    def topic(self, name: str) -> TopicConfig:
        """The topic's settings. MQBrokerError 17 if there is none."""
        found = self.store.find_topic(name)
        if found is None:
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        return found

    def topic_with_queue(self, name: str, queue_id: int | None) -> TopicConfig:
        """The settings of a topic that has a queue to read; None: any queue.

        Raises:
            MQBrokerError: 17, there is no such topic; 29, it has no such queue.
        """
        found = self.topic(name)
        if queue_id is not None:
            refuse_missing_queue(found, queue_id)
        return found

    def known_group(self, name: str) -> SubscriptionGroup | None:
        """The settings of a group in the table, or of one of RocketMQ's own; None: `group` makes it, or refuses."""
        known = self.store.groups().get(name)
        if known is None and (name in SYSTEM_GROUPS or is_system_group(name)):
            return SubscriptionGroup(name)
        return known

    def group(self, name: str) -> SubscriptionGroup:
        """The group's settings; an unknown group is made if the store makes groups.

        Raises:
            MQBrokerError: 26, there is no such group and none is made.
            UsageError: no name of a group.
        """
        known = self.known_group(name)
        if known is not None:
            return known
        validate_group(name)
        if not self.store.config.auto_create_subscription_group:
            raise refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist")
        return self.store.create_group(SubscriptionGroup(name), exist_ok=True)

    def check_body(self, body: bytes, sys_flag: int) -> None:
        """MQBrokerError 13: `sys_flag` says that the body is compressed, and no reader could inflate it. A broker
        stores it. It takes as long as to inflate the body: not for the thread of the connections.
        """
        try:
            inflate(body, sys_flag, plain_bytes_max(self.store.config.max_message_size))
        except DecompressionError as error:
            remark = f"the body cannot be inflated, but sysFlag {sys_flag:#x} says that it is compressed: {error}"
            raise refusal(ResponseCode.MESSAGE_ILLEGAL, remark) from error

    def make_retry_topic(self, group: SubscriptionGroup) -> None:
        """Make `%RETRY%group` if it is missing and the group wants retry queues (ClientManageProcessor)."""
        name = retry_topic(group.group_name)
        if group.retry_queue_nums > 0 and name not in self.store.topics():
            self.store.create_topic(name, group.retry_queue_nums, exist_ok=True)


def refuse_missing_queue(topic: TopicConfig, queue_id: int) -> None:
    """MQBrokerError 29: the topic has no such queue to read."""
    if not 0 <= queue_id < topic.read_queue_nums:
        remark = f"queueId[{queue_id}] is illegal: {topic.topic_name} has {topic.read_queue_nums} read queues"
        raise refusal(ResponseCode.INVALID_PARAMETER, remark)
