"""The queues of one broker of a cluster, as a mirror into Kafka reads them: pulls, nothing else.

Queue q goes to partition q, so the queues of several brokers would meet in one partition. A mirror copies those of one
broker; another broker's go by a mirror of another name, into topics of other names.

Name servers forget a broker at once when it is gone, and one that has just begun knows no topic. So a topic stays at
the broker that had it, with the queues of before, until that broker says itself that it has it no more (17).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from rmq_store.errors import OffsetOutOfRangeError, UnknownTopicError, UsageError
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.format.text.names import is_system_topic
from rmq_store.protocol.answers import tells_nothing
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import Before
from rmq_store.remoting.cluster.offsets import search_offset
from rmq_store.remoting.cluster.pull_request import PullFilter
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.routes import TopicQueues, TopicRoute
from rmq_store.remoting.cluster.topics import CheckedTopics, topic_stats

_COLUMNS: Final = tuple(MESSAGE_SCHEMA.names)
_MARK_COLUMNS: Final = ("commitLogOffset", "storeTimestamp")
_PATIENCE_MS: Final = 10_000


class BrokerSource:
    """A `MessageSource` over the network. `broker_name` None: the only broker that has the topics. `pull_group`: the
    group of the pulls, for brokers with ACL. Not thread-safe; the caller closes the cluster.

    Ends of queues are asked once for each `refresh`. While the broker does not answer, they are those of before.
    """

    def __init__(self, cluster: Cluster, broker_name: str | None = None, pull_group: str | None = None) -> None:
        self._cluster = cluster
        self._broker_name = broker_name
        self._wanted = PullFilter() if pull_group is None else PullFilter(group=pull_group)
        # By topic the ranges of this round, and those of before.
        self._ranges: dict[str, dict[int, QueueRange]] = {}
        self._before: dict[str, Before[dict[int, QueueRange]]] = {}
        self._checked_topics = CheckedTopics(cluster)
        self._names = Before[list[str]]("the topics", is_passing=tells_nothing)
        # By topic the broker that had it first, and the last route in which it was.
        self._routes: dict[str, tuple[str, TopicRoute]] = {}
        # The frames that were read to find out their size, and are read next.
        self._frames: tuple[tuple[str, int, int, int], bytes] | None = None

    def refresh(self) -> None:
        """As `MessageSource.refresh`."""
        self._ranges.clear()

    def flush(self) -> None:
        """As `MessageSource.flush`: brokers flush their logs themselves."""

    def topics(self) -> list[str]:
        """Users' topics that the broker has, as the name servers know; those of before while none of them tells any."""
        return self._names.or_now(self._told_topics)

    def _told_topics(self) -> list[str]:
        names = [name for name in self._cluster.topics() if not is_system_topic(name)]
        if self._broker_name is None:
            return names
        self._refuse_unknown_broker()
        routes = {name: self._cluster.route(name) for name in names}
        return [name for name, route in routes.items() if route is not None and self._broker_name in route.queues]

    def topic(self, name: str) -> TopicQueues:
        """The topic's queues at the broker.

        Raises:
            UnknownTopicError: the broker does not have it. TopicKindError: its queues are of another kind.
            UsageError: several brokers have it, and none was named.
        """
        broker_name, route = self._place(name)
        self._checked_topics.refuse_to_read(name)
        return route.queues[broker_name]

    def _place(self, topic: str) -> tuple[str, TopicRoute]:
        """The broker, and the topic's route, which has it. While the name servers do not show it, the route of before:
        it is away, or has the topic no more, which it says itself. Raises as `topic`.
        """
        known = self._routes.get(topic)
        now = self._cluster.route(topic)
        broker_name = self._broker_name if known is None else known[0]
        if now is not None and broker_name is None:
            broker_name = _only_broker(now)
        if now is not None and broker_name is not None and broker_name in now.queues:
            if known is None or known[1] is not now:
                # The route and its addresses stay while the name servers know none of its brokers.
                self._cluster.routes.take_over(self._cluster.routes.known([topic], ()))
            known = self._routes[topic] = broker_name, now
        if known is not None:
            return known
        self._refuse_unknown_broker()
        self._cluster.known_route(topic)
        raise UnknownTopicError(f"broker {broker_name} has no topic {topic!r}")

    def _refuse_unknown_broker(self) -> None:
        """A broker that no name server knows is away: nobody can say that it has no such topic."""
        if self._broker_name is not None and self._cluster.routes.broker(self._broker_name) is None:
            servers = ", ".join(self._cluster.name_servers.addresses())
            raise RemotingConnectError(f"broker {self._broker_name}: no name server of {servers} knows it")

    def queue_ranges(self, topic: str) -> dict[int, QueueRange]:
        """As `MessageSource.queue_ranges`. UnknownTopicError: the broker has the topic no more."""
        if topic not in self._ranges:
            before = self._before.setdefault(topic, Before(f"the ends of topic {topic}"))
            self._ranges[topic] = before.or_now(lambda: self._told_ranges(topic))
        return self._ranges[topic]

    def _told_ranges(self, topic: str) -> dict[int, QueueRange]:
        broker_name, route = self._place(topic)
        try:
            return _by_id(topic_stats(self._cluster, topic, (broker_name,), route=route))
        except MQBrokerError as error:
            if error.response_code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise UnknownTopicError(f"broker {broker_name} has no topic {topic!r} any more") from error

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """As `MessageSource.queue_range`."""
        return self.queue_ranges(topic).get(queue_id, QueueRange(0, 0))

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """As `MessageSource.offset_by_time`."""
        return search_offset(self._cluster, self._queue(topic, queue_id), timestamp_ms)

    def queue_entries(self, topic: str, queue_id: int, start: int, end: int) -> list[dict[str, Any]]:
        """As `MessageSource.queue_entries`."""
        rows = pa.Table.from_batches(self._read(topic, queue_id, start, end, _MARK_COLUMNS))
        return [{"commit_log_offset": offset} for offset in rows.column("commitLogOffset").to_pylist()]

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """As `MessageSource.store_timestamp`."""
        (rows,) = self._read(topic, queue_id, offset, offset + 1, _MARK_COLUMNS)
        stored_us: int = rows.column("storeTimestamp").cast(pa.timestamp("us", "UTC")).view(pa.int64())[0].as_py()
        return stored_us // 1000

    def offset_after_bytes(self, topic: str, queue_id: int, start: int, end: int, limit_bytes: int) -> int:
        """As `MessageSource.offset_after_bytes`: sizes are known when the messages are here, so they are read."""
        blocks: list[bytes] = []
        size_bytes, stop = 0, start
        for block in self._blocks(topic, queue_id, start, end):
            positions, sizes = frames_of_answer(block)
            kept = int((size_bytes + positions + sizes <= limit_bytes).sum())
            kept = max(kept, 1) if stop == start else kept
            stop += kept
            if kept < len(sizes):
                blocks.append(block[: int(positions[kept])])
                break
            blocks.append(block)
            size_bytes += len(block)
        self._frames = (topic, queue_id, start, stop), b"".join(blocks)
        return stop

    def read(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """As `MessageSource.read`."""
        return self._read(topic, queue_id, start, end, _COLUMNS)

    def _read(
        self, topic: str, queue_id: int, start: int, end: int, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        known, self._frames = self._frames, None
        here = known is not None and known[0] == (topic, queue_id, start, end)
        blocks = iter([known[1]]) if known is not None and here else self._blocks(topic, queue_id, start, end)
        queue = self._queue(topic, queue_id)
        request = AnswerRequest(
            queue.broker_name, self._cluster.wire_topic(topic), queue_id, columns, shown_topic=topic
        )  # fmt: skip
        return answer_batches(blocks, request)

    def _blocks(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[bytes]:
        first, last = self.queue_range(topic, queue_id)
        if not first <= start < last:
            raise OffsetOutOfRangeError(f"queue {queue_id} of {topic} has no message {start}", start, first, last)
        return read_range(
            self._cluster, self._queue(topic, queue_id), start, end, self._wanted, patience_ms=_PATIENCE_MS
        )  # fmt: skip

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker_of(topic), queue_id)

    def _broker_of(self, topic: str) -> str:
        return self._place(topic)[0]


def _only_broker(route: TopicRoute) -> str:
    if len(route.queues) > 1:
        raise UsageError(
            f"topic {route.topic!r} has queues at {len(route.queues)} brokers ({', '.join(sorted(route.queues))}), and "
            "queue q of each would go to partition q: name one with --broker, and mirror the others under other "
            "names into other topics (--rename)"
        )
    return next(iter(route.queues))


def _by_id(ranges: Mapping[MessageQueue, QueueRange]) -> dict[int, QueueRange]:
    return {queue.queue_id: span for queue, span in ranges.items()}
