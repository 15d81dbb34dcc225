"""A `StoreReader` over a cluster of brokers: the same questions as to a store, in calls to the brokers. Control plane;
`read` is data plane.

Calls are few: ends of queues come by one request per broker and topic, at most once per `refresh`; all else answers
from what is known. A `refresh` right after one that found news asks nobody: Spark plans with those news in three calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from pyspark_rmq.access.cluster_ends import BrokerRange, TopicEnds, ends_of_topics, unknown_topic
from pyspark_rmq.access.cluster_group import ClusterGroup
from pyspark_rmq.access.cluster_lookup import ClusterQuery
from pyspark_rmq.options.options import RETRY_PREFIX
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.cluster import (
    SQL92,
    AnswerRequest,
    BatchMemory,
    Cluster,
    MessageQueue,
    MQBrokerError,
    PullFilter,
    PullSource,
    QueueRange,
    RemotingError,
    ResponseCode,
    TagFilter,
    WalkedFrames,
    answer_batches,
    evaluates_no_sql92,
    pull,
    search_offsets,
    walk_range,
)
from rmq_store.errors import OffsetOutOfRangeError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_rmq.access.cluster_group import ClusterLease
    from pyspark_rmq.access.store_reader import Redriven, StoreReader

_log = logging.getLogger(__name__)

# Spark asks an idle query about 95 times a second. Each broker answers a question of ours at most every 10 ms.
POLL_INTERVAL_MS_PER_BROKER: Final = 10.0
POLL_INTERVAL_MS_MAX: Final = 1000.0
# With news Spark asks for the plan of the batch within this time.
PLANNING_MS: Final = 100.0
TOPICS_EVERY_MS: Final = 30_000.0
# A topic that was missing: the retry topic of a group appears with its first member.
MISSING_TOPIC_EVERY_MS: Final = 5_000.0
# Messages of a look-up that are this far apart are read by one range.
_GAP_ROWS: Final = 32

_memory = BatchMemory()


class _Place(NamedTuple):
    """One message of a queue."""

    commit_log_offset: int
    store_timestamp_ms: int


class NoSchedule:
    """Brokers deliver waiting messages themselves."""

    next_due_ms: int | None = None

    def deliver_due(self, limit: int | None = None) -> NoSchedule:
        """Nothing to deliver."""
        return self


class NoPin:
    """Nothing protects messages of a broker from its retention."""

    def release(self) -> None:
        """Nothing to release."""


class ClusterReader:
    """The cluster as a store to read, for one thread. `on_close` is called once, by `close`. Of a condition `sql92`
    brokers may send messages that do not fulfil it.

    Offsets are queue offsets; queue ids are `BrokerQueueId`. Methods raise MQBrokerError if a broker refuses, and
    RemotingError if no process of it answers.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        pull_group: str = "",
        sql92: str | None = None,
        on_close: Callable[[], None] = lambda: None,
        timer_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._cluster = cluster
        self._pull_group = pull_group
        self._filter = PullFilter(group=pull_group) if pull_group else PullFilter()
        self._sql92 = sql92
        self._on_close: Callable[[], None] | None = on_close
        self._timer_ms = timer_ms
        self._identity = ""
        self._ends: dict[str, TopicEnds] = {}
        # Counts what changed: the end of the log, as those who poll see it.
        self._changes = 0
        self._polled_ms = -POLL_INTERVAL_MS_MAX
        self._found_news = False
        self._topics: Mapping[str, object] = {}
        self._topics_at_ms: float | None = None
        self._looked_for: dict[str, tuple[bool, float]] = {}
        self._places: dict[tuple[str, BrokerQueueId, int], _Place | None] = {}
        # Time -> what was found for it.
        self._by_time: dict[int, dict[MessageQueue, int]] = {}
        self._group: ClusterGroup | None = None
        self._kinds_checked: set[str] = set()

    @property
    def cluster(self) -> Cluster:
        """The cluster itself."""
        return self._cluster

    # -- the store as a whole -----------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """`cluster:<names>`: the clusters, with commas, whose brokers have the topics that were asked for; all that the
        name servers know before any was. Name servers and brokers come and go, the name of a cluster stays.
        """
        routes = [self._cluster.route(topic) for topic in self._ends]
        found = {broker.cluster for route in routes if route for broker in route.brokers.values() if broker.cluster}
        if found:
            self._identity = ",".join(sorted(found))
        return f"cluster:{self._identity or self._cluster.name}"

    @property
    def clock(self) -> Callable[[], int]:
        """The clock of this host, ms since the epoch: brokers do not tell theirs."""
        return lambda: time.time_ns() // 1_000_000

    @property
    def schedule(self) -> NoSchedule:
        """Brokers deliver what is due."""
        return NoSchedule()

    @property
    def query(self) -> ClusterQuery:
        """The indexes of the brokers."""
        return ClusterQuery(self._cluster)

    def refresh(self) -> None:
        """Ask for the ends of all topics that were asked for before, unless that was done a moment ago.

        Raises:
            LeaseHeldError: this process has a lease, and another client has it at a broker that came (back).
        """
        now_ms = self._timer_ms()
        brokers = len({queue_id.broker_name for ends in self._ends.values() for queue_id in ends.all})
        interval_ms = min(POLL_INTERVAL_MS_PER_BROKER * max(brokers, 1), POLL_INTERVAL_MS_MAX)
        if now_ms - self._polled_ms < (max(PLANNING_MS, interval_ms) if self._found_news else interval_ms):
            return
        self._polled_ms = now_ms
        self._places.clear()
        self._by_time.clear()
        self._look_for_topics(now_ms)
        ends = ends_of_topics(self._cluster, self._ends, self._ends) if self._ends else {}
        self._found_news = ends != self._ends
        if self._found_news:
            self._ends = ends
            self._changes += 1
        if self._group is not None:
            masters = {
                queue_id.broker_name
                for found in ends.values()
                for queue_id, limits in found.all.items()
                if isinstance(limits, QueueRange)
            }
            self._group.hold_before_planning(masters)

    def unpin(self) -> None:
        """Nothing is pinned."""

    def topics(self) -> Mapping[str, object]:
        """All topics of the namespace by name, at most 30 s old; the same object as long as nothing changed."""
        if self._topics_at_ms is None:
            self._list_topics(self._timer_ms())
        return self._topics

    def _list_topics(self, now_ms: float) -> None:
        self._topics_at_ms = now_ms
        names = self._cluster.topics()
        if list(self._topics) != names:
            self._topics = dict.fromkeys(names)

    def _look_for_topics(self, now_ms: float) -> None:
        """Notice topics that came or went: every 30 s, and sooner those that were asked for and are not there."""
        if self._topics_at_ms is not None and now_ms - self._topics_at_ms >= TOPICS_EVERY_MS:
            self._list_topics(now_ms)
        for name, (was_there, at_ms) in list(self._looked_for.items()):
            if now_ms - at_ms < (TOPICS_EVERY_MS if was_there else MISSING_TOPIC_EVERY_MS):
                continue
            is_there = self._cluster.route(name) is not None
            self._looked_for[name] = is_there, now_ms
            self._changes += is_there != was_there

    def find_topic(self, name: str) -> object | None:
        """The topic's name if it has a route, or had one at brokers that are away now; None if there is none."""
        if name in self._ends:
            return name
        known = self._looked_for.get(name)
        if known is None:
            known = self._looked_for[name] = self._cluster.route(name) is not None, self._timer_ms()
        return name if known[0] else None

    def unlisted_topics(self) -> Mapping[str, object]:
        """None: the name servers name all topics."""
        return {}

    def log_range(self) -> tuple[int, int]:
        """A cluster has no one log. The end is a number that grows with each change that `refresh` has found."""
        return 0, self._changes

    def has_not_grown(self, end: int) -> bool:
        """True as long as the next `refresh` would ask nobody."""
        brokers = len({queue_id.broker_name for ends in self._ends.values() for queue_id in ends.all})
        interval_ms = min(POLL_INTERVAL_MS_PER_BROKER * max(brokers, 1), POLL_INTERVAL_MS_MAX)
        return end == self._changes and self._timer_ms() - self._polled_ms < interval_ms

    # -- queues -------------------------------------------------------------------------------------------------------

    def queue_ranges(self, topic: str) -> Mapping[BrokerQueueId, BrokerRange]:
        """The queues of a topic that may be read.

        Raises:
            UnknownTopicError: no broker has the topic.
            TopicKindError: its queues are kept in another way (batch queues, compaction, static, LMQ).
        """
        return self._ends_of(topic).open

    def queue_range(self, topic: str, queue_id: BrokerQueueId) -> BrokerRange:
        """One queue, also one that is not open for reading; empty if no broker tells of it."""
        return self._ends_of(topic).all.get(queue_id) or QueueRange(0, 0)

    def _ends_of(self, topic: str) -> TopicEnds:
        ends = self._ends.get(topic)
        if ends is None:
            self._refuse_kind(topic)
            found = ends_of_topics(self._cluster, [topic], {})
            if topic not in found:
                raise unknown_topic(self._cluster, topic)
            ends = self._ends[topic] = found[topic]
            self._changes += 1
        return ends

    def _refuse_kind(self, topic: str) -> None:
        if topic in self._kinds_checked or self._cluster.route(topic) is None:
            return
        from rmq_store.cluster import refuse_to_read_topic

        refuse_to_read_topic(self._cluster, topic)
        self._kinds_checked.add(topic)

    def offset_by_time(self, topic: str, queue_id: BrokerQueueId, timestamp_ms: int) -> int:
        """The first message stored at `timestamp_ms` or later; the end of the queue if there is none (29). It is known
        until the next look at the brokers.
        """
        queue = _queue(topic, queue_id)
        found = self._by_time.setdefault(timestamp_ms, {})
        if queue not in found:
            # A starting option asks for one queue after the other: the second question is asked for all of them.
            asked = {queue, *(self._queues() if found else ())} - found.keys()
            found |= search_offsets(self._cluster, sorted(asked), timestamp_ms)
        return found[queue]

    def commit_log_offset_before(self, topic: str, queue_id: BrokerQueueId, queue_offset: int) -> int:
        """Commit-log offset, at its broker, of the message before `queue_offset`; -1 if that is not there, or not at a
        slave that is asked while the master is away.
        """
        place = self._place(topic, queue_id, queue_offset - 1) if queue_offset > 0 else None
        return -1 if place is None else place.commit_log_offset

    def store_timestamp(self, topic: str, queue_id: BrokerQueueId, queue_offset: int) -> int:
        """When a message was stored, ms. OffsetOutOfRangeError: it is not there."""
        place = self._place(topic, queue_id, queue_offset)
        if place is None:
            limits = self.queue_range(topic, queue_id)
            raise OffsetOutOfRangeError(
                f"message {queue_offset} of {topic}-{queue_id} is not there",
                queue_offset,
                limits.min_offset,
                limits.max_offset,
            )
        return place.store_timestamp_ms

    def _place(self, topic: str, queue_id: BrokerQueueId, queue_offset: int) -> _Place | None:
        """One message, by a pull; known until the next look at the brokers."""
        key = topic, queue_id, queue_offset
        if key not in self._places:
            self._places[key] = self._asked_place(_queue(topic, queue_id), queue_offset)
        return self._places[key]

    def _asked_place(self, queue: MessageQueue, queue_offset: int) -> _Place | None:
        source = PullSource(self._cluster, queue.broker_name)
        while True:
            try:
                answer = pull(self._cluster, queue, queue_offset, 1, self._filter, broker_id=source.broker_id)
                break
            except RemotingError as error:
                if not source.failed(error):
                    raise
            except MQBrokerError as error:
                # A slave that does not know the topic yet, or does not let anybody read.
                if source.broker_id == 0 or error.response_code not in _NOT_AT_SLAVE:
                    raise
                return None
        if not answer.frames:
            return None
        request = AnswerRequest(
            queue.broker_name,
            self._cluster.wire_topic(queue.topic),
            queue.queue_id,
            ["queueOffset", "commitLogOffset", "storeTimestamp"],
        )
        first = next(answer_batches([answer.frames], request)).slice(0, 1)
        offset, commit_log_offset, _ = (column[0].as_py() for column in first.columns)
        if offset != queue_offset:
            return None
        return _Place(commit_log_offset, first.column(2).cast("int64")[0].as_py() // 1000)

    def bytes_between(self, topic: str, queue_id: BrokerQueueId, start: int, end: int) -> int:
        """Never asked: maxBytesPerTrigger is refused. UsageError."""
        raise UsageError(f"the bytes of messages [{start}, {end}) of {topic}-{queue_id} are not known before a read")

    def offset_after_bytes(
        self, topic: str, queue_id: BrokerQueueId, start: int, end: int, limit_bytes: int
    ) -> int:
        """`end`: sizes are not known before messages are read, and pulls are bounded by themselves."""
        return end

    def lost_offsets(
        self, topic: str, queue_id: BrokerQueueId, start: int, end: int, *, tags: str | None
    ) -> np.ndarray:
        """None: a broker does not tell of damage in its log."""
        return np.empty(0, np.int64)

    def read(
        self,
        topic: str,
        queue_id: BrokerQueueId,
        start: int,
        end: int,
        *,
        columns: Sequence[str],
        tags: str | None,
        raw_body: bool,
        only: np.ndarray | None = None,
        two_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The messages `[start, end)`, in order; of these just the queue offsets `only`, (n,) int64, ascending.

        Pulls go to the master, and to a slave while the master is away or asks for that. The broker compares hashes of
        tags; the texts are compared here.

        Raises:
            OffsetOutOfRangeError: the master does not have the messages (any more).
            QueueHoleError: messages are missing in the middle. SlaveBehindError: no slave has them yet.
            CorruptRecordError: a message is damaged.
        """
        tag_filter = TagFilter.parse(tags)
        queue = _queue(topic, queue_id)
        request = AnswerRequest(
            queue_id.broker_name,
            self._cluster.wire_topic(topic),
            queue_id.queue_id,
            columns,
            raw_body,
            topic,
            None if tag_filter is None else tag_filter.matches,
        )
        wanted = PullFilter(group=self._filter.group, subscription=tags or "*")
        # What came back to a group has passed the filter before.
        if self._sql92 is not None and not topic.startswith(RETRY_PREFIX):
            wanted = PullFilter(group=self._filter.group, subscription=self._sql92, expression_type=SQL92)
        for first, last in [(start, end)] if only is None else _runs(only, start, end):
            frames = self._walked(queue, first, last, wanted)
            yield from answer_batches(frames, request, only=only, memory=_memory)

    def _walked(self, queue: MessageQueue, start: int, end: int, wanted: PullFilter) -> Iterator[WalkedFrames]:
        """As `walk_range`; a broker that does not evaluate SQL92 sends all messages."""
        without, name = self._cluster.without_sql92, queue.broker_name
        is_sql92 = wanted.expression_type == SQL92
        if is_sql92 and name not in without:
            frames = walk_range(self._cluster, queue, start, end, wanted)
            try:
                some = next(frames, None)
            except MQBrokerError as error:
                if not evaluates_no_sql92(error):
                    raise
                without.add(name)
                _log.warning(
                    "broker %s does not evaluate SQL92 (enablePropertyFilter=false): it sends all messages, and the "
                    "condition is evaluated here", name,
                )  # fmt: skip
            else:
                if some is not None:
                    yield some
                    yield from frames
                return
        yield from walk_range(
            self._cluster, queue, start, end, PullFilter(group=wanted.group) if is_sql92 else wanted
        )

    def redriven(self, group: str) -> Mapping[BrokerQueueId, Redriven]:
        """The dead letters that `redrive` has moved, as their brokers have recorded it. Raises as `read`."""
        from pyspark_rmq.options.options import DLQ_PREFIX
        from rmq_store.cluster import ClusterDeadLetters

        route = self._cluster.route(DLQ_PREFIX + group)
        letters = ClusterDeadLetters(self._cluster, pull_group=self._pull_group)
        return {
            BrokerQueueId(name, queue_id): ranges
            for name in (() if route is None else route.queues)
            for queue_id, ranges in letters.redriven(group, name).items()
        }

    def pin(self, start_offset: int, end_offset: int) -> NoPin:
        """Nothing is kept from the retention of brokers."""
        return NoPin()

    # -- groups -------------------------------------------------------------------------------------------------------

    def committed_offsets(self, group: str) -> Mapping[tuple[str, BrokerQueueId], int]:
        """The offsets that the group has committed in the topics that were asked for, by (topic, queue id) (14)."""
        return self._of_group(group).committed(self._queues())

    def begins_at_first(self, group: str, topic: str, queue_id: BrokerQueueId) -> bool:
        """Whether the broker lets a new group begin at the first message of the queue, because the queue is young."""
        return self._of_group(group).begins_at_first(_queue(topic, queue_id))

    def all_committed_offsets(self) -> Mapping[str, Mapping[tuple[str, BrokerQueueId], int]]:
        """Not known: `groups` names those that have any."""
        return {}

    def groups(self) -> Mapping[str, object]:
        """The groups that any broker knows (201)."""
        from rmq_store.cluster import group_configs

        names = {group for broker in self._cluster.broker_names() for group in group_configs(self._cluster, broker)}
        return dict.fromkeys(sorted(map(self._cluster.plain_name, names)))

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, BrokerQueueId], int]) -> None:
        """Commit these queues at their masters; on return the brokers have them (15 with an answer).

        Raises:
            MQBrokerError: a broker refuses; the others have committed. RemotingError: a master does not answer.
        """
        self._of_group(group).commit({_queue(*queue): offset for queue, offset in offsets.items()})

    def lease(self, group: str, topic: str, owner: str) -> ClusterLease:
        """Take the lease, and join the group. LeaseHeldError names the holder, or the live members of the group."""
        return self._of_group(group).lease(topic, owner)

    def _of_group(self, group: str) -> ClusterGroup:
        if self._group is None or self._group.name != group:
            self._group = ClusterGroup(self._cluster, group)
        return self._group

    def _queues(self) -> list[MessageQueue]:
        return [_queue(topic, queue_id) for topic, ends in self._ends.items() for queue_id in ends.open]

    # -- its life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group, and let go of the cluster."""
        on_close, self._on_close = self._on_close, None
        group, self._group = self._group, None
        try:
            if group is not None:
                group.leave()
        finally:
            if on_close is not None:
                on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# 2: slaveReadEnable is off (5.x). 17: the slave does not know the topic yet.
_NOT_AT_SLAVE = (ResponseCode.SYSTEM_BUSY, ResponseCode.TOPIC_NOT_EXIST)


def _queue(topic: str, queue_id: BrokerQueueId) -> MessageQueue:
    return MessageQueue(topic, queue_id.broker_name, queue_id.queue_id)


def _runs(only: np.ndarray, start: int, end: int) -> list[tuple[int, int]]:
    """Ranges that have all offsets of `only` within [start, end), and not much between them."""
    only = only[slice(*np.searchsorted(only, (start, end)))]
    parts = np.split(only, np.flatnonzero(np.diff(only) > _GAP_ROWS) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]


if TYPE_CHECKING:

    def _is_store_reader(cluster: ClusterReader) -> StoreReader:
        """Never called. mypy fails here if `ClusterReader` does not fulfil the interface."""
        return cluster
