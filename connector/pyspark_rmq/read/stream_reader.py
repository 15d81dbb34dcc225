"""The micro-batch reader. Spark builds it in several processes; all but one only call `read`. Control plane.

This class owns the store, the leases of the group and the pin of the running batch. `StreamPlan` has the arithmetic.
The order of Spark's calls in the planning process (MicroBatchExecution):

    start        prepareForTriggerAvailableNow, if that is the trigger; getDefaultReadLimit
    new query    initialOffset, until the first batch is planned
    restart      partitions(start, end) of the last batch, if it was not completed. Its start is asked from
                 initialOffset again if it was the first one
    trigger      latestOffset(start, limit), reportLatestOffset; if there is something new: commit(start), partitions
    end          stop(), by SIGTERM (`ending`) or when the driver is gone. A killed process does not call it, so `stop`
                 must do nothing but close
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmq.access.executor_check import SentToExecutors
from pyspark_rmq.access.queue_source import (
    Brokers,
    DelayedMessages,
    Pin,
    Pins,
    Planned,
    QueueSource,
    Runs,
    Sizes,
    held,
)
from pyspark_rmq.access.spark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark_rmq.access.store_location import Identity, location_of
from pyspark_rmq.options.options import SourceOptions
from pyspark_rmq.position import planning
from pyspark_rmq.position.fingerprint import fingerprints_before
from pyspark_rmq.position.planning import QueueSlice, Range
from pyspark_rmq.position.position import Queue, QueueOffsets, StreamPosition, new_query_id
from pyspark_rmq.position.stream_plan import StreamPlan, batch_slices, moved, with_opened_again
from pyspark_rmq.query.absences import Absences
from pyspark_rmq.query.ending import stop_when_terminated
from pyspark_rmq.query.fixed_ends import FixedEnds
from pyspark_rmq.read import away_brokers, loss_detection, starting_offsets
from pyspark_rmq.read.group import GroupMember, describe_owner
from pyspark_rmq.read.idle_poll import IdlePoll
from pyspark_rmq.read.loss_detection import History
from pyspark_rmq.read.task import SlicePartition, known_brokers, read_partition, with_brokers
from pyspark_rmq.schema.schema import source_columns
from rmq_store.real_time import monotonic

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.cluster import BrokerAwayError

_log = logging.getLogger(__name__)

# A batch is planned only after the delivery: more waiting messages than that come in several batches.
_DELIVERED_AT_ONCE = 100_000
# A plan of AvailableNow that may not plan is made again after this time.
_HELD_AGAIN_S = 1.0


class _OpenStore(NamedTuple):
    """The store that this process has open; `member` holds the leases of a query that commits for its group."""

    reader: QueueSource
    identity: Identity
    member: GroupMember | None


class _View(NamedTuple):
    """The subscribed queues, as they were with this table of topics, this version of the source, and these required
    brokers away (`missed`). `had`: the topics of the position, which are subscribed also where no list has them.
    """

    topics: Mapping[str, object]
    version: Hashable
    missed: BrokerAwayError | None
    had: frozenset[str]
    ranges: dict[Queue, Range]

    def is_still(self, other: _View) -> bool:
        """Whether nothing has changed in `other`, which has no ranges yet."""
        names, others = (() if one.missed is None else one.missed.broker_names for one in (self, other))
        is_same = self.topics is other.topics and self.version == other.version and names == others
        return is_same and other.had <= self.had


class RmqStreamReader(SentToExecutors, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream`: plans batches over the subscribed queues, and commits a group's offsets."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        source_columns(schema)
        self._store: _OpenStore | None = None
        self._initial: StreamPosition | None = None
        self._refused: Exception | None = None
        self._history = History(options)
        self._absences = Absences(options)
        # None: not known, or the name servers have just begun, and nobody can tell of the topics.
        self._view: _View | None = None
        self._idle: IdlePoll | None = None
        # Ranges of which a loss was reported, with the report.
        self._report: tuple[dict[Queue, Range], dict[str, Any]] | None = None
        self._fixed = FixedEnds(self._absences)
        # The ranges that the tasks of the batch that ends at the position are going to read.
        self._pinned: tuple[StreamPosition, Pin] | None = None
        # Of a query whose position has no id yet.
        self._new_query = new_query_id()
        self._last_batch_s: float | None = None
        self._warned = False
        self._is_full = False

    def initialOffset(self) -> dict[str, Any]:
        """Return the position at which a new query starts; the same answer until the process ends."""
        if self._initial is None:
            # Before the brokers are asked: what comes in between is not older than the query.
            since = away_brokers.since_start(self._options)
            self._initial = self._in_plan(lambda store: self._first_position(store, since))
        return self._initial.to_json()

    def _first_position(self, store: QueueSource, since: Mapping[str, int]) -> StreamPosition:
        from rmq_store.cluster import BrokerAwayError
        from rmq_store.errors import UsageError

        query = self._query_of(store, None)
        ranges = self._poll(store, ())
        start: QueueOffsets = {}
        self._refused = None
        try:
            if self._view is None or self._view.missed is not None:
                starting_offsets.refuse_for_now(self._options, self._view and self._view.missed)
            if self._view is not None:
                start = starting_offsets.stream_start(store, self._options, ranges)
        except (UsageError, BrokerAwayError) as error:
            # A new query is refused by `latestOffset`. A first batch that is repeated knows where it began, and
            # goes on although, say, the option does not name a queue that was added since.
            self._refused = error
        # A first batch that was planned but not completed is repeated from here: see `began` in offsets.py.
        return StreamPosition(store.identity, start, began=start, since=since, query=query)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tell Spark whether the options have limits. With Trigger.Once Spark asks for everything instead."""
        limits = self._options.limits
        if limits.max_rows is not None:
            return ReadMaxRows(limits.max_rows)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_rows is not None:
            return ReadMinRows(limits.min_rows)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends of the queues, after delivering the messages that are due: this run reads up to these ends."""
        self._absences.is_available_now = True
        self._in_plan(lambda store: self._fix_ends(store, None))

    def _fix_ends(self, store: QueueSource, known: Collection[Queue] | None) -> None:
        self._deliver_due(store, None)
        # The lease is taken by the next call, which knows the position, and with it whose run this is.
        view = self._seen(store, known)
        if view is None:
            self._fixed.take_none()
            return
        missing = None
        if known is not None:
            topics = starting_offsets.subscribed_topics({queue.topic for queue in known}, self._options.subscription)
            missing = [queue for queue in known if queue.topic in topics and queue not in view.ranges]
        self._fixed.take(store, view.ranges, view.missed, missing)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` itself if there is nothing to read (or not enough yet).

        The sink has completed everything before `start`, so this commits `start` to the group. Spark calls it up to 95
        times a second while it is idle. It also delivers delayed messages that are due.
        """
        while True:
            if self._fixed.lack_some:
                self._in_plan(partial(self._fix_ends, known=StreamPosition.from_json(start).next))
            now_s = monotonic()
            idle = self._idle
            if self._store is not None and idle is not None and idle.holds(self._store.reader, start, now_s):
                end = start
            else:
                end = self._in_plan(partial(self._planned, start=start, limit=limit, now_s=now_s))
            if self._fixed.by_queue is None or end != start or (self._fixed.are_whole and not self._is_held):
                return end
            # AvailableNow ends with the first plan that has nothing, unless brokers are waited for. Spark interrupts
            # this wait (`query.stop()`).
            sleep(_HELD_AGAIN_S)

    def latest_offset_blindly(self) -> dict[str, Any]:
        """Return the end of a first batch, within the limits of the options, for a caller that does not know whether
        the query is a new one (`untold_reader`). Nothing is committed, and the position is marked.
        """
        plan = partial(self._planned, start=self.initialOffset(), limit=self.getDefaultReadLimit(), now_s=monotonic())
        end = StreamPosition.from_json(self._in_plan(partial(plan, is_blind=True)))
        return replace(end, blind=True).to_json()

    @property
    def _is_held(self) -> bool:
        """Whether no batch may be planned until brokers are back, or have registered."""
        return self._view is None or self._absences.holds

    def _planned(
        self, store: QueueSource, start: dict[str, Any], limit: ReadLimit, now_s: float, *, is_blind: bool = False
    ) -> dict[str, Any]:
        due_ms = self._deliver_due(store, _DELIVERED_AT_ONCE)
        begin = StreamPosition.from_json(start)
        query = self._query_of(store, begin)
        seen = self._poll(store, begin.next)
        if self._view is None:
            self._fixed.are_whole = False
            return start
        missed = self._view.missed
        idle = IdlePoll(start, seen, self._view.version, due_ms, now_s)
        if self._idle is not None and self._idle.start == start and self._idle.ranges is seen:
            self._idle = idle
            self._absences.seen(store, missed, begin)
            return start
        first = replace(begin, blind=False, source={}) == self._initial
        if first and self._refused is not None:
            begin = self._first_position(store, begin.since)  # brokers may be there now
            if self._refused is not None:
                if not starting_offsets.is_for_brokers(self._refused) or not self._absences.seen(store, missed, begin):
                    raise self._refused
                return start
        ranges = planning.not_behind(seen, begin.next)
        if self._pinned is not None and self._pinned[0] == begin:
            self._unpin()
        if not self._warned:
            self._warn_if_overruled()
            away_brokers.warn_of_state(self._options, {*ranges, *begin.next})
            away_brokers.warn(store, self._options, ranges, begin)
            self._warned = True
        closed, away = self._unread(store, begin, ranges)
        holds = self._absences.seen(store, missed, begin)
        back = self._history.check(store, with_opened_again(begin, ranges), ranges)
        plan = StreamPlan.of(replace(begin, query=query), ranges, back, self._fixed.by_queue, is_first=first, held=away)
        if not is_blind:
            self._complete(plan.begin, ranges, away)
        if holds:
            self._idle, self._fixed.are_whole = idle, False
            return start
        if plan.new_queues:
            plan = plan.starting(starting_offsets.new_queue_start(store, self._options, begin, plan.new_queues))
        end = self._end(store, plan, isinstance(limit, ReadAllAvailable))
        if not plan.is_new(end):
            if end == plan.available:
                self._idle = idle
            return start
        if plan.has_messages(end):
            self._last_batch_s = monotonic()
        asked_of = partial(_newest_read, store, closed) if isinstance(store, Brokers) else None
        after = fingerprints_before(store, end | closed, plan.begin, asked_of)
        _release_files(store)
        position = plan.position(store.identity, end, after, closed)
        self._history.taken(store, plan.begin, position)
        return position.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known ends of the queues, without limits, and the path and group of the source; for the
        query's progress (`lag_tracking`). Of a cluster also onBrokerAway, and `away` names the brokers that are away:
        ends of their queues are not there.
        """
        view = self._view
        if self._store is None or view is None or not (view.ranges or self._absences.names):
            return None
        if self._report is None or self._report[0] is not view.ranges:
            ends = {queue: limits.max_offset for queue, limits in view.ranges.items()}
            options = self._options
            location = location_of(options).in_progress | ({"group": options.group} if options.group else {})
            away: dict[str, Any] = {"away": self._absences.names} if self._absences.names else {}
            if isinstance(self._store.reader, Brokers):
                away["onBrokerAway"] = options.on_broker_away
            self._report = view.ranges, StreamPosition(self._store.reader.identity, ends).to_json() | location | away
        return self._report[1]

    @property
    def limit_options(self) -> list[str]:
        """The options that limit a batch and are given."""
        limits = self._options.limits
        given = {
            "maxOffsetsPerTrigger": limits.max_rows,
            "maxBytesPerTrigger": limits.max_bytes,
            "minOffsetsPerTrigger": limits.min_rows,
        }
        return [name for name, value in given.items() if value is not None]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch, and pin the messages that they read until the batch is completed or planned again.

        Raises `DataLossError` if a part of the batch is gone and failOnDataLoss is on.
        """
        begin, finish = StreamPosition.from_json(start), StreamPosition.from_json(end)
        return self._in_plan(lambda store: self._partitions(store, begin, finish))

    def _partitions(self, store: QueueSource, begin: StreamPosition, finish: StreamPosition) -> list[InputPartition]:
        parts = self._parts(store, begin, finish)
        split = planning.split(parts, self._options.min_partitions)
        return with_brokers(map(SlicePartition, split), known_brokers(store, parts))

    def _parts(self, store: QueueSource, begin: StreamPosition, finish: StreamPosition) -> list[QueueSlice]:
        self._query_of(store, finish)
        self._poll(store, finish.next)
        queues = list(finish.next)
        if not isinstance(store, Brokers):
            known = {topic for topic in {queue.topic for queue in queues} if store.find_topic(topic) is not None}
            queues = [queue for queue in queues if queue.topic in known]
        ranges = self._ranges_of(store, finish, queues)
        self._history.check(store, begin, ranges)
        # Messages that came instead of planned ones are read by the next batch, which goes back.
        back = self._history.check(store, finish, ranges)
        wanted = batch_slices(begin, self._continued(store, begin, finish, ranges), back)
        self._unpin()
        pin = _pin(store, wanted, ranges)
        if pin is not None:
            self._pinned = finish, pin
            # Messages that retention took before they were pinned.
            ranges = self._ranges_of(store, finish, ranges)
        # Spark has written down what the batch reads. Tasks wait for brokers that are away.
        away = held(store, finish.next.keys() - ranges.keys())
        told = [part for part in wanted if part.queue not in away]
        existing = loss_detection.existing_or_fail(told, ranges, self._options)
        return [*existing, *(part for part in wanted if part.queue in away)]

    def _continued(
        self, store: QueueSource, begin: StreamPosition, finish: StreamPosition, ranges: Mapping[Queue, Range]
    ) -> StreamPosition:
        """The end of a batch that was planned blindly, with the starts of queues as if `begin` had been known."""
        if not finish.blind or begin == self._initial:
            return finish
        back = self._history.check(store, begin, ranges)
        plan = StreamPlan.of(begin, ranges, back, finish.next, is_first=False)
        if plan.new_queues:
            plan = plan.starting(starting_offsets.new_queue_start(store, self._options, begin, plan.new_queues))
        return replace(finish, began=plan.began)

    def _ranges_of(
        self, store: QueueSource, finish: StreamPosition, queues: Iterable[Queue]
    ) -> Mapping[Queue, Range]:
        return planning.not_behind(store.ranges(queues), finish.next)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. It runs in a worker, and uses only options and schema."""
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit a completed batch to the group; usually `latestOffset` has done so already."""
        if self._options.group is not None and self._options.commit_offsets:
            self._in_plan(lambda store: self._commit(store, StreamPosition.from_json(end)))

    def _commit(self, store: QueueSource, position: StreamPosition) -> None:
        self._query_of(store, position)
        ranges = planning.not_behind(self._poll(store, position.next), position.next)
        # The store may just have been replaced.
        back = self._history.check(store, position, ranges)
        self._complete(moved(position, back), ranges, held(store, position.next.keys() - ranges.keys()))

    def stop(self) -> None:
        """Release leases and store at once, if Spark calls this; the end of the process does the same."""
        store, self._store = self._store, None
        # From the last one to the first, each of them whatever became of the others.
        with contextlib.ExitStack() as stack:
            if store is not None:
                stack.callback(store.identity.close)
                stack.callback(store.reader.close)
                if store.member is not None:
                    stack.callback(store.member.leave)
            stack.callback(self._unpin)

    def _unpin(self) -> None:
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            pinned[1].release()

    def _in_plan(self, plan: Callable[[QueueSource], Planned]) -> Planned:
        """The result of `plan`. It begins again without a broker that goes while it runs (`Brokers.planned`)."""
        store = self._opened()
        return store.planned(lambda: plan(store)) if isinstance(store, Brokers) else plan(store)

    def _query_of(self, store: QueueSource, position: StreamPosition | None) -> str:
        """The id of this query for its positions, as the position has it, or a new one; "" where it needs none. Leases
        are taken for it from here on.
        """
        if self._member is None or not isinstance(store, Runs):
            return ""
        query = (position.query if position is not None else "") or self._new_query
        store.runs_of(query)
        return query

    def _seen(self, store: QueueSource, known: Collection[Queue] | None) -> _View | None:
        """The subscribed queues as they are now; `known` are those of the position, see `starting_offsets.subscribed`.
        The view of the last `_poll` as long as neither the log nor the table of topics changed. None while the name
        servers of a stream that starts have just begun: nobody can tell of its topics.
        """
        loss_detection.check_side(store, known or ())
        store.refresh()
        subscription = self._options.subscription
        if isinstance(store, Brokers):
            named = subscription.assign or subscription.topics
            if store.awaits_registrations([*named, *(queue.topic for queue in known or ())]):
                return None
        missed = starting_offsets.missed_brokers(store, self._options)
        # In this order: what is written in between is seen at the next look.
        topics, version = starting_offsets.known_topics(store, subscription), store.version()
        now = _View(topics, version, missed, frozenset(queue.topic for queue in known or ()), {})
        if self._view is not None and self._view.is_still(now):
            return self._view
        return now._replace(ranges=starting_offsets.subscribed(store, subscription, known))

    def _poll(self, store: QueueSource, known: Collection[Queue] | None) -> dict[Queue, Range]:
        """Return the subscribed queues, see `_seen`; the group's leases are held from here on. Empty without a view."""
        now, member = self._seen(store, known), self._member
        if now is None:
            self._view = None
            return {}
        if member is not None:
            if now is self._view:
                member.heartbeat()
            else:
                # The retry topic's before it exists: a second query of the group is refused now, not at the first
                # failure.
                of_group = self._options.subscription.of_group
                own = () if of_group is None else (of_group,)
                member.claim([*(queue.topic for queue in now.ranges), *own])
        self._view = now
        return now.ranges

    def _opened(self) -> QueueSource:
        if self._store is not None and not self._store.identity.is_unchanged():
            self._forget()
        if self._store is None:
            self._store = self._open()
            starting_offsets.warn_of_unlisted(self._store.reader, self._options.subscription)
        return self._store.reader

    @property
    def _member(self) -> GroupMember | None:
        return None if self._store is None else self._store.member

    def _open(self) -> _OpenStore:
        options = self._options
        group = options.group if options.commit_offsets else None
        if group is not None:
            stop_when_terminated(self.stop)
        location = location_of(options)
        identity = location.identity()
        try:
            store = location.open_to_read() if group is None else location.open_to_commit(group)
        except BaseException:
            identity.close()
            raise
        owner = describe_owner(options.consumer_name or "a Spark stream")
        return _OpenStore(store, identity, None if group is None else GroupMember(store, group, owner))

    def _forget(self) -> None:
        """Close a store that is not at its path any more. The next call opens the store that is there now, and checks
        the position against it, as after a restart.
        """
        _log.warning("%s was moved, deleted or replaced: it is opened again", self._options.place)
        try:
            self.stop()
        except Exception as error:  # nothing can be done for it
            _log.warning("%s, as it was, could not be closed: %s", self._options.place, error)
        self._view, self._idle = None, None
        self._history.forget()

    def _deliver_due(self, store: QueueSource, limit: int | None) -> int | None:
        """Returns when the next waiting message is due, if one waits that can be delivered."""
        from rmq_store.errors import StoreFullError

        if self._member is None or not isinstance(store, DelayedMessages):
            return None
        try:
            next_due_ms = store.deliver_due(limit)
            self._is_full = False
            return next_due_ms
        except StoreFullError as error:  # what is there can be read; a broker delivers nothing then, either
            if not self._is_full:
                _log.warning("delayed messages wait for room: %s", error)
            self._is_full = True
            return None

    def _unread(
        self, store: QueueSource, begin: StreamPosition, ranges: Mapping[Queue, Range]
    ) -> tuple[dict[Queue, int], set[Queue]]:
        """The closed queues with the offsets at which they continue, and the queues whose brokers are away; reports
        other queues that cannot be read any more.
        """
        missing = [queue for queue in begin.next if queue not in ranges]
        if not missing and not begin.closed:
            return {}, set()
        # Of the position: name servers that have just begun list no topic.
        had = {queue.topic for queue in (*missing, *begin.closed)}
        subscription = self._options.subscription
        existing = {*starting_offsets.known_topics(store, subscription), *had}
        topics = starting_offsets.subscribed_topics(existing, subscription)
        closed, away = loss_detection.still_closed(store, begin, ranges, topics), set[Queue]()
        if missing:
            present = {queue.topic for queue in ranges}
            going_on, away = loss_detection.check_missing(store, begin, missing, topics, present, self._options)
            closed |= going_on
        return closed, away

    def _complete(self, position: StreamPosition, ranges: Mapping[Queue, Range], away: Collection[Queue]) -> None:
        # The query does not commit queues that it no longer reads (unsubscribed, deleted): it has no lease on them.
        if self._member is not None:
            read = {queue: offset for queue, offset in position.next.items() if queue in ranges or queue in away}
            self._member.completed(read, away)

    def _warn_if_overruled(self) -> None:
        # A new query has asked for its initial position before. This one comes from a checkpoint.
        if self._initial is None and self._options.starting is not None:
            _log.warning("the query goes on from its checkpoint: the starting option is not used")

    def _end(self, store: QueueSource, plan: StreamPlan, everything: bool) -> dict[Queue, int]:
        return plan.end(
            self._options.limits,
            everything=everything,
            waited_ms=None if self._last_batch_s is None else (monotonic() - self._last_batch_s) * 1000,
            bytes_between=lambda queue, first, last: _sizes(store).bytes_between(*queue, first, last),
            offset_after_bytes=lambda queue, first, last, size: _sizes(store).offset_after_bytes(
                *queue, first, last, size
            ),
        )


