"""A cluster of brokers as a `QueueSource`: the same questions as to a store, in calls to the brokers. Control plane;
`read_slice` is data plane.

Calls are few: ends of queues come by one request per broker and topic at most, once per `refresh`; all else answers
from what is known. A `refresh` right after one that found news asks nobody: Spark plans with those news in three calls.

With `goes_on` a plan goes on without brokers that are away. The ways of an answer:

    planned       begins a `Look`, without the brokers that `Outages` knows to be away; all questions go through it
    refresh       asks for ends. Ends of brokers that are away stay in `KnownEnds`, to be compared with later. Of a
                  group it takes the lease where it is not held: a broker that does not grant it counts as away
    queue_ranges, ranges, committed_offsets      leave out the queues of brokers that are away
    away          tells the caller which these are: positions in their queues stay as they are
    planned       begins again if a broker has gone in between; hands what it has found to `Outages`

Without it a broker that is away ends a call with its error, and known ends stay as unsure ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeVar

from pyspark_rmq.access.cluster_lookup import ClusterRows, find_rows, group_names, redriven_letters
from pyspark_rmq.cluster_read.awaited_brokers import KnownBrokers, Registrations, RequiredBrokers
from pyspark_rmq.cluster_read.ends import BrokerRange
from pyspark_rmq.cluster_read.known_ends import LOOK_MS_MAX, KnownEnds
from pyspark_rmq.cluster_read.look import Look
from pyspark_rmq.cluster_read.message_locations import MessageLocations
from pyspark_rmq.cluster_read.outages import Outages
from pyspark_rmq.cluster_read.range_reader import RangeReader, queue_of
from pyspark_rmq.cluster_read.topic_list import TopicList
from pyspark_rmq.position.position import Queue
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.cluster import (
    MASTER_ID,
    Cluster,
    GroupLease,
    KnownRoutes,
    MessageQueue,
    MQBrokerError,
    PullFilter,
    QueueRange,
    RemotingError,
    is_away,
    search_offsets,
    tells_nothing,
)
from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.real_time import monotonic

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_rmq.access.queue_source import Brokers, Lease, QueueSource, Redriven, SliceRead
    from pyspark_rmq.position.planning import Range

# With news Spark asks for the plan of the batch within this time.
PLANNING_MS: Final = 100.0
_NOBODY: Final[Mapping[str, Exception]] = MappingProxyType({})

Planned = TypeVar("Planned")


class ClusterReader:
    """The cluster as a store to read, for one thread. `on_close` is called once, by `close`. Of a condition `sql92`
    brokers may send messages that do not fulfil it. `away_ms`: of a task, see `RangeReader`.

    Offsets are queue offsets; queue ids are `BrokerQueueId`. Methods raise MQBrokerError if a broker refuses, and
    RemotingError if no process of it answers.
    """

    second_read_is_cheap = False  # what brokers send costs more than what is decoded

    def __init__(
        self,
        cluster: Cluster,
        *,
        pull_group: str = "",
        sql92: str | None = None,
        goes_on: bool = False,
        away_ms: int | None = None,
        on_close: Callable[[], None] = lambda: None,
        timer_ms: Callable[[], float] = lambda: monotonic() * 1000,
    ) -> None:
        self._cluster = cluster
        self._pull_group = pull_group
        pulls = PullFilter(group=pull_group) if pull_group else PullFilter()
        self._look = Look(cluster) if goes_on else None
        self._outages = Outages(cluster)
        self._unrouted: set[Queue] = set()
        # The cluster that plans ask.
        self._asked = asked = cluster if self._look is None else self._look
        self._locations = MessageLocations(asked, pulls)
        self._ranges = RangeReader(cluster, pulls.group, sql92, away_ms)
        self._on_close: Callable[[], None] | None = on_close
        self._timer_ms = timer_ms
        self._identity = ""
        self._ends = KnownEnds(asked)
        self._polled_ms = -LOOK_MS_MAX
        self._found_news = False
        self._topics = TopicList(asked)
        self._required = RequiredBrokers(asked)
        self._registrations = Registrations(asked)
        self._group: GroupLease | None = None
        self._query = ""
        # The brokers that have told their ends, and at which the lease is not held.
        self._not_held: Mapping[str, Exception] = _NOBODY

    @property
    def cluster(self) -> Cluster:
        """The cluster itself."""
        return self._cluster

    # -- the store as a whole -----------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """`cluster:<names>`: the clusters, with commas, whose brokers have the topics that were asked for; all that the
        name servers know before any was; "" if they know none yet. Name servers and brokers come and go, the name of a
        cluster stays.
        """
        routes = [self._asked.route(topic) for topic in self._ends.topics]
        found = {broker.cluster for route in routes if route for broker in route.brokers.values() if broker.cluster}
        if found:
            self._identity = ",".join(sorted(found))
        name = self._identity or self._name()
        return f"cluster:{name}" if name else ""

    def _name(self) -> str:
        try:
            return self._cluster.name
        except MQBrokerError as error:
            if self._look is None or not tells_nothing(error):
                raise
            return ""  # the name servers have just begun

    @property
    def clock(self) -> Callable[[], int]:
        """The clock of this host, ms since the epoch: brokers do not tell theirs."""
        return lambda: time.time_ns() // 1_000_000

    def refresh(self) -> None:
        """Ask for the ends of all topics that were asked for before, unless that was done a moment ago.

        Raises:
            LeaseHeldError: this process has a lease, and another client has it at a broker that came (back).
        """
        now_ms = self._timer_ms()
        interval_ms = self._ends.interval_ms()
        if now_ms - self._polled_ms < (max(PLANNING_MS, interval_ms) if self._found_news else interval_ms):
            return
        self._polled_ms = now_ms
        self._locations.forget()
        self._topics.look_again(now_ms)
        self._found_news = self._ends.ask_again(now_ms)
        self._hold()

    def planned(self, plan: Callable[[], Planned]) -> Planned:
        """See `Brokers.planned`."""
        look = self._look
        if look is None:
            return self._repeated(plan)
        before, self._unrouted = set(look.away), set()
        look.begin(self._outages.not_back(self._timer_ms()))
        if back := before.difference(look.away):
            self._polled_ms = -LOOK_MS_MAX
            self._ends.forget_quiet(back)
        try:
            return self._repeated(plan)
        finally:
            self._outages.found(look.silent, self._timer_ms())

    def _repeated(self, plan: Callable[[], Planned]) -> Planned:
        while True:
            away = set(self.away())
            try:
                return plan()
            except (RemotingError, MQBrokerError) as error:
                if not is_away(error) or away >= self.away().keys():
                    raise

    def topics(self) -> Mapping[str, object]:
        """All topics of the namespace by name, at most 30 s old; the same object as long as nothing changed."""
        return self._topics.all(self._timer_ms())

    def find_topic(self, name: str) -> object | None:
        """The topic's name if it has a route, or had one at brokers that are away now; None if there is none."""
        if name in self._ends.topics:
            return name
        return name if self._topics.has(name, self._timer_ms()) else None

    def unlisted_topics(self) -> Mapping[str, object]:
        """None: the name servers name all topics."""
        return {}

    def version(self) -> Hashable:
        """Another value after each change that `refresh` has found, and for other brokers that are away."""
        return self._ends.changes + self._topics.changes, frozenset(self.away())

    def is_still(self, version: Hashable) -> bool:
        """True as long as the next `refresh` would ask nobody."""
        return version == self.version() and self._timer_ms() - self._polled_ms < self._ends.interval_ms()

    # -- brokers ------------------------------------------------------------------------------------------------------

    def away(self) -> Mapping[str, Exception]:
        """See `Brokers.away`: those that do not answer, if the reader goes on without them, and those at which the
        lease is not held.
        """
        away = _NOBODY if self._look is None else self._look.away
        return {**self._not_held, **away} if self._not_held else away

    def newest_read(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """See `Brokers`. Nobody is asked."""
        away = self.away()
        return self._ends.newest_read({
            queue: offset for queue, offset in offsets.items() if queue.queue_id.broker_name not in away
        })

    def require_brokers(self, names: Sequence[str], topics: Collection[str]) -> None:
        """Return if these brokers are there. Those whose masters told ends at the last look are not asked again.

        Raises:
            BrokerAwayError: it names those that are away.
        """
        self._required.check(names, topics, self._ends.masters(), self._timer_ms())

    def awaits_registrations(self, topics: Collection[str]) -> bool:
        """See `Brokers.awaits_registrations`. Raises as `Registrations.are_awaited`."""
        if self._look is None:
            return False
        now_ms, were_awaited = self._timer_ms(), self._registrations.has_waited
        are_awaited = self._registrations.are_awaited(topics, now_ms)
        if were_awaited and not are_awaited:
            # Nothing of the earlier look counts: it told neither of brokers nor of topics.
            self._registrations.has_waited = False
            self._outages = Outages(self._cluster)
            self._look.begin()
            self._topics = TopicList(self._asked)
        return are_awaited

    def missing_brokers(self, known: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
        """See `Brokers.missing_brokers`."""
        now = {topic: {queue_id.broker_name for queue_id in self._ends.of(topic).all} for topic in known}
        return KnownBrokers.of(self._cluster).missing(self._asked, now, known)

    def known_brokers(self, queues: Iterable[Queue]) -> dict[BrokerQueueId, KnownRoutes]:
        """See `Brokers.known_brokers`."""
        ids = {queue.queue_id for queue in queues}
        names = {queue_id.broker_name for queue_id in ids}
        masters = frozenset(self._ends.masters() - self.away().keys())
        known = {
            name: replace(self._cluster.routes.known(brokers=[name]), masters=masters & {name}) for name in names
        }
        return {queue_id: known[queue_id.broker_name] for queue_id in ids}

    def take_over(self, known: KnownRoutes) -> None:
        """See `Brokers.take_over`."""
        self._cluster.take_over(known)

    def untold(self, queues: Iterable[Queue]) -> set[Queue]:
        """See `Brokers.untold`."""
        away = self.away()
        return {queue for queue in queues if queue.queue_id.broker_name in away or queue in self._unrouted}

    # -- queues -------------------------------------------------------------------------------------------------------

    def queue_ranges(self, topic: str) -> Mapping[BrokerQueueId, BrokerRange]:
        """The queues of a topic that may be read.

        Raises:
            UnknownTopicError: no broker has the topic.
            TopicKindError: its queues are kept in another way (batch queues, compaction, static, LMQ).
        """
        found, away = self._ends.of(topic).open, self.away()
        return {queue_id: limits for queue_id, limits in found.items() if queue_id.broker_name not in away}

    def ranges(self, queues: Iterable[Queue]) -> dict[Queue, Range]:
        """Each of these queues, also one that is not open for reading; without those that are `untold`, and those whose
        broker says that it does not have the topic.
        """
        away = self.away()
        found = self._ends.ranges_of([queue for queue in queues if queue.queue_id.broker_name not in away])
        if self._look is not None:
            # A broker that is back answers before name servers show it: whether a queue is open is not known yet.
            self._unrouted |= {queue for queue in found if not self._ends.shows(queue)}
        untold = self.untold(found)
        return {queue: limits for queue, limits in found.items() if queue not in untold}

    def offset_by_time(self, topic: str, queue_id: BrokerQueueId, timestamp_ms: int) -> int:
        """The first message stored at `timestamp_ms` or later; the end of the queue if there is none (29). It is known
        until the next look at the brokers.
        """
        return self._locations.offset_by_time(queue_of(topic, queue_id), timestamp_ms, self._queues)

    def offsets_by_time(self, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        """As `offset_by_time`, of queues with a time each. Those of one time are asked for together, and no others."""
        found: dict[Queue, int] = {}
        for time_ms in sorted(set(times_ms.values())):
            asked = {queue_of(*queue): queue for queue in times_ms if times_ms[queue] == time_ms}
            offsets = search_offsets(self._asked, sorted(asked), time_ms)
            found |= {asked[queue]: offset for queue, offset in offsets.items()}
        return found

    def commit_log_offset_before(self, topic: str, queue_id: BrokerQueueId, queue_offset: int) -> int:
        """Commit-log offset, at its broker, of the message before `queue_offset`; -1 if that is not there, or not at a
        slave that is asked while the master is away.
        """
        location = self._locations.location(queue_of(topic, queue_id), queue_offset - 1) if queue_offset > 0 else None
        return -1 if location is None else location.commit_log_offset

    def store_timestamp(self, topic: str, queue_id: BrokerQueueId, queue_offset: int) -> int:
        """When a message was stored, ms. OffsetOutOfRangeError: it is not there."""
        location = self._locations.location(queue_of(topic, queue_id), queue_offset)
        if location is None:
            limits = self.ranges([Queue(topic, queue_id)]).get(Queue(topic, queue_id), QueueRange(0, 0))
            raise OffsetOutOfRangeError(
                f"message {queue_offset} of {topic}-{queue_id} is not there", queue_offset,
                limits.min_offset, limits.max_offset,
            )  # fmt: skip
        return location.store_timestamp_ms

    def read_slice(self, wanted: SliceRead) -> Iterator[pa.RecordBatch]:
        """The messages of a slice, in order.

        Pulls go to the master, and to a slave while the master is away or asks for that. The broker compares hashes of
        tags; the texts are compared here.

        Raises:
            OffsetOutOfRangeError: the master does not have the messages (any more).
            QueueHoleError: messages are missing in the middle. SlaveBehindError: no slave has them yet.
            CorruptRecordError: a message is damaged. BrokerAwayError: of a task, its broker was waited for in vain.
        """
        topic, queue_id, start, end = wanted.part
        return self._ranges.read(
            topic, queue_id, start, end,
            columns=wanted.columns, tags=wanted.tags, raw_body=wanted.raw_body, only=wanted.only,
        )  # fmt: skip

    def find(
        self,
        topic: str,
        texts: Sequence[str],
        spans: Mapping[BrokerQueueId, tuple[int, int]],
        by: Literal["key", "unique key", "id"],
    ) -> ClusterRows:
        """The messages that brokers find for the texts. See `cluster_lookup.find_rows`."""
        return find_rows(self._cluster, topic, texts, spans, by)

    def redriven_of(self, group: str, queue_id: BrokerQueueId) -> Redriven | None:
        """The dead letters of a queue that `redrive` has moved, as its broker has recorded it. Raises as `read_slice`.
        """
        return redriven_letters(self._cluster, group, queue_id, self._pull_group)

    # -- groups -------------------------------------------------------------------------------------------------------

    def committed_offsets(self, group: str) -> Mapping[tuple[str, BrokerQueueId], int]:
        """The offsets that the group has committed in the topics that were asked for, by (topic, queue id) (14)."""
        found = self._of_group(group).committed(self._queues())
        return {
            (queue.topic, BrokerQueueId(queue.broker_name, queue.queue_id)): offset for queue, offset in found.items()
        }

    def starts_at_first_message(self, group: str, queue: Queue, max_offset: int) -> bool:
        """Whether the broker lets a new group begin at the first message of the queue, because the queue is young."""
        return self._of_group(group).starts_at_first_message(queue_of(queue.topic, queue.queue_id))

    def known_groups(self) -> list[str]:
        """The groups that any broker knows (201)."""
        return group_names(self._asked)

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, BrokerQueueId], int]) -> None:
        """Commit these queues at their masters; on return the brokers have them (15 with an answer).

        Raises:
            MQBrokerError: a broker refuses; the others have committed. RemotingError: a master does not answer.
        """
        self._of_group(group).are_away(self._silent_masters())
        self._of_group(group).commit({queue_of(*queue): offset for queue, offset in offsets.items()})

    def runs_of(self, query: str) -> None:
        """See `Runs.runs_of`."""
        self._query = query

    def lease(self, group: str, topic: str, owner: str) -> Lease:
        """Take the lease, and join the group. LeaseHeldError names the holder, or the live members of the group.
        RemotingError: a broker has told its ends, and does not grant the lock; `away` has it then.
        """
        of_group = self._of_group(group)
        of_group.are_away(self._silent_masters())
        lease = of_group.lease(topic, owner, self._query)
        before = self._not_held
        self._hold()
        for name in self._not_held.keys() - before.keys():
            raise RemotingError(str(self._not_held[name]))
        return lease

    def _hold(self) -> None:
        """Hold the lease, if there is one, at all brokers whose masters have told their ends."""
        if self._group is not None:
            self._group.are_away(self._silent_masters())
            self._not_held = self._group.hold_before_planning(self._ends.masters())

    def _silent_masters(self) -> list[str]:
        silent = () if self._look is None else self._look.silent
        return [name for name, broker_id in silent if broker_id == MASTER_ID]

    def _of_group(self, group: str) -> GroupLease:
        if self._group is None or self._group.name != group:
            self._group = GroupLease(self._cluster, group, asks=self._asked, instead="set commitOffsets=false")
        return self._group

    def _queues(self) -> list[MessageQueue]:
        away = self.away()
        return [queue for queue in self._ends.queues() if queue.broker_name not in away]

    # -- its life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group, and let go of the cluster."""
        on_close, self._on_close = self._on_close, None
        group, self._group, self._not_held = self._group, None, _NOBODY
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


if TYPE_CHECKING:

    def _is_source(cluster: ClusterReader) -> tuple[QueueSource, Brokers]:
        """Never called. mypy fails here if a member is missing, or has another signature."""
        return cluster, cluster
