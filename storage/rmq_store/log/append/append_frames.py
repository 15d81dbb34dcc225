"""Append what a client sends together: few records, or a batch for one queue, which become visible together
(CommitLog.java, asyncPutMessages).

Their frames go through the steps of `append` from one buffer, without columns: these cost the same for one row and for
a thousand, and a client's batch has a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.format.batches.frame_patch import patch_frames
from rmq_store.format.frames.message_batch import BatchFrames
from rmq_store.format.frames.stored_message import complete_frame
from rmq_store.format.views.consume_queue import encode_entries
from rmq_store.log.append.append import AppendSteps, OneRecord, due_or_tags
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.layout import lay_out
from rmq_store.log.views.views import QueueKey

Int64 = npt.NDArray[np.int64]

Complete = Callable[[Int64, Int64, int], npt.NDArray[np.uint8]]
"""(queue offsets, commit-log offsets, store time in ms) -> the frames, with these filled in, in one buffer."""


class _Frames(NamedTuple):
    """n records of frames that lie one behind the other: frame i between `bounds[i]` and `bounds[i + 1]`.

    `rows`: of each queue, which of them go to it. `tags_codes` and `delays_ms` are int64 (n,), the latter None if none
    is delayed. `key_hashes` are flat, int32; record i has `key_counts[i]` of them.
    """

    bounds: Int64
    rows: Mapping[QueueKey, Sequence[int]]
    tags_codes: Int64
    delays_ms: Int64 | None
    key_hashes: npt.NDArray[np.int32]
    key_counts: Int64
    complete: Complete


def append_records(log: CommitLog, records: Sequence[OneRecord]) -> list[tuple[int, int]]:
    """Append records in their order, visible together; the caller holds `append_lock`. Returns the commit-log offset
    and the queue offset of each. Memory: a copy of the records.

    Visible, durable and raises as `append`.
    """
    if not records:
        return []

    def complete(queue_offsets: Int64, offsets: Int64, now: int) -> npt.NDArray[np.uint8]:
        for record, queue_offset, offset in zip(records, queue_offsets.tolist(), offsets.tolist(), strict=True):
            complete_frame(record.frame, queue_offset, offset, now, crc_property=log.crc_property)
        return np.frombuffer(b"".join([record.frame for record in records]), np.uint8)

    rows: dict[QueueKey, list[int]] = {}
    for row, record in enumerate(records):
        rows.setdefault((record.topic, record.queue_id), []).append(row)
    delays_ms = [record.delay_ms for record in records]
    frames = _Frames(
        bounds=np.array([0, *accumulate([len(record.frame) for record in records])], np.int64),
        rows=rows,
        tags_codes=np.array([record.tags_code for record in records], np.int64),
        delays_ms=np.array(delays_ms, np.int64) if any(delays_ms) else None,
        key_hashes=np.array([each for record in records for each in record.key_hashes], np.int32),
        key_counts=np.array([len(record.key_hashes) for record in records], np.int64),
        complete=complete,
    )
    offsets, queue_offsets = _append_frames(log, frames)
    return list(zip(offsets.tolist(), queue_offsets.tolist(), strict=True))


def append_batch(log: CommitLog, topic: str, queue_id: int, batch: BatchFrames) -> tuple[Int64, int]:
    """Append the messages of `batch`, at least one, to one queue, visible together; the caller holds `append_lock`.
    Returns the commit-log offset of each (n,), and the queue offset of the first one. No object is made for a message.

    Visible, durable and raises as `append`.
    """
    starts = batch.bounds[:-1]

    def complete(queue_offsets: Int64, offsets: Int64, now: int) -> npt.NDArray[np.uint8]:
        patch_frames(batch.frames, starts, batch.bounds[1:] - starts, queue_offsets, offsets, now, batch.crc0)
        return batch.frames

    frames = _Frames(
        bounds=batch.bounds,
        rows={(topic, queue_id): range(len(starts))},
        tags_codes=batch.tags_codes,
        delays_ms=None,
        key_hashes=batch.key_hashes,
        key_counts=batch.key_counts,
        complete=complete,
    )
    offsets, queue_offsets = _append_frames(log, frames)
    return offsets, int(queue_offsets[0])


def _append_frames(log: CommitLog, frames: _Frames) -> tuple[Int64, Int64]:
    """The steps A2 to A8 of at least one record. Returns the commit-log offset and the queue offset of each, (n,)."""
    bounds, codes = frames.bounds, frames.tags_codes
    sizes = bounds[1:] - bounds[:-1]
    start = log.writing_page.appended_end
    layout = lay_out(sizes, start, log.segments.size_bytes)
    queues = [(key, log.next_queue_offset(*key, start), len(rows)) for key, rows in frames.rows.items()]
    queue_offsets, order = _numbered(queues, frames.rows)
    with AppendSteps(log, start, layout.end) as steps, log.views.putting_keys(len(frames.key_hashes)):
        buffer = frames.complete(queue_offsets, layout.offsets, steps.now)
        steps.put_blanks(layout)
        steps.put_frames(layout, 0, bounds, buffer)
        if frames.delays_ms is not None:
            codes = due_or_tags(codes, frames.delays_ms, steps.now)
        steps.put_entries(queues, encode_entries(layout.offsets, sizes, codes)[order])
        steps.put_keys(frames.key_hashes, frames.key_counts, layout.offsets)
    for key, first, count in queues:
        log.remember_next(*key, first + count, start, layout.end)
        start = layout.end
    return layout.offsets, queue_offsets


def _numbered(
    queues: Sequence[tuple[QueueKey, int, int]], rows: Mapping[QueueKey, Sequence[int]]
) -> tuple[Int64, slice | list[int]]:
    """The queue offset of each row, int64 (n,); and the rows queue after queue."""
    if len(queues) == 1:
        ((_, first, count),) = queues
        return np.arange(first, first + count), slice(None)
    order = [row for key, _, _ in queues for row in rows[key]]
    queue_offsets = np.empty(len(order), np.int64)
    queue_offsets[order] = [first + number for _, first, count in queues for number in range(count)]
    return queue_offsets, order
