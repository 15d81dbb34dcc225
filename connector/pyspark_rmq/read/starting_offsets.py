"""Resolves positions of the user, and committed offsets of groups, to queue offsets. Reads the store, changes nothing.
Control plane.

A stream starts at the first of these that exists: its checkpoint (Spark reads it), the committed offset of its group, a
starting option of the user, `consumeFromWhere`. Each queue is decided on its own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark_rmq.access.queue_source import Brokers, QueueSource, held
from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.options.option_table import FAIL
from pyspark_rmq.options.option_values import FROM_LAST, FROM_TIMESTAMP
from pyspark_rmq.options.options import RETRY_PREFIX, SourceOptions, Subscription
from pyspark_rmq.position.planning import Range, UnsureRange
from pyspark_rmq.position.position import EARLIEST, LATEST, Position, Queue, StreamPosition, describe, refuse
from pyspark_rmq.position.queue_ids import QueueId, broker_of, named_in_full, quoted
from pyspark_rmq.read import loss_report
from pyspark_rmq.read.away_brokers import late_queue_start
from pyspark_rmq.read.loss_detection import report_loss
from rmq_store.errors import did_you_mean

if TYPE_CHECKING:
    from rmq_store.cluster import BrokerAwayError

_log = logging.getLogger(__name__)

# Topics of a warning.
_NAMED = 3

_NO_LIST: Final[Mapping[str, object]] = MappingProxyType({})

Ranges = Mapping[Queue, Range]


def require_brokers(store: QueueSource, options: SourceOptions) -> None:
    """Raise `BrokerAwayError` if a broker of requiredBrokers is away."""
    if options.required_brokers and isinstance(store, Brokers):
        topics = subscribed_topics(store.topics(), options.subscription)
        store.require_brokers(options.required_brokers, topics)


def missed_brokers(store: QueueSource, options: SourceOptions) -> BrokerAwayError | None:
    """The error that names the brokers of requiredBrokers that are away: a stream may wait for them (`Absences`).
    Raises it with onBrokerAway=fail.
    """
    from rmq_store.cluster import BrokerAwayError

    try:
        require_brokers(store, options)
    except BrokerAwayError as error:
        if options.on_broker_away == FAIL:
            raise
        return error
    return None


def refuse_for_now(options: SourceOptions, missed: BrokerAwayError | None) -> None:
    """Raise `BrokerAwayError` if the starting option names queues: not all brokers are there whose queues it may name.
    `missed`: required ones; None: no broker has registered yet.
    """
    from rmq_store.cluster import BrokerAwayError

    if options.starting is not None and options.starting.values:
        raise missed or BrokerAwayError("no broker has registered at the name servers yet", ())


def is_for_brokers(refused: Exception) -> bool:
    """Whether a start was refused only because brokers are away."""
    from rmq_store.cluster import BrokerAwayError

    return isinstance(refused, BrokerAwayError)


def subscribed(
    store: QueueSource, subscription: Subscription, known: Collection[Queue] | None = ()
) -> dict[Queue, Range]:
    """Return the queues that are read, with their ranges; none of brokers that are away.

    `known`: the queues that the position has. While a broker of theirs is away, nobody may tell that there is a topic,
    or a queue. None: the position is not known, so an unknown topic or queue of a cluster is no error yet.

    Raises:
        UnknownTopicError: a topic that the user named does not exist.
        UsageError: an assigned queue does not exist, or is not open for reading (readQueueNums).
    """
    queues: dict[Queue, Range] = {}
    own = subscription.of_group
    topics = known_topics(store, subscription)
    existing = {*topics, own} if own is not None and store.find_topic(own) is not None else topics
    if isinstance(store, Brokers):
        existing = {*existing, *(queue.topic for queue in known or ())}
    for topic in subscribed_topics(existing, subscription):
        ranges = _ranges_of_topic(store, subscription, topic, known)
        untold = _held_of_topic(store, topic, ranges, known) if subscription.assign else ()
        for queue_id in _chosen(subscription, topic, {*ranges, *untold}):
            if queue_id in untold or (queue_id not in ranges and known is None and isinstance(store, Brokers)):
                continue
            if queue_id not in ranges:
                has = ", ".join(map(str, sorted(ranges)))
                refuse(f"option assign: topic {topic!r} has no queue {queue_id} to read; it has [{has}]")
            queues[Queue(topic, queue_id)] = ranges[queue_id]
    return queues


def _ranges_of_topic(
    store: QueueSource, subscription: Subscription, topic: str, known: Collection[Queue] | None
) -> Mapping[QueueId, Range]:
    from rmq_store.errors import UnknownTopicError

    try:
        return store.queue_ranges(topic)
    except UnknownTopicError:
        # A topic of a pattern, or of the group itself, may have gone: the position's queues are reported as deleted.
        is_named = topic in (subscription.assign or subscription.topics)
        if is_named and known is not None and not _held_of_topic(store, topic, (), known):
            raise
        return {}


def _held_of_topic(
    store: QueueSource, topic: str, told: Collection[QueueId], known: Collection[Queue] | None
) -> set[QueueId]:
    """The queues of a topic that the position has, that are not `told`, and whose brokers are away."""
    queues = [queue for queue in known or () if queue.topic == topic and queue.queue_id not in told]
    if not queues or not isinstance(store, Brokers):
        return set()
    store.ranges(queues)  # it asks brokers that were not asked yet
    return {queue.queue_id for queue in held(store, queues)}


def _chosen(subscription: Subscription, topic: str, existing: Collection[QueueId]) -> list[QueueId]:
    """The queues of a topic that the subscription names; all that are `existing` if it names none."""
    assigned = (subscription.assign or {}).get(topic)
    if assigned is None:
        return sorted(existing)
    chosen = [_in_full(Queue(topic, queue_id), existing, "assign") for queue_id in assigned]
    if len(set(chosen)) != len(chosen):
        refuse(f"option assign: topic {topic!r} names a queue twice: {quoted(chosen)}")
    return chosen


def _in_full(queue: Queue, existing: Collection[QueueId], option: str) -> QueueId:
    from rmq_store.errors import UsageError

    try:
        return named_in_full(queue.queue_id, existing)
    except UsageError as error:
        refuse(f"option {option}: topic {queue.topic!r}: {error}")


def _for_queues(position: Position, ranges: Ranges, option: str) -> Position:
    """The position as the user wrote it, with the brokers of its queues.

    Raises:
        UsageError: a plain number stands for the queues of several brokers, or a queue is named twice.
    """
    if position.values.keys() <= ranges.keys():
        return position
    existing: dict[str, list[QueueId]] = {}
    for topic, queue_id in ranges:
        existing.setdefault(topic, []).append(queue_id)
    option += "ByTimestamp" if position.kind == "timestamps" else ""
    values: dict[Queue, int] = {}
    for queue, value in position.values.items():
        named = Queue(queue.topic, _in_full(queue, existing.get(queue.topic, ()), option))
        if named in values:
            refuse(f"option {option} names queue {named} twice")
        values[named] = value
    return replace(position, values=values)


def warn_of_unlisted(store: QueueSource, subscription: Subscription) -> None:
    """Log the topics that a pattern would match if the table of topics had them."""
    from rmq_store import CorruptionError

    if subscription.pattern is None:
        return
    try:
        hidden = matching_topics(store.unlisted_topics(), subscription.pattern)
    except CorruptionError as error:
        _log.warning("it cannot be told whether subscribePattern leaves out topics that are in no table: %s", error)
        return
    if hidden:
        some = ", ".join(hidden[:_NAMED]) + (f" and {len(hidden) - _NAMED} more" if len(hidden) > _NAMED else "")
        _log.warning(
            "subscribePattern does not read topics that have queues and are not in config/topics.json: %s. Name them "
            "with subscribe, or put them into the table with `rmq repair`", some,
        )  # fmt: skip


def known_topics(store: QueueSource, subscription: Subscription) -> Mapping[str, object]:
    """Return the topics that exist; empty if nobody lists them, as at RocketMQ's proxy, and none is found by a pattern.

    Raises:
        MQBrokerError: there is no list, and a pattern needs it.
    """
    from rmq_store.cluster import MQBrokerError, ResponseCode

    try:
        return store.topics()
    except MQBrokerError as error:
        if subscription.pattern is not None or error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return _NO_LIST


def subscribed_topics(existing: Collection[str], subscription: Subscription) -> list[str]:
    """Return the topics that are named, or that match and exist, and the group's own one if that exists."""
    topics = _topics_of_user(existing, subscription)
    own = subscription.of_group
    return [*topics, own] if own is not None and own not in topics and own in existing else topics


