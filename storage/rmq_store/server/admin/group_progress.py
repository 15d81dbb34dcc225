"""208, 303, 317, 343 and 345: what groups consume, and how far they are (AdminBrokerProcessor.java).

RocketMQ's dashboard and its exporter ask most of them.
"""

from __future__ import annotations

from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.monitoring.lag import next_given_out
from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.protocol.bodies.groups import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
    QueueTimeSpan,
)
from rmq_store.protocol.bodies.routes import TopicList
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.admin_headers import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request

Committed = dict[tuple[str, int], int]


class GroupProgress:
    """Answers about the groups of one store, by their committed offsets and their connected members."""

    def __init__(self, served: ServedStore, members: Members, offsets: CommittedOffsets) -> None:
        self._served = served
        self._members = members
        self._offsets = offsets

    def consume_stats(self, request: Request) -> RemotingCommand:
        """208: each queue of the topics that the group has committed in, or of the one that is asked for. A queue
        without a committed offset counts from 0, so that its messages are part of the lag. Topics to which no connected
        member of the group subscribes any more are left out (AdminBrokerProcessor#getConsumeStats).
        """
        header = request.header(GetConsumeStatsRequestHeader)
        self._offsets.write()
        group = header.consumer_group
        committed = dict(self._served.store.committed_offsets(group))
        table: dict[MessageQueue, OffsetWrapper] = {}
        for topic in self._topics(group, [header.topic] if header.topic else _topics_in(committed)):
            table |= self._stats(group, topic, committed)
        return request.answer(body=ConsumeStats(offset_table=table).encode())

    def all_consume_stats(self, request: Request) -> RemotingCommand:
        """317: as 208, of all groups in the table of groups, and each topic by itself; perhaps ordered topics only."""
        is_order = request.header(GetConsumeStatsInBrokerHeader).is_order
        self._offsets.write()
        store, stats = self._served.store, []
        offsets = store.all_committed_offsets()
        for group in sorted(store.groups()):
            committed = dict(offsets.get(group, {}))
            topics = [one for one in self._topics(group, _topics_in(committed)) if one.order or not is_order]
            tables = (self._stats(group, one, committed) for one in topics)
            stats.append({group: tuple(ConsumeStats(offset_table=table) for table in tables)})
        queues = [
            queue
            for one in stats
            for of_topics in one.values()
            for of_topic in of_topics
            for queue in of_topic.offset_table.values()
        ]
        body = ConsumeStatsList(
            consume_stats_list=tuple(stats),
            broker_addr=self._served.address,
            total_diff=sum(queue.broker_offset - queue.consumer_offset for queue in queues),
            total_inflight_diff=sum((queue.pull_offset or 0) - queue.consumer_offset for queue in queues),
        )
        return request.answer(body=body.encode())

    def time_spans(self, request: Request) -> RemotingCommand:
        """303: store times of each queue of a topic, and how old the next message of the group is. MQBrokerError 17:
        there is no such topic. Java's broker takes the time of a queue in which the group has committed nothing for
        1970.
        """
        header = request.header(QueryConsumeTimeSpanRequestHeader)
        self._offsets.write()
        topic = self._served.topic(header.topic)
        committed = self._served.store.committed_offsets(header.group)
        spans = tuple(
            self._time_span(header.topic, queue_id, committed.get((header.topic, queue_id), -1))
            for queue_id in range(topic.read_queue_nums)
        )
        return request.answer(body=QueryConsumeTimeSpanBody(consume_time_span_set=spans).encode())

    def topics_of_group(self, request: Request) -> RemotingCommand:
        """343: the topics in which a group has committed offsets."""
        group = request.header(QueryTopicsByConsumerRequestHeader).group
        self._offsets.write()
        topics = _topics_in(dict(self._served.store.committed_offsets(group)))
        return request.answer(body=TopicList(topic_list=tuple(topics), broker_addr=self._served.address).encode())

    def subscription(self, request: Request) -> RemotingCommand:
        """345: the newest subscription of the group's connected members to a topic, if there is one."""
        header = request.header(QuerySubscriptionByConsumerRequestHeader)
        found = self._members.subscription(header.group, header.topic)
        body = QuerySubscriptionResponseBody(group=header.group, topic=header.topic, subscription_data=found)
        return request.answer(body=body.encode())

    def _topics(self, group: str, names: list[str]) -> list[TopicConfig]:
        """Those of the topics that exist, and that connected members subscribe to, where there are some."""
        subscribed = self._members.topics_of(group)
        found = [self._served.store.find_topic(name) for name in names if not subscribed or name in subscribed]
        return [topic for topic in found if topic is not None]

    def _stats(self, group: str, topic: TopicConfig, committed: Committed) -> dict[MessageQueue, OffsetWrapper]:
        store, name, table = self._served.store, topic.topic_name, {}
        given_out = next_given_out(store, group, name)
        for queue_id in range(topic.read_queue_nums):
            first, last = store.queue_range(name, queue_id)
            offset = max(committed.get((name, queue_id), 0), 0)
            time_ms = store.store_timestamp(name, queue_id, offset - 1) if first < offset <= last else 0
            table[MessageQueue(name, self._served.name, queue_id)] = OffsetWrapper(
                broker_offset=last, consumer_offset=offset, last_timestamp=time_ms,
                pull_offset=max(offset, given_out.get(queue_id, 0)),
            )  # fmt: skip
        return table

    def _time_span(self, topic: str, queue_id: int, committed: int) -> QueueTimeSpan:
        store = self._served.store
        first, last = store.queue_range(topic, queue_id)
        following = max(committed, first)
        minimum = self._store_time(topic, queue_id, first)
        return QueueTimeSpan(
            message_queue=MessageQueue(topic, self._served.name, queue_id),
            min_timestamp=minimum,
            max_timestamp=self._store_time(topic, queue_id, last - 1),
            consume_timestamp=self._store_time(topic, queue_id, committed - 1) if committed > 0 else minimum,
            delay_time=max(0, store.clock() - self._store_time(topic, queue_id, following)) if following < last else 0,
        )

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """In ms; -1: the queue has no such message."""
        try:
            return self._served.store.store_timestamp(topic, queue_id, offset)
        except OffsetOutOfRangeError:
            return -1


def _topics_in(committed: Committed) -> list[str]:
    return sorted({topic for topic, _ in committed})
