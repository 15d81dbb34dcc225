"""Detects messages that are gone, and stores that were replaced. Control plane.

With failOnDataLoss every gap is a `DataLossError` with the exact ranges. Otherwise it is recorded (`loss_report`).
Another store at the same path is always an error: nothing was lost, but the checkpoint is the wrong one. Messages that
a tag filter leaves out are no gap.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Mapping, Sequence

from pyspark_rmq.access.queue_source import Brokers, Pins, QueueSource, held
from pyspark_rmq.options.options import SourceOptions
from pyspark_rmq.position.fingerprint import Fingerprint, fingerprint_before, stored_after
from pyspark_rmq.position.planning import QueueSlice, Range, clip, lost
from pyspark_rmq.position.position import Queue, StreamPosition, describe, is_same_store, refuse
from pyspark_rmq.position.queue_ids import broker_of
from pyspark_rmq.read import loss_report

_log = logging.getLogger(__name__)

LostRanges = list[tuple[str, int, int, int]]


def report_loss(message: str, gone: LostRanges, options: SourceOptions, *reasons: str) -> None:
    """Raise `DataLossError` with these ranges, or record them if failOnDataLoss is off.

    `reasons`: one for each range, or one for all of them: see `rmq_store.Loss`.
    """
    if options.fail_on_data_loss:
        from rmq_store.errors import DataLossError

        raise DataLossError(f"{message}. To continue with the messages that are left, set failOnDataLoss=false.", gone)
    if loss_report.record(options, gone, reasons if len(reasons) > 1 else reasons * len(gone)):
        _log.warning("%s; going on, because failOnDataLoss is off", message)


def existing_or_fail(
    wanted: Sequence[QueueSlice], ranges: Mapping[Queue, Range], options: SourceOptions
) -> list[QueueSlice]:
    """Return the existing parts of the slices. Raises `DataLossError` if a part is gone and failOnDataLoss is on."""
    bounds = {queue: (limits.min_offset, limits.max_offset) for queue, limits in ranges.items()}
    return existing_within(wanted, bounds, options)


def existing_within(
    wanted: Sequence[QueueSlice], bounds: Mapping[Queue, tuple[int, int]], options: SourceOptions
) -> list[QueueSlice]:
    """`existing_or_fail` with the ranges as `{queue: (min offset, max offset)}`."""
    gone: LostRanges = [(part.topic, part.queue_id, part.start, part.end) for part in lost(wanted, bounds)]
    if gone:
        report_loss(
            f"messages are gone that should have been read: {describe(gone)}; retention or a crash removed them",
            gone,
            options,
            *(_why_gone(bounds.get(Queue(topic, queue_id)), start) for topic, queue_id, start, _ in gone),
        )
    return clip(wanted, bounds)


def _why_gone(bounds: tuple[int, int] | None, start: int) -> str:
    if bounds is None:
        return loss_report.DELETED_TOPIC
    return loss_report.RETENTION if start < bounds[0] else loss_report.ROLLED_BACK


def report_damage(queue: Queue, damaged: Sequence[int], options: SourceOptions) -> None:
    """Record messages (ascending queue offsets) that were left out, because their bytes are damaged."""
    gone: LostRanges = []
    for offset in damaged:
        if gone and gone[-1][3] == offset:
            gone[-1] = (*gone[-1][:3], offset + 1)
        else:
            gone.append((*queue, offset, offset + 1))
    report_loss(f"messages are damaged: {describe(gone)}", gone, options, loss_report.CORRUPTION)


def check_identity(store: QueueSource, position: StreamPosition) -> None:
    """Raise `UsageError` if the position was taken in another store, or in other clusters, see `is_same_store`."""
    if not is_same_store(position.store, store.identity):
        refuse(
            f"the checkpoint belongs to store {position.store}, but the store that is there is {store.identity}; "
            "another store needs another checkpoint"
        )


def check_side(store: QueueSource, queues: Collection[Queue]) -> None:
    """Raise `UsageError` if queues of a position are those of brokers, and a store is read, or the other way round."""
    are_at_brokers = isinstance(store, Brokers)
    if any((broker_of(queue.queue_id) is not None) != are_at_brokers for queue in queues):
        ours, theirs = ("brokers", "a store") if are_at_brokers else ("a store", "brokers")
        refuse(
            f"the checkpoint has positions in queues of {theirs}, and the query reads from {ours}: a checkpoint does "
            "not move between path and nameServer. A new checkpoint begins where its group stands (option group)"
        )


def has_all(store: QueueSource, position: StreamPosition, ranges: Mapping[Queue, Range]) -> bool:
    """True if no queue ends before the position, and the newest message that was read is still there. Then all earlier
    ones are there, because a store loses its end first. Each broker of a cluster has a newest message of its own.
    """
    if any(queue in ranges and offset > ranges[queue].max_offset for queue, offset in position.next.items()):
        return False
    newest: dict[str | None, tuple[Fingerprint, Queue]] = {}
    for queue, fingerprint in position.after.items():
        if queue in ranges and queue in position.next:
            known = newest.setdefault(broker_of(queue.queue_id), (fingerprint, queue))
            if known[0].commit_log_offset < fingerprint.commit_log_offset:
                newest[broker_of(queue.queue_id)] = fingerprint, queue
    for fingerprint, queue in newest.values():
        found = fingerprint_before(store, queue, position.next[queue])
        if found is not None and not found.may_be(fingerprint):
            return False
    return True


class History:
    """The messages that the stream of one process has read: they are compared once with the store, and the newest ones
    at each plan again, because files may be overwritten where they lie.

    Those of a broker that was away are compared when it is back, all whose places the position knows: it may have
    another disk.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        # The two last positions, each with the brokers that were away when it was compared, or taken.
        self._known: tuple[tuple[StreamPosition, frozenset[str]], ...] = ()

    def forget(self) -> None:
        """Another store is there."""
        self._known = ()

    def taken(self, store: QueueSource, before: StreamPosition, position: StreamPosition) -> None:
        """A plan from `before` to `position` has taken its marks from the store."""
        away = _away(store)
        self._known = (before, away), (position, away)

    def check(self, store: QueueSource, position: StreamPosition, ranges: Mapping[Queue, Range]) -> dict[Queue, int]:
        """See `check_history`. Raises `UsageError`: it is another store."""
        away = _away(store)
        unknown = next((brokers for known, brokers in self._known if known == position), None)
        if unknown is None or not has_all(store, position, ranges):
            check_identity(store, position)
            compares: Container[Queue] = ranges
        else:
            back = unknown - away
            compares = {queue for queue in position.after if broker_of(queue.queue_id) in back} if back else ()
        going_on = check_history(store, position, ranges, self._options, compares=compares)
        if isinstance(store, Pins):
            store.unpin()  # retention may have the files that were looked at
        if not going_on:
            others = [one for one in self._known[-1:] if one[0] != position]
            self._known = (*others, (position, away))
        return going_on


