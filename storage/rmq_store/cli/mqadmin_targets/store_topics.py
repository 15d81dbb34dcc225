"""The topics of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin_print.by_broker import At
from rmq_store.cli.mqadmin_print.topics import QueueStatus, TopicChange, TopicStatus
from rmq_store.cli.mqadmin_targets.deletions import StoreDeletion
from rmq_store.cli.mqadmin_targets.settings import QUEUES, changed_topic
from rmq_store.cli.mqadmin_targets.store_facts import broker_address, cluster_name, consumer_groups
from rmq_store.cli.shared.name_lookup import require_topic
from rmq_store.cli.shared.output import printable
from rmq_store.errors import CorruptRecordError, LeaseHeldError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from rmq_store import QueueRange, Store
    from rmq_store.broker.store.administration import Deletion


class StoreTopics:
    """Lists, ends, routes and settings of topics; a store that was opened for writing can change them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(self._store.topics())

    def with_groups(self) -> list[tuple[str, str, list[str]]]:
        """(cluster, topic, its groups), without retry and dead-letter topics."""
        from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX

        cluster = cluster_name(self._store)
        topics = [topic for topic in self.names() if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
        return [(cluster, topic, consumer_groups(self._store, topic)) for topic in topics]

    def status(self, topic: str) -> TopicStatus:
        """The queues of a topic. UnknownTopicError: there is no such topic."""
        store = self._store
        ranges = sorted(store.queue_ranges(require_topic(store, topic)).items())
        return TopicStatus(
            [QueueStatus(store.broker_name, one, *span, self._newest_ms(topic, one, span)) for one, span in ranges]
        )

    def route(self, topic: str) -> dict[str, Any]:
        """As a name server would answer it: the store is the only broker. UnknownTopicError."""
        config = self._store.topic(require_topic(self._store, topic))
        broker, cluster, address = self._store.broker_name, cluster_name(self._store), broker_address(self._store)
        counts = config.read_queue_nums, config.write_queue_nums
        queue = {"brokerName": broker, "perm": config.perm, "readQueueNums": counts[0]}
        queue |= {"topicSysFlag": config.topic_sys_flag, "writeQueueNums": counts[1]}
        return {
            "brokerDatas": [{"brokerAddrs": {0: address}, "brokerName": broker, "cluster": cluster}],
            "filterServerTable": {},
            "queueDatas": [queue],
        }

    def clusters(self, topic: str) -> list[str]:
        """The cluster of a topic. UnknownTopicError."""
        require_topic(self._store, topic)
        return [cluster_name(self._store)]

    def update(
        self, topic: str, given: Mapping[str, Any], changes: Mapping[str, str | None]
    ) -> list[TopicChange]:
        """Make a topic, or change what is `given` of it, and its attributes. Stderr says so if messages of an earlier
        topic of this name can be read again. UsageError: no topic can be that.
        """
        from rmq_store import TopicConfig

        store = self._store
        left = 0 if topic in store.topics() else store.admin.leftover_count(topic)
        default = TopicConfig(topic, QUEUES, QUEUES)
        _, after = store.admin.update_topic(topic, lambda known: changed_topic(known, given, changes), default=default)
        if left:
            note = f"{left} messages of it can be read again, and its offsets go on where they ended"
            click.echo(printable(f"rmq: {topic} was here before: {note}"), err=True)
        return [TopicChange(self._at(), after)]

    def update_perm(self, topic: str, perm: int) -> list[TopicChange]:
        """Set the permissions. UnknownTopicError: there is no such topic."""
        store = self._store
        known = store.topic(require_topic(store, topic))
        before, after = store.admin.update_topic(topic, lambda config: replace(config, perm=perm), default=known)
        return [TopicChange(self._at(), after, (before or known).perm, is_changed=before != after)]

    def deletion(self, topic: str) -> StoreDeletion:
        """Of the topic's settings, and of every group's offsets on it; not while one of them is consuming.

        Raises:
            UnknownTopicError: there is no such topic; suggests the nearest. UsageError: it belongs to the broker.
        """
        from rmq_store import Store, UnknownTopicError

        def delete() -> tuple[Deletion, str]:
            with Store.open(self._store.path) as store:
                _require_unused(store, topic)
                done = store.admin.delete_topic(topic)
                return done, f"delete topic [{topic}] from cluster [{cluster_name(store)}] success."

        try:
            planned = self._store.admin.plan_topic_deletion(topic)
        except UnknownTopicError:
            require_topic(self._store, topic)
            raise
        question = f"Delete topic {printable(topic)}?"
        return StoreDeletion(planned, question, delete, lambda: _require_unused(self._store, topic))

    def _at(self) -> At:
        return At(broker_address(self._store))

    def _newest_ms(self, topic: str, queue_id: int, span: QueueRange) -> int:
        """The store time of the newest message of a queue, ms; 0 if there is none, or if its record is damaged."""
        if span.min_offset == span.max_offset:
            return 0
        try:
            return self._store.store_timestamp(topic, queue_id, span.max_offset - 1)
        except (CorruptRecordError, OffsetOutOfRangeError):
            return 0


def _require_unused(store: Store, topic: str) -> None:
    from rmq_store.broker.monitoring.active_consumers import active_consumers, active_groups

    groups = active_groups(store, topic)
    if groups:
        who = [f"group {group!r} by {text}" for group in groups for text in active_consumers(store, group)]
        raise LeaseHeldError(f"topic {topic!r} has running consumers: stop them first: {'; '.join(who)}", who[0])
