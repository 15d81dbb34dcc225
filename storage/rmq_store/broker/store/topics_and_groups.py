"""The public methods of a store for topics, groups, committed offsets and leases."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store import kinds
from rmq_store.arguments import checked_methods
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.broker.metadata.leases import Lease
from rmq_store.broker.metadata.topic_use import TopicLease
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.store.parts import StoreParts
from rmq_store.errors import (
    UnknownTopicError,
    UsageError,
    did_you_mean,
)
from rmq_store.format.properties.light_queues import is_light
from rmq_store.format.text.names import is_sent_by_broker_only, validate_topic


@checked_methods()
class TopicsAndGroups(StoreParts):
    """The part of `Store` that concerns topics and groups."""

    def topics(self) -> Mapping[str, TopicConfig]:
        """All topics of the table by name."""
        return self._topics.all()

    def topic(self, name: str) -> TopicConfig:
        """One topic, as `find_topic`; UnknownTopicError names some that the table lacks."""
        topic = self.find_topic(name)
        if topic is None:
            hint = self._unlisted.hint() + did_you_mean(str(name), [*self._topics.all(), *self._unlisted.all()])
            if is_light(name) and kinds.queues_are_in(self.path) != "files":
                hint = ": light message queues that its broker keeps in RocksDB are not read here"
            raise UnknownTopicError(f"no topic {str(name)[:255]!r} in {self.path}{hint}")
        return topic

    def find_topic(self, name: str) -> TopicConfig | None:
        """The topic of exactly this name, also an unlisted one (`unlisted_topics`), which can be read. None if there is
        none. CorruptionError: a queue of an unlisted topic is damaged.
        """
        self._reading()
        return self._topics.all().get(name) or self._unlisted.get(name)

    def unlisted_topics(self) -> Mapping[str, TopicConfig]:
        """{name: topic} of the topics that have queues but no entry in the table: the table or the entry was lost, or a
        broker never writes it (system topics, `%LMQ%` queues). Raises as `find_topic`.
        """
        self._reading()
        return self._unlisted.all()

    def create_topic(self, name: str, queue_count: int = 4, perm: int = 6, *, exist_ok: bool = False) -> TopicConfig:
        """Create a topic durably. UsageError if the name is bad, a system topic's, or taken (unless `exist_ok`)."""
        self._changing()
        validate_topic(name)
        if is_sent_by_broker_only(name):
            raise UsageError(f"{name!r} is the name of a system topic: choose another one")
        return self._topics.create(TopicConfig(name, queue_count, queue_count, perm), exist_ok=exist_ok)

    def groups(self) -> Mapping[str, SubscriptionGroup]:
        """All consumer groups with a configuration, by name."""
        return self._groups.all()

    def create_group(self, group: SubscriptionGroup, *, exist_ok: bool = False) -> SubscriptionGroup:
        """Add a consumer group's settings durably and return them; with `exist_ok`, return existing ones unchanged.
        UsageError if a value is bad, or the group exists.
        """
        self._changing()
        return self._groups.create(group, exist_ok=exist_ok)

    def update_group(self, group: SubscriptionGroup) -> None:
        """Replace the settings of a group durably. UsageError if a value is bad, or there is no such group."""
        self._changing()
        self._groups.update(group)

    def committed_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """{(topic, queue id): offset of the next message to consume}; {} for a group that never committed.

        Raises:
            UsageError: consumerOffset.json and lmqConsumerOffset.json have different offsets of the group, and
                `enable_lmq` is not set.
            CorruptConfigError: the lookup in the result of an offset that is in the file and cannot be used.
        """
        return self._offsets.committed(group)

    def all_committed_offsets(self) -> Mapping[str, Mapping[tuple[str, int], int]]:
        """`committed_offsets` of every group, without groups for which it raises an error: see `offset_conflicts`."""
        return self._offsets.all()

    def offset_conflicts(self) -> list[str]:
        """A sentence for each group with different offsets in consumerOffset.json and lmqConsumerOffset.json; none if
        `enable_lmq` is set.
        """
        return [str(conflict.error()) for conflict in self._offsets.conflicts()]

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set offsets of a group, forwards or backwards; other offsets stay. Durable on return, and so are the messages
        below the offsets: messages that are not flushed yet are flushed first.

        Raises:
            UsageError: an invalid name, queue id or offset.
            StoreLockedError, StoreFullError, StoreFailedError: nothing was committed.
        """
        self._changing()
        self._offsets.commit(group, offsets)

    def lease(self, group: str, topic: str, owner: str, *, alone: bool = True) -> Lease:
        """Take the lease of `group` on `topic`, as a stream does. Until it is released or the process dies, no other
        stream and no consumer of the group can read the topic; with `alone=False`, consumers can.

        Raises:
            LeaseHeldError: another process has the lease, or consumers share the topic's queues; names them.
        """
        self._changing()
        lease = (TopicLease if alone else Lease)(self._log.root, group, topic, clock=self._log.clock)
        lease.acquire(owner)
        return lease