def _topics_of_user(existing: Collection[str], subscription: Subscription) -> list[str]:
    if subscription.pattern is not None:
        return matching_topics(existing, subscription.pattern)
    return list(subscription.assign or subscription.topics)


def matching_topics(topics: Collection[str], pattern: str) -> list[str]:
    """Return the topics whose whole name matches, sorted; `%...` topics only for a pattern that begins with `%`."""
    expression = re.compile(pattern)
    from rmq_store import is_system_topic

    return [
        topic
        for topic in sorted(topics)
        if expression.fullmatch(topic)
        and not is_system_topic(topic)
        and (pattern.startswith("%") or not topic.startswith("%"))
    ]


def batch_start(store: QueueSource, options: SourceOptions, ranges: Ranges) -> dict[Queue, int]:
    """Return the queue offset at which a batch starts in each queue; default: the first message that exists.

    Raises:
        UsageError: as `resolve`; or the batch starts at the offsets of a group that the store does not know: most
            probably the name is mistyped, and the batch would read nothing.
    """
    position = options.starting or Position("earliest")
    if position.kind == "group":
        unknown = _unknown_group(store, options)
        if unknown:
            refuse(f"option startingOffsets=group: {unknown}")
        return _group_start(store, options, ranges, None)
    return resolve(store, _for_queues(position, ranges, "startingOffsets"), ranges, "startingOffsets")


