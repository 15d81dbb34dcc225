"""Brokers of a cluster that are away when a read is planned, and their queues when they are back. Control plane.

A read of a cluster reads the brokers that its name servers know. They forget a broker that is away, so a new process
cannot know that rows are missing, unless the option requiredBrokers names it. If a process or a checkpoint knows more,
it is told (`warn`).

In a stream a queue turns up later because it is new, or because its broker was away when the query began. A new queue
has no message that is older than the query. Of the other kind the query must not read what was there before it began.
So the start of the query is kept in its position (`StreamPosition.since`), and each such queue begins at the first
message that its broker has stored then or later (29):

    start of the query              kept for queues that turn up
    latest, or -1 for all queues    the time of this host when the query began, taken before the brokers were asked
      of the topic
    a time                          that time; of several times in a topic the earliest
    earliest, or an offset          nothing: such a queue is read from its first message
    a group                         nothing else: the group's offset at the queue's broker comes first. Of a queue
                                    without one as above, or as `consumeFromWhere` says; a young queue from 0

Retry topics of the query's group are always read from their first message: what failed is not skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pyspark_rmq.access.queue_source import Brokers, QueueSource
from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.options.option_values import FROM_LAST, FROM_TIMESTAMP
from pyspark_rmq.options.options import RETRY_PREFIX, SourceOptions
from pyspark_rmq.position.planning import Range
from pyspark_rmq.position.position import ANY_TOPIC, LATEST, Position, Queue, StreamPosition, describe
from pyspark_rmq.position.queue_ids import broker_of
from pyspark_rmq.read import loss_report

_log = logging.getLogger(__name__)


def warn(
    store: QueueSource, options: SourceOptions, queues: Collection[Queue], position: StreamPosition | None = None
) -> None:
    """Warn of brokers that had queues of the topics that are read, and that are away: as this process has seen, or as
    the `position` of a stream says. `queues`: those that are read now.
    """
    if not isinstance(store, Brokers):
        return
    known: dict[str, set[str]] = {queue.topic: set() for queue in queues}
    for queue in () if position is None else (*position.next, *position.closed):
        broker = broker_of(queue.queue_id)
        if broker is not None and queue.topic in known:
            known[queue.topic].add(broker)
    what = "the batch lacks their rows" if position is None else "the stream reads their rows when they are back"
    for topic, brokers in store.missing_brokers(known).items():
        _log.warning(
            "brokers that had queues of %s are away, %s: no name server of %s knows them now. %s; the option "
            "requiredBrokers makes such a read fail", topic, ", ".join(sorted(brokers)), options.place, what,
        )  # fmt: skip


def warn_of_state(options: SourceOptions, queues: Collection[Queue]) -> None:
    """Warn, when a stream starts, of what goOn means for a query with state, unless the user has chosen onBrokerAway.
    Spark does not tell a source whether its query has state; of one broker alone no rows come late.
    """
    brokers = {broker_of(queue.queue_id) for queue in queues} - {None}
    if len(brokers) > 1 and not options.chose_on_broker_away:
        _log.warning(
            "while a broker is away, the stream reads the others (onBrokerAway=goOn). If the query has state with a "
            "watermark (windows, joins, dropDuplicates), Spark drops the rows of that broker as late when it is back: "
            "set onBrokerAway=wait for such a query, and goOn for one without state"
        )


def since_start(options: SourceOptions) -> dict[str, int]:
    """`StreamPosition.since` of a query that begins now: of the topics that it subscribes to, or of all with a pattern.
    A topic that the user adds to `subscribe` later is read from its first message. Nothing where queues never
    turn up late, as in a store, and with `assign`, whose queues are all there at the start.
    """
    subscription = options.subscription
    location = location_of(options)
    if not location.queues_turn_up_late or subscription.assign is not None:
        return {}
    topics = subscription.topics if subscription.pattern is None else (ANY_TOPIC,)
    started_ms = location.clock()()
    starting = _explicit(options)
    if starting is None:
        if options.group is None or options.consume_from_where == FROM_LAST:
            return dict.fromkeys(topics, started_ms)
        is_time = options.consume_from_where == FROM_TIMESTAMP
        return dict.fromkeys(topics, options.consume_timestamp_ms) if is_time else {}
    if starting.kind == "latest":
        return dict.fromkeys(topics, started_ms)
    if starting.kind == "timestamp":
        return dict.fromkeys(topics, starting.timestamp_ms)
    by_topic: dict[str, set[int]] = {}
    for queue, value in starting.values.items():
        by_topic.setdefault(queue.topic, set()).add(value)
    if starting.kind == "timestamps":
        return {topic: min(times_ms) for topic, times_ms in by_topic.items()}
    return {topic: started_ms for topic, offsets in by_topic.items() if offsets == {LATEST}}


def _explicit(options: SourceOptions) -> Position | None:
    """The starting option of the user, if it is one about queues."""
    return options.starting if options.starting is not None and options.starting.kind != "group" else None


def late_queue_start(
    store: QueueSource, options: SourceOptions, begin: StreamPosition, ranges: Mapping[Queue, Range]
) -> dict[Queue, int]:
    """The queue offsets at which queues start that turned up behind `begin`, and in which the group of the query has
    committed nothing. A warning and a line in the log of losses have what is skipped.
    """
    first = {queue: limits.min_offset for queue, limits in ranges.items()}
    since = {queue: begin.since_ms(queue.topic) for queue in ranges if _has_a_start(options, queue)}
    asked = {queue: time_ms for queue, time_ms in since.items() if time_ms is not None}
    if not location_of(options).queues_turn_up_late:
        return first
    if not begin.since:
        _warn_of_old_checkpoint(options, {queue: ranges[queue] for queue in since.keys() - asked.keys()})
    if options.group is not None and _explicit(options) is None:
        asked = {
            queue: time_ms
            for queue, time_ms in asked.items()
            if ranges[queue].min_offset > 0
            or not store.starts_at_first_message(options.group, queue, ranges[queue].max_offset)
        }
    found = store.offsets_by_time(asked)
    # Between the two questions messages came, or retention took some.
    later = {queue: min(max(at, ranges[queue].min_offset), ranges[queue].max_offset) for queue, at in found.items()}
    older = {queue: at for queue, at in later.items() if at > first[queue]}
    if not older:
        return first
    what = describe([(*queue, first[queue], at) for queue, at in older.items()])
    times = ", ".join(f"{topic} {begin.since_ms(topic)}" for topic in sorted({queue.topic for queue in older}))
    about = f"{what}, in queues that turned up after the query began, are older than its start (ms: {times})"
    if not options.skip_older:
        _log.warning("messages %s; they are read, because onLateQueue=read", about)
        return first
    _log.warning("messages %s; they are skipped. To read such messages, set onLateQueue=read", about)
    gone = [(*queue, first[queue], at) for queue, at in sorted(older.items())]
    loss_report.record(options, gone, [loss_report.BEFORE_START] * len(gone))
    return {**first, **older}


def _has_a_start(options: SourceOptions, queue: Queue) -> bool:
    if queue.topic == options.subscription.of_group:
        return False
    by_group = options.group is not None and _explicit(options) is None
    return not (by_group and queue.topic.startswith(RETRY_PREFIX))


def _warn_of_old_checkpoint(options: SourceOptions, ranges: Mapping[Queue, Range]) -> None:
    """An earlier version has not kept the start of the query: whether its messages are older is not known."""
    expected = StreamPosition("", {}, since=since_start(options))
    whole = [
        (*queue, limits.min_offset, limits.max_offset)
        for queue, limits in ranges.items()
        if limits.max_offset > limits.min_offset and expected.since_ms(queue.topic) is not None
    ]
    if whole:
        _log.warning(
            "the checkpoint does not have the start of the query, because an earlier version began it: messages %s of "
            "queues that turned up are all read, also those that are older than the query", describe(whole),
        )  # fmt: skip
