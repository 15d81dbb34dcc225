"""Target topics of a mirror in a store: a queue for each partition.

Queues are opened for reading before they are opened for writing: consumers must know a queue before it has messages. A
mirror never removes queues, and never changes another setting of an existing topic.
"""

from __future__ import annotations

from dataclasses import replace

from rmq_store.bridge.positions.topics import check_rmq_target
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.store.store import Store
from rmq_store.errors import UnknownTopicError, UsageError


def prepare(store: Store, topic: str, target: str, partition_count: int, *, may_create: bool) -> None:
    """Make sure that `target` has a queue for each partition of Kafka's `topic`. Durable on return.

    Raises:
        UsageError: RocketMQ allows no such name; or the topic does not exist, has too few queues or may not be written,
            and
            the mirror must not change that.
    """
    check_rmq_target(topic, target)
    try:
        known = store.topic(target)
    except UnknownTopicError as error:
        if not may_create:
            raise UsageError(
                f"the store has no topic {target!r} for Kafka's {topic!r}: make it with {partition_count} queues, or "
                "let the mirror do that (--create-topics)"
            ) from error
        store.create_topic(target, partition_count, exist_ok=True)
        known = store.topic(target)
    if not known.writable or not known.is_read_here:
        raise UsageError(f"the store's topic {target!r} for Kafka's {topic!r} may not be written (perm {known.perm})")
    if min(known.read_queue_nums, known.write_queue_nums) >= partition_count:
        return
    if not may_create:
        queues = min(known.read_queue_nums, known.write_queue_nums)
        raise UsageError(
            f"the store's topic {target!r} has {queues} queues, and Kafka's {topic!r} {partition_count} partitions: "
            f"give it as many (rmq updateTopic -w {partition_count} -r {partition_count}), or let the mirror do that "
            "(--create-topics)"
        )

    def read_first(config: TopicConfig) -> TopicConfig:
        return replace(config, read_queue_nums=max(config.read_queue_nums, partition_count))

    def then_write(config: TopicConfig) -> TopicConfig:
        return replace(config, write_queue_nums=max(config.write_queue_nums, partition_count))

    for change in (read_first, then_write):
        store.admin.update_topic(target, change, default=known)