def _sizes(store: QueueSource) -> Sizes:
    assert isinstance(store, Sizes)  # without them the options refuse maxBytesPerTrigger
    return store


def _newest_read(brokers: Brokers, closed: Container[Queue], moved: Mapping[Queue, int]) -> Collection[Queue]:
    """The queues that moved about which brokers are asked. Of closed ones they refuse pulls."""
    return brokers.newest_read({queue: offset for queue, offset in moved.items() if queue not in closed})


def _release_files(store: QueueSource) -> None:
    """Let retention have the files that were looked at."""
    if isinstance(store, Pins):
        store.unpin()


def _pin(store: QueueSource, wanted: Sequence[QueueSlice], ranges: Mapping[Queue, Range]) -> Pin | None:
    """Pin the log from the first existing message of these slices to the last one; None if none exists, or if nothing
    can be pinned.
    """
    if not isinstance(store, Pins):
        return None
    bounds = {queue: (limits.min_offset, limits.max_offset) for queue, limits in ranges.items()}
    log_offsets: list[int] = []
    for part in planning.clip(wanted, bounds):
        log_offsets += [store.commit_log_offset_before(*part.queue, offset) for offset in (part.start + 1, part.end)]
    found = [offset for offset in log_offsets if offset >= 0]
    return store.pin(min(found), max(found) + 1) if found else None
