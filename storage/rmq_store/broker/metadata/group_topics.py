"""The settings and topics that a group needs before its messages are sent back: `%RETRY%group` and `%DLQ%group`.

All three are made when they are first needed. Sources: SubscriptionGroupManager#findSubscriptionGroupConfig,
TopicConfigManager#createTopicInSendMessageBackMethod, AbstractSendMessageProcessor#consumerSendMsgBack.
"""

from __future__ import annotations

from typing import Final

from rmq_store.broker.metadata.groups import GroupTable, SubscriptionGroup
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import TopicConfig, TopicTable
from rmq_store.errors import ResponseError
from rmq_store.format.text import names

# Answers of a broker that refuses (ResponseCode.java).
SYSTEM_ERROR: Final = 1
MESSAGE_ILLEGAL: Final = 13
NO_PERMISSION: Final = 16
SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26

_DLQ_NUMS_PER_GROUP = 1


class GroupTopics:
    """Looks up and makes settings and topics of groups of one store. Safe for threads."""

    def __init__(self, config: StoreConfig, groups: GroupTable, topics: TopicTable) -> None:
        self._config = config
        self._groups = groups
        self._topics = topics

    def group(self, name: str) -> SubscriptionGroup:
        """The group's settings; an unknown group is made with RocketMQ's defaults (autoCreateSubscriptionGroup).

        Raises:
            UsageError: not a group name.
            ResponseError: 26, there is no such group, and none is made.
        """
        names.validate_group(name)
        known = self._groups.get(name)
        if known is not None:
            return known
        if not self._config.auto_create_subscription_group:
            raise ResponseError(SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        return self._groups.create(SubscriptionGroup(name), exist_ok=True)

    def retry_queues(self, group: SubscriptionGroup) -> int:
        """`usable_queues` of the group's retry topic, at least 1; makes the topic if it is missing.

        Raises:
            ResponseError: 16, the topic may not be written.
        """
        assert group.retry_queue_nums > 0
        topic = self._make(names.retry_topic(group.group_name), group.retry_queue_nums, 6)
        queues = usable_queues(group, topic)
        if not topic.writable or queues < 1:
            raise ResponseError(NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden")
        return queues

    def make_dlq(self, group: str) -> str:
        """The name of the group's dead-letter topic, which is made if it is missing."""
        return self._make(names.dlq_topic(group), _DLQ_NUMS_PER_GROUP, self._config.dlq_perm).topic_name

    def _make(self, name: str, queues: int, perm: int) -> TopicConfig:
        known = self._topics.all().get(name)
        return known or self._topics.create(TopicConfig(name, queues, queues, perm), exist_ok=True)


def usable_queues(group: SubscriptionGroup, retry_topic: TopicConfig) -> int:
    """The number of queues of its retry topic that a group's messages go to. It is not larger than the topic's,
    whatever retryQueueNums says, because a message in a queue unknown to consumers would be lost.
    """
    return min(group.retry_queue_nums, retry_topic.write_queue_nums, retry_topic.read_queue_nums)
