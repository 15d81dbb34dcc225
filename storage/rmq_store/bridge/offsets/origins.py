"""The origins of rows of either side, as `Origins`, for a queue of the other side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.offsets.side import Origin, Queue
from rmq_store.bridge.offsets.translate import OTHER, RETURNED, Origins
from rmq_store.bridge.records.entries import Entries
from rmq_store.bridge.records.origin import (
    Marks,
    Sources,
    message_marks,
    record_marks,
    sources_of_messages,
    sources_of_records,
)
from rmq_store.lazy.arrow_compute import pc

MESSAGE_COLUMNS = ("queueOffset", "topic", "body", "bornTimestamp", "properties")
"""What `message_origins` needs of MESSAGE_SCHEMA: marks are bound to time and body."""


MarksOf = Callable[[pa.RecordBatch], Marks]


def record_origins(rows: pa.RecordBatch, queue: Queue, other: Origin) -> Origins:
    """The origins of records (RECORDS_SCHEMA) of a partition."""

    def marks(some: pa.RecordBatch) -> Marks:
        return record_marks(some, Entries.of_headers(some.column("headers")), *queue)

    return _origins(rows, "offset", sources_of_records(rows, *queue), other, marks)


def message_origins(rows: pa.RecordBatch, other: Origin) -> Origins:
    """The origins of messages of a queue (MESSAGE_COLUMNS)."""

    def marks(some: pa.RecordBatch) -> Marks:
        return message_marks(some, Entries.of_properties(some.column("properties")))

    return _origins(rows, "queueOffset", sources_of_messages(rows), other, marks)


def unreadable(position: int) -> Origins:
    """The origin of a record that cannot be read."""
    return Origins(np.array([position], np.int64), np.array([OTHER], np.int64))


def _origins(rows: pa.RecordBatch, positions: str, sources: Sources, other: Origin, marks_of: MarksOf) -> Origins:
    """A record of a topic of this name that was deleted since counts as returned: no group of the topic that is there
    now has consumed it, or will. So does one that a store has taken once more, by a redrive or for a retry: the copy
    that the mirror made says whether it is consumed. And so does one that has left its queue since, by a redrive into
    another: mirrors leave it out, because the other side has it.
    """
    offsets = np.full(rows.num_rows, OTHER, np.int64)
    is_direct = sources.is_mirrored
    if is_direct.any():
        is_direct = is_direct & _equal(sources.clusters, other.cluster_id) & _equal(sources.topics, other.queue.topic)
    is_direct = is_direct & (sources.partitions == other.queue.queue_id)
    rest = np.flatnonzero(sources.is_mirrored & ~is_direct)
    offsets[is_direct] = sources.offsets[is_direct]
    offsets[is_direct & ~sources.is_first_copy] = RETURNED
    if other.topic_id and is_direct.any():
        is_stale = is_direct & ~_equal(sources.topic_ids, other.topic_id) & ~_equal(sources.topic_ids, "")
        offsets[is_stale] = RETURNED
    if len(rest):
        is_back = marks_of(rows.take(pa.array(rest))).loops((other.cluster_id, other.queue.topic))
        offsets[rest[is_back]] = RETURNED
    return Origins(rows.column(positions).to_numpy().astype(np.int64, copy=False), offsets)


def _equal(texts: pa.StringArray, text: str) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.equal(texts, text).fill_null(False), np.bool_)
