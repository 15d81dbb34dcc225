"""The ends of the queues that were asked for, as the brokers last told them."""

from __future__ import annotations

from collections.abc import Collection

from pyspark_rmq.cluster_read.ends import BrokerRange, TopicEnds, ends_of_topics, unknown_topic
from pyspark_rmq.cluster_read.frames import queue_of
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.cluster import Cluster, MessageQueue, QueueRange, queue_ranges


class KnownEnds:
    """The ends of some topics of a cluster. `changes` grows with each change that was found."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ends: dict[str, TopicEnds] = {}
        self._kinds_checked: set[str] = set()
        self.changes = 0

    @property
    def topics(self) -> Collection[str]:
        """The topics that were asked for."""
        return self._ends.keys()

    def of(self, topic: str) -> TopicEnds:
        """The ends of one topic; the first time its brokers are asked.

        Raises:
            UnknownTopicError: no broker has the topic.
            TopicKindError: its queues are kept in another way (batch queues, compaction, static, LMQ).
        """
        ends = self._ends.get(topic)
        if ends is None:
            self._refuse_kind(topic)
            found = ends_of_topics(self._cluster, [topic], {})
            if topic not in found:
                raise unknown_topic(self._cluster, topic)
            ends = self._ends[topic] = found[topic]
            self.changes += 1
        return ends

    def range_of(self, topic: str, queue_id: BrokerQueueId) -> BrokerRange:
        """The range of one queue. A queue that its broker lists neither for readers nor for writers is asked for by
        itself: after readQueueNums was lowered it still has its messages. Empty if no broker tells of it.
        """
        known = self.of(topic).all.get(queue_id)
        if known is not None:
            return known
        route = self._cluster.route(topic)
        if route is None or queue_id.broker_name not in route.queues:
            return QueueRange(0, 0)
        queue = queue_of(topic, queue_id)
        return queue_ranges(self._cluster, [queue])[queue]

    def ask_again(self) -> bool:
        """Ask the brokers of all topics, and return whether there is news."""
        ends = ends_of_topics(self._cluster, self._ends, self._ends) if self._ends else {}
        if ends == self._ends:
            return False
        self._ends = ends
        self.changes += 1
        return True

    def broker_count(self) -> int:
        """How many brokers have queues of the topics."""
        return len({queue_id.broker_name for ends in self._ends.values() for queue_id in ends.all})

    def masters(self) -> set[str]:
        """The brokers whose masters told the ends."""
        return {
            queue_id.broker_name
            for found in self._ends.values()
            for queue_id, limits in found.all.items()
            if isinstance(limits, QueueRange)
        }

    def queues(self) -> list[MessageQueue]:
        """All queues that may be read."""
        return [queue_of(topic, queue_id) for topic, ends in self._ends.items() for queue_id in ends.open]

    def _refuse_kind(self, topic: str) -> None:
        if topic in self._kinds_checked or self._cluster.route(topic) is None:
            return
        from rmq_store.cluster import refuse_to_read_topic

        refuse_to_read_topic(self._cluster, topic)
        self._kinds_checked.add(topic)