def _away(store: QueueSource) -> frozenset[str]:
    return frozenset(store.away()) if isinstance(store, Brokers) else frozenset()


def check_history(
    store: QueueSource,
    position: StreamPosition,
    ranges: Mapping[Queue, Range],
    options: SourceOptions,
    *,
    compares: Container[Queue],
) -> dict[Queue, int]:
    """Report messages that the stream has read and that do not exist any more. Return the queue offsets at which their
    queues continue.

    A queue has lost messages if it ends before the position, or if another message is before the position now. It
    continues at the first message that replaced them: the first one stored after the last message that was read. If the
    store times do not tell, all messages up to the position are reported. The queue then continues at the position, or
    at its end if that is earlier.

    Of most queues of a broker the position knows no message (`fingerprints_before`). A log loses its end for all of its
    queues. So they have lost what is stored after a message that is known to be lost.

    Of queues that are not in `compares` only the ends are checked, which costs nothing.
    """
    lost: dict[Queue, Fingerprint | None] = {}
    unmarked: list[Queue] = []
    changed: list[str] = []
    for queue, offset in position.next.items():
        limits = ranges.get(queue)
        if limits is None:
            continue
        fingerprint = position.after.get(queue)
        if offset > limits.max_offset:
            lost[queue] = fingerprint
        elif fingerprint is None:
            if offset > limits.min_offset:
                unmarked.append(queue)
        elif queue in compares and offset > limits.min_offset:
            found = fingerprint_before(store, queue, offset)
            if found is not None and not found.may_be(fingerprint):
                lost[queue] = fingerprint
                changed.append(
                    f"; message {offset - 1} of queue {queue} was at {fingerprint} when it was read, and is at {found} "
                    "now"
                )
    first = _first_lost(lost)
    of_others = {queue: first[broker] for queue in unmarked if (broker := broker_of(queue.queue_id)) in first}
    going_on: dict[Queue, int] = {}
    gone: LostRanges = []
    for queue, mark in (lost | of_others).items():
        fingerprint = first.get(broker_of(queue.queue_id)) if mark is None else mark
        offset, limits = position.next[queue], ranges[queue]
        start = None if fingerprint is None else stored_after(store, queue, fingerprint)
        if queue in of_others and (start is None or start >= offset):
            continue
        going_on[queue] = min(limits.max_offset if start is None else start, offset)
        gone.append((*queue, limits.min_offset if start is None or start >= offset else start, offset))
    if gone:
        report_loss(
            f"the stream has read {describe(gone)}, and these messages do not exist any more{''.join(changed)}; "
            "the store was rolled back or replaced",
            gone,
            options,
            loss_report.ROLLED_BACK,
        )
    return going_on