def batch_end(store: QueueSource, options: SourceOptions, ranges: Ranges) -> dict[Queue, int]:
    """Return the queue offset at which a batch ends in each queue, exclusive; default: the end of the queue now."""
    position = _for_queues(options.ending or Position("latest"), ranges, "endingOffsets")
    return resolve(store, position, ranges, "endingOffsets")


def stream_start(store: QueueSource, options: SourceOptions, ranges: Ranges) -> dict[Queue, int]:
    """Return the queue offset at which a new query starts in each queue; default without a group: the end of the queue
    now.

    Raises:
        UsageError: as `resolve`; a time is in the future; or a number does not tell which broker's queue is meant.
    """
    explicit = options.starting if options.starting is not None and options.starting.kind != "group" else None
    if explicit is not None:
        _refuse_future(explicit, location_of(options).clock()())
        explicit = _for_queues(explicit, ranges, "startingOffsets")
    if options.starting is not None and options.starting.kind == "group":
        unknown = _unknown_group(store, options)
        if unknown:
            _log.warning("option startingOffsets=group: %s; it begins at %s", unknown, options.consume_from_where)
    if options.group is not None:
        return _group_start(store, options, ranges, explicit)
    return resolve(store, explicit or Position("latest"), ranges, "startingOffsets")


def _refuse_future(position: Position, now_ms: int) -> None:
    """The answer would be the end of a queue, and messages stored before that time would be read, too."""
    last_ms = max([position.timestamp_ms, *(position.values.values() if position.kind == "timestamps" else ())])
    if last_ms > now_ms:
        option = "startingOffsetsByTimestamp" if position.kind == "timestamps" else "startingTimestamp"
        refuse(f"option {option}: {last_ms} is still to come, now it is {now_ms}; a stream cannot wait for a time")


