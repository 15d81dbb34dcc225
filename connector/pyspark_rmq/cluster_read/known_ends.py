"""The ends of the queues that were asked for, as the brokers last told them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Final

from pyspark_rmq.cluster_read.ends import AskedEnds, BrokerRange, PlanEnds, TopicEnds, unknown_topic
from pyspark_rmq.cluster_read.log_figures import LogFigures
from pyspark_rmq.cluster_read.look import Look
from pyspark_rmq.cluster_read.range_reader import queue_of
from pyspark_rmq.position.position import Queue
from rmq_store.cluster import CheckedTopics, Cluster, MessageQueue, QueueRange, TopicAt, at_brokers

# Spark asks an idle query about 95 times a second. With few topics each look asks for all of them, one request every
# 10 ms in all.
NARROW_TOPICS: Final = 2
LOOK_MS_PER_REQUEST: Final = 10.0
LOOK_MS_MAX: Final = 1000.0
# With more topics an idle look asks each broker for one figure, 25 requests a second in all. The topics of brokers that
# have news take one request each, 1,250 a second at most. Beside them goes a slow round through all topics.
FIGURE_MS_PER_REQUEST: Final = 40.0
TOPIC_MS_PER_REQUEST: Final = 0.8
ROUND_REQUESTS_PER_S: Final = 8.0
_ROUND_STEP_MS_MAX: Final = 2000.0
ROUTES_AT_ONCE: Final = 2


class KnownEnds:
    """The ends of some topics of a cluster. `changes` grows with each change that was found. Times are in ms, of a
    clock that never goes back.

    Of many topics only those are asked again whose brokers have stored something (`log_figures`); the others in a slow
    round.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asks = PlanEnds(cluster) if isinstance(cluster, Look) else AskedEnds(cluster)
        self._ends: dict[str, TopicEnds] = {}
        self._checked_topics = CheckedTopics(cluster)
        self._figures = LogFigures(cluster)
        # (topic, broker) -> readQueueNums when it was asked last.
        self._asked_of: dict[tuple[str, ...], int] = {}
        self._round_place = 0
        self._round_ms = 0.0
        self.requests_of_look = 0
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
            self._checked_topics.refuse_to_read(topic)
            found = self._asks.of_topics([topic], {})
            if topic not in found:
                raise unknown_topic(self._cluster, topic)
            ends = self._ends[topic] = found[topic]
            self.changes += 1
        return ends

    def ranges_of(self, queues: Iterable[Queue]) -> dict[Queue, BrokerRange]:
        """The ranges of these queues. Those that are not known are asked for by themselves, at their brokers: after
        readQueueNums was lowered a queue still has its messages. A queue without an entry is not told
        (`AskedEnds.at_brokers`).
        """
        known: dict[Queue, BrokerRange] = {}
        others: list[Queue] = []
        for queue in queues:
            if queue.topic not in self._ends and self._cluster.route(queue.topic) is not None:
                self.of(queue.topic)
            ends = self._ends.get(queue.topic)
            limits = None if ends is None else ends.all.get(queue.queue_id)
            if limits is None:
                others.append(queue)
            else:
                known[queue] = limits
        return known | (self._asks.at_brokers(others) if others else {})

    def shows(self, queue: Queue) -> bool:
        """Whether the ends of the topic tell if the queue is open: they have it, or were asked for with a route that
        has its broker.
        """
        ends = self._ends.get(queue.topic)
        return ends is not None and (queue.queue_id in ends.all or queue.queue_id.broker_name in ends.routed)

    def newest_read(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """Of queues that are read up to these offsets, those that may have the newest message of their brokers: one of
        each broker that is read to its end, by the times of its last messages, and one that is not.
        """
        newest: dict[tuple[str, bool], tuple[int, Queue]] = {}
        for queue, offset in offsets.items():
            ends = self._ends.get(queue.topic)
            limits = None if ends is None else ends.all.get(queue.queue_id)
            is_whole = ends is not None and limits is not None and limits.max_offset == offset
            stored_ms = ends.stored_ms.get(queue.queue_id, 0) if ends is not None else 0
            known = newest.setdefault((queue.queue_id.broker_name, is_whole), (stored_ms, queue))
            if known[0] < stored_ms:
                newest[queue.queue_id.broker_name, is_whole] = stored_ms, queue
        return [queue for _, queue in newest.values()]

    def forget_quiet(self, broker_names: Collection[str]) -> None:
        """Ask these brokers at the next look, whatever their figures say: they are back."""
        self._asked_of = {at: count for at, count in self._asked_of.items() if at[1] not in broker_names}

    def ask_again(self, now_ms: float) -> bool:
        """Ask the brokers of all topics for what may have changed, and return whether there is news."""
        ends = self._asked(now_ms) if self._ends else {}
        if ends == self._ends:
            return False
        self._ends = ends
        self.changes += 1
        return True

    def _asked(self, now_ms: float) -> dict[str, TopicEnds]:
        if not self._is_wide:
            self._asked_of, self.requests_of_look = {}, 0
            return self._asks.of_topics(self._ends, self._ends)
        routes = self._cluster.routes_of(self._ends, ROUTES_AT_ONCE)
        all_at = at_brokers(route for route in routes.values() if route is not None)
        quiet = self._figures.quiet(sorted({one.broker_name for one in all_at}), now_ms)
        # One that is new, or whose queues were opened, is asked whatever the figure.
        asked = [
            one
            for one in all_at
            if one.broker_name not in quiet or self._asked_of.get(one[:2]) != one.read_queue_nums
        ]
        asked += self._next_of_round(all_at, set(asked), now_ms)
        ends = self._asks.by_routes(routes, self._ends, asked)
        self._asked_of |= {one[:2]: one.read_queue_nums for one in asked}
        self.requests_of_look = len(asked)
        return ends

    def _next_of_round(self, all_at: Sequence[TopicAt], asked: Set[TopicAt], now_ms: float) -> list[TopicAt]:
        """The next ones of the slow round through all topics, which finds what figures do not show."""
        since_ms = min(max(now_ms - self._round_ms, 0.0), _ROUND_STEP_MS_MAX)
        count = min(int(since_ms * ROUND_REQUESTS_PER_S / 1000), len(all_at))
        if not count:
            return []
        self._round_ms = now_ms
        first, self._round_place = self._round_place, (self._round_place + count) % len(all_at)
        return [one for one in (all_at[(first + step) % len(all_at)] for step in range(count)) if one not in asked]

    @property
    def _is_wide(self) -> bool:
        return len(self._ends) > NARROW_TOPICS

    def interval_ms(self) -> float:
        """How long after a look the next one is due: 10 ms for each broker; with more topics by the number of
        requests.
        """
        brokers = max(self.broker_count(), 1)
        if not self._is_wide:
            return min(LOOK_MS_PER_REQUEST * brokers * max(len(self._ends), 1), LOOK_MS_MAX)
        return min(max(FIGURE_MS_PER_REQUEST * brokers, TOPIC_MS_PER_REQUEST * self.requests_of_look), LOOK_MS_MAX)

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
