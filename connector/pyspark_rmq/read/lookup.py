"""Plans a batch that asks for certain messages: the index finds rows, and tasks search the ranges that it does not
cover.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyspark_rmq.access.queue_source import QueueSource, SliceRead
from pyspark_rmq.options.options import Lookup, SourceOptions
from pyspark_rmq.position.planning import QueueSlice, split
from pyspark_rmq.position.position import Queue
from pyspark_rmq.read.task import SlicePartition, read_matching
from pyspark_rmq.schema.row_filters import MatchesLookup

_log = logging.getLogger(__name__)

Rows = npt.NDArray[np.int64]

# So many messages that the index does not tell of are looked at while planning: cheaper than a task.
_READ_WHILE_PLANNING_ROWS = 10_000


def found_partitions(
    store: QueueSource, options: SourceOptions, lookup: Lookup, wanted: Sequence[QueueSlice]
) -> list[SlicePartition]:
    """Return the tasks for the messages that `lookup` asks for in the slices `wanted`. A partition with `rows` reads
    the found messages; one without searches its slice. No partition is empty.

    Raises:
        CorruptionError: the index, or a message to which it leads, is damaged. With onCorruption=skip the topic is
            searched instead.
    """
    found, unindexed = _look_up(store, options, lookup, wanted)
    if sum(part.end - part.start for part in unindexed) <= _READ_WHILE_PLANNING_ROWS:
        for part in unindexed:
            searched = SliceRead(part, ["queueOffset"], options.tags, options.raw_body)
            batches = read_matching(store, options, searched, [MatchesLookup(lookup)])
            rows = [found.get(part.queue, _NONE), *(batch.column(0).to_numpy() for batch in batches)]
            found[part.queue] = np.sort(np.concatenate(rows))
        unindexed = []
    # Cut by the number of rows, not by how far they are from each other.
    pieces = split([QueueSlice(*queue, 0, len(rows)) for queue, rows in found.items()], options.min_partitions)
    return [
        *(_rows_partition(piece.queue, found[piece.queue][piece.start : piece.end]) for piece in pieces),
        *(SlicePartition(part) for part in split(unindexed, options.min_partitions)),
    ]


def _look_up(
    store: QueueSource, options: SourceOptions, lookup: Lookup, wanted: Sequence[QueueSlice]
) -> tuple[dict[Queue, Rows], list[QueueSlice]]:
    from rmq_store.errors import CorruptionError

    found: dict[Queue, Rows] = {}
    unindexed: list[QueueSlice] = []
    for topic in dict.fromkeys(part.topic for part in wanted):
        parts = [part for part in wanted if part.topic == topic]
        spans = {part.queue_id: (part.start, part.end) for part in parts}
        try:
            answer = store.find(topic, lookup.texts, spans, lookup.by)
        except CorruptionError as error:
            if not options.skip_corruption:
                raise
            _log.warning("%s; onCorruption=skip: reading all messages of %s", error, topic)
            unindexed += parts
            continue
        found |= {Queue(topic, queue_id): rows for queue_id, rows in answer.found.items()}
        for queue_id, ranges in answer.uncovered.items():
            unindexed += [QueueSlice(topic, queue_id, *span) for span in ranges]
    return found, unindexed


def _rows_partition(queue: Queue, rows: Rows) -> SlicePartition:
    return SlicePartition(QueueSlice(*queue, int(rows[0]), int(rows[-1]) + 1), rows)


_NONE = np.empty(0, np.int64)