def _first_lost(lost: Mapping[Queue, Fingerprint | None]) -> dict[str | None, Fingerprint]:
    """By broker the oldest of the lost messages whose times are known."""
    first: dict[str | None, Fingerprint] = {}
    for queue, fingerprint in lost.items():
        if fingerprint is not None and fingerprint.store_timestamp_ms is not None:
            broker = broker_of(queue.queue_id)
            first[broker] = min(first.get(broker, fingerprint), fingerprint)
    return first


def check_missing(
    store: QueueSource,
    position: StreamPosition,
    missing: Sequence[Queue],
    topics: Collection[str],
    present: Collection[str],
    options: SourceOptions,
) -> tuple[dict[Queue, int], set[Queue]]:
    """Report queues of the position that cannot be read any more although the user did not unsubscribe from them.
    Return the queue offsets at which closed queues continue if they are opened again: after the reported messages. And
    the queues whose brokers are away: of them nothing is known, and nothing is reported.

    The user closes the queues of an assigned topic that `assign` leaves out: for them nothing is reported. `missing`
    are the queues that the subscription does not have now. `topics` are the topics that it names or matches, existing
    or not; `present` those of queues that it has. Of a cluster the queues of a broker are deleted if it says that it
    does not have the topic (17), whatever other brokers have: nobody knows how much of them was unread.
    """
    deleted: LostRanges = []
    closed: LostRanges = []
    going_on: dict[Queue, int] = {}
    # Of a topic that the user has unsubscribed from it is nothing to this query any more whether it exists.
    subscribed = [queue for queue in missing if queue.topic in topics]
    is_assigned = options.subscription.assign is not None
    ends: Mapping[Queue, Range] = {}
    if isinstance(store, Brokers):
        ends = store.ranges(subscribed)
        away = held(store, subscribed)
        existing = {*present, *(queue.topic for queue in (*ends, *away))}
        gone = set() if is_assigned else set(subscribed) - ends.keys() - away
    else:
        away, gone = set(), set()
        existing = {topic for topic in {queue.topic for queue in subscribed} if store.find_topic(topic) is not None}
        if not is_assigned:
            ends = store.ranges(queue for queue in subscribed if queue.topic in existing)
    for queue in subscribed:
        offset = position.next[queue]
        if queue in away:
            continue
        if queue.topic not in existing or queue in gone:
            deleted.append((*queue, offset, offset))
        elif is_assigned:
            going_on[queue] = offset
        else:
            # That is how a topic is made smaller, and fine if everything was read before.
            end = ends[queue].max_offset
            if offset < end:
                closed.append((*queue, offset, end))
            going_on[queue] = max(offset, end)
    if deleted:
        places = ", ".join(f"{topic}-{queue_id} at offset {offset}" for topic, queue_id, offset, _ in sorted(deleted))
        report_loss(f"topics were deleted that the stream reads: {places}", deleted, options, loss_report.DELETED_TOPIC)
    if closed:
        report_loss(
            f"readQueueNums was lowered before everything was read: {describe(closed)} are in queues that are not "
            "open for reading",
            closed,
            options,
            loss_report.CLOSED_QUEUE,
        )
    left = [queue for queue in missing if queue not in away]
    if left and not deleted and not closed:
        _log.info("no longer reading %s", ", ".join(map(str, left)))
    return going_on, away


def still_closed(
    store: QueueSource, position: StreamPosition, ranges: Mapping[Queue, Range], topics: Collection[str]
) -> dict[Queue, int]:
    """The closed queues of the position that were neither opened again, nor deleted, nor unsubscribed from."""
    closed = {queue for queue in position.closed if queue not in ranges and queue.topic in topics}
    unknown = {queue for queue in closed if store.find_topic(queue.topic) is None}
    if unknown and isinstance(store, Brokers):
        told = store.ranges(unknown)
        unknown -= {*told, *held(store, unknown)}
    return {queue: offset for queue, offset in position.closed.items() if queue in closed - unknown}