def new_queue_start(
    store: QueueSource, options: SourceOptions, begin: StreamPosition, ranges: Ranges
) -> dict[Queue, int]:
    """Return the start of queues that appeared behind `begin`, while the query ran: no message of them may be missed
    that is not older than the query (`away_brokers`).

    Raises:
        DataLossError: the group has committed an offset after the end of a queue, and failOnDataLoss is on. Otherwise
            such a queue is read from its first message.
    """
    committed = _committed(store, options, ranges) if options.group is not None else {}
    ahead = _ahead(options, ranges, committed)
    start = {queue: ranges[queue].min_offset if queue in ahead else offset for queue, offset in committed.items()}
    rest = {queue: limits for queue, limits in ranges.items() if queue not in start}
    return start | late_queue_start(store, options, begin, rest)


def resolve(store: QueueSource, position: Position, ranges: Ranges, option: str) -> dict[Queue, int]:
    """Return the offset of `position` in each queue of `ranges`.

    Raises:
        UsageError: the position leaves out a queue, names one that is not read, or is after the end of a queue.
        BrokerAwayError: it names one whose broker is away, and the reader goes on without such brokers.
    """
    if position.kind == "timestamps":
        option += "ByTimestamp"
    if position.kind in ("offsets", "timestamps"):
        missing = sorted(set(ranges) - set(position.values))
        unknown = sorted(set(position.values) - set(ranges))
        if missing:
            refuse(f"option {option} must name every queue that is read; missing: {', '.join(map(str, missing))}")
        if unknown:
            _refuse_away(store, unknown, option)
            refuse(f"option {option} names queues that are not read: {', '.join(map(str, unknown))}")
    return {queue: _resolve_one(store, position, queue, limits, option) for queue, limits in ranges.items()}


def _refuse_away(store: QueueSource, queues: Collection[Queue], option: str) -> None:
    """Raise `BrokerAwayError` if queues that an option names are at brokers that are away: later nobody would know
    where they were to start.
    """
    named = [queue for queue in queues if broker_of(queue.queue_id) is not None]
    if not named or not isinstance(store, Brokers):
        return
    store.ranges(named)  # it asks brokers that were not asked yet
    if away := held(store, named):
        from rmq_store.cluster import BrokerAwayError

        names = sorted({str(broker_of(queue.queue_id)) for queue in away})
        raise BrokerAwayError(
            f"option {option} names queues whose brokers are away: {', '.join(map(str, sorted(away)))}. Start the "
            f"query when {', '.join(names)} can be reached",
            tuple(names),
        )


def _resolve_one(store: QueueSource, position: Position, queue: Queue, limits: Range, option: str) -> int:
    offset = position.values.get(queue)
    if position.kind == "earliest" or (position.kind == "offsets" and offset == EARLIEST):
        return limits.min_offset
    if position.kind == "latest" or (position.kind == "offsets" and offset == LATEST):
        return limits.max_offset
    if position.kind == "offsets":
        assert offset is not None  # resolve() checked that every queue is there
        if offset > limits.max_offset:
            refuse(f"option {option}: {offset} lies behind the end of queue {queue}, {limits.max_offset}")
        return offset
    return store.offset_by_time(*queue, position.timestamp_ms if offset is None else offset)


