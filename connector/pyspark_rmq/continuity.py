"""Whether what a query wants to read is still there, and still the same. Control plane.

With failOnDataLoss every gap is a `DataLossError` with the exact ranges, otherwise a warning. Only another store
under the same path is always an error: that is not loss, it is the wrong checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from pyspark_rmq.home import Home, Range
from pyspark_rmq.offsets import Queue, StreamPosition, describe, refuse
from pyspark_rmq.options import SourceOptions
from pyspark_rmq.planning import QueueSlice, clip, lost

_log = logging.getLogger(__name__)

LostRanges = list[tuple[str, int, int, int]]


def report_loss(message: str, gone: LostRanges, options: SourceOptions) -> None:
    """Raise `DataLossError` with these ranges, or log the message if failOnDataLoss is off."""
    if options.fail_on_data_loss:
        from rmq_store.errors import DataLossError

        raise DataLossError(f"{message}. If the query should go on with what is there, set failOnDataLoss=false.", gone)
    _log.warning("%s; going on, because failOnDataLoss is off", message)


def keep_or_fail(
    wanted: Sequence[QueueSlice], ranges: Mapping[Queue, Range], options: SourceOptions
) -> list[QueueSlice]:
    """Return what still exists of the wanted slices; `DataLossError` if that is not all and failOnDataLoss is on."""
    bounds = {queue: (limits.min_offset, limits.max_offset) for queue, limits in ranges.items()}
    gone: LostRanges = [(part.topic, part.queue_id, part.start, part.end) for part in lost(wanted, bounds)]
    if gone:
        report_loss(
            f"messages are gone that should have been read: {describe(gone)}; retention or a crash removed them",
            gone,
            options,
        )
    return clip(wanted, bounds)


def check_ends(position: StreamPosition, ranges: Mapping[Queue, Range], options: SourceOptions) -> None:
    """Report queues that end before the position: their tail was lost."""
    gone: LostRanges = [
        (*queue, ranges[queue].max_offset, offset)
        for queue, offset in position.next.items()
        if queue in ranges and offset > ranges[queue].max_offset
    ]
    if gone:
        report_loss(
            f"queues end before the stream's position: {describe(gone)} do not exist; {_ROLLED_BACK}", gone, options
        )


def check_same(home: Home, position: StreamPosition, ranges: Mapping[Queue, Range], options: SourceOptions) -> None:
    """Report a store that is not the one that the position was taken from.

    Raises:
        UsageError: the store has another identity.
        DataLossError: the message before a position is not the one that was read (also for stores without an identity).
    """
    if position.store and home.identity and position.store != home.identity:
        refuse(
            f"the checkpoint belongs to store {position.store}, but the store that is there is {home.identity}; "
            "another store needs another checkpoint"
        )
    for queue, expected in position.after.items():
        limits, offset = ranges.get(queue), position.next[queue]
        if limits is None or not limits.min_offset < offset <= limits.max_offset:
            continue
        found = home.commit_log_offset_before(queue.topic, queue.queue_id, offset)
        if found >= 0 and found != expected:
            report_loss(
                f"message {offset - 1} of queue {queue} was at commit-log offset {expected} when it was read, "
                f"and is at {found} now; {_ROLLED_BACK}",
                [(*queue, offset - 1, offset)],
                options,
            )


def check_deleted(home: Home, position: StreamPosition, ranges: Mapping[Queue, Range], options: SourceOptions) -> None:
    """Report topics that the query has read and that do not exist any more; one that was unsubscribed is fine."""
    missing = [queue for queue in position.next if queue not in ranges]
    if not missing:
        return
    topics = home.topics()
    gone: LostRanges = [
        (*queue, position.next[queue], position.next[queue]) for queue in missing if queue.topic not in topics
    ]
    if gone:
        places = ", ".join(f"{topic}-{queue_id} at offset {offset}" for topic, queue_id, offset, _ in sorted(gone))
        report_loss(f"topics were deleted that the stream reads: {places}", gone, options)
    else:
        _log.info("no longer subscribed to %s", ", ".join(map(str, missing)))


_ROLLED_BACK = "the store was rolled back or replaced"