def _unknown_group(store: QueueSource, options: SourceOptions) -> str:
    """The sentence about a group that has no settings, no offsets and no retry topic; "" if it has any of them, or if
    nobody lists groups, as at RocketMQ's proxy.
    """
    from rmq_store.cluster import MQBrokerError, ResponseCode

    assert options.group is not None  # options checked it
    try:
        retrying = [topic.removeprefix(RETRY_PREFIX) for topic in store.topics() if topic.startswith(RETRY_PREFIX)]
        known = {*store.known_groups(), *retrying}
    except MQBrokerError as error:
        if error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return ""
    if options.group in known:
        return ""
    hint = did_you_mean(options.group, sorted(known))
    return f"{location_of(options)} knows no group {options.group!r}, so it has committed nothing{hint}"


def _group_start(
    store: QueueSource, options: SourceOptions, ranges: Ranges, explicit: Position | None
) -> dict[Queue, int]:
    start = _committed(store, options, ranges)
    if start and explicit is not None:
        _log.warning(
            "group %r has committed offsets for %s: they win over the starting option",
            options.group,
            ", ".join(f"{queue} ({offset})" for queue, offset in sorted(start.items())),
        )
    start.update({queue: ranges[queue].max_offset for queue in _ahead(options, ranges, start)})
    rest = {queue: limits for queue, limits in ranges.items() if queue not in start}
    if explicit is not None and rest:
        # A position for every queue may name those of which the group has an offset.
        values = {queue: offset for queue, offset in explicit.values.items() if queue not in start}
        # The option is about the topics that the user has named: what failed in the group must not be skipped.
        named = set(_topics_of_user(known_topics(store, options.subscription), options.subscription))
        asked = {queue: limits for queue, limits in rest.items() if queue.topic in named or queue in values}
        if asked:
            start |= resolve(store, Position(explicit.kind, values, explicit.timestamp_ms), asked, "startingOffsets")
            rest = {queue: limits for queue, limits in rest.items() if queue not in asked}
    return start | {queue: consume_from_where(store, options, queue, limits) for queue, limits in rest.items()}


def _committed(store: QueueSource, options: SourceOptions, ranges: Ranges) -> dict[Queue, int]:
    """The group's committed offsets of these queues. A broker writes -1 if there is none."""
    assert options.group is not None  # options checked it
    committed = store.committed_offsets(options.group)
    return {queue: committed[queue] for queue in ranges if committed.get(queue, -1) >= 0}


def _ahead(options: SourceOptions, ranges: Ranges, committed: Mapping[Queue, int]) -> set[Queue]:
    """Report the queues whose committed offset is after their end, and return them if failOnDataLoss is off.

    Such a store lost its tail, and the messages in it. An unsure end tells nothing: a replica gets them later.
    """
    gone = [
        (*queue, ranges[queue].max_offset, offset)
        for queue, offset in committed.items()
        if offset > ranges[queue].max_offset
        if not isinstance(ranges[queue], UnsureRange)
    ]
    if gone:
        report_loss(
            f"group {options.group!r} has committed offsets behind the end of its queues: {describe(gone)} do not "
            "exist; the store was rolled back or replaced",
            gone,
            options,
            loss_report.ROLLED_BACK,
        )
    return {Queue(topic, queue_id) for topic, queue_id, _, _ in gone}


def consume_from_where(store: QueueSource, options: SourceOptions, queue: Queue, limits: Range) -> int:
    """Return the queue offset at which a group without a committed offset starts in a queue.

    RebalancePushImpl.computePullFromWhereWithException decides, but ConsumerManageProcessor.queryConsumerOffset comes
    first: a broker answers 0 for a queue that is complete and hot, and the client takes that as a committed offset.
    """
    assert options.group is not None  # options checked it
    if limits.min_offset <= 0 and store.starts_at_first_message(options.group, queue, limits.max_offset):
        return 0
    retry = queue.topic.startswith(RETRY_PREFIX)
    if options.consume_from_where == FROM_TIMESTAMP:
        return limits.max_offset if retry else store.offset_by_time(*queue, options.consume_timestamp_ms)
    if options.consume_from_where == FROM_LAST and not retry:
        return limits.max_offset
    return limits.min_offset
