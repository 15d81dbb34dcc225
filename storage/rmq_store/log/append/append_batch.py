"""Append the messages of a client's batch, which go to one queue, from a few buffers (CommitLog.java,
asyncPutMessages).

The steps and the bytes are those of `append_records`; nothing is made for a single message.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from rmq_store.format.batches.frame_patch import patch_frames
from rmq_store.format.frames.frame_check import BLANK_MAGIC
from rmq_store.format.frames.message_batch import BatchFrames
from rmq_store.format.views.consume_queue import encode_entries
from rmq_store.log.append.append import AllOrNothing, commit
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.layout import Layout, lay_out

Int64 = npt.NDArray[np.int64]

_BLANK: Final = struct.Struct(">ii")


def append_batch(log: CommitLog, topic: str, queue_id: int, batch: BatchFrames) -> tuple[Int64, int]:
    """Append the messages of `batch`, at least one, to one queue, visible together; the caller holds `append_lock`.
    Returns the commit-log offset of each (n,), and the queue offset of the first one.

    Visible, durable and raises as `append`.
    """
    page, views = log.writing_page, log.views
    start = page.appended_end
    sizes = batch.bounds[1:] - batch.bounds[:-1]
    layout = lay_out(sizes, start, log.segments.size_bytes)
    first = log.next_queue_offset(topic, queue_id, start)
    behind = first + len(sizes)
    with AllOrNothing(log, start, layout.end), views.putting_keys(len(batch.key_hashes)):
        now = log.clock()
        patch_frames(
            batch.frames, batch.bounds[:-1], sizes, np.arange(first, behind), layout.offsets, now, batch.crc0
        )  # fmt: skip
        _put_frames(log, layout, batch)
        views.queue(topic, queue_id).put(first, encode_entries(layout.offsets, sizes, batch.tags_codes))
        views.put_keys(batch.key_hashes, batch.key_counts, layout.offsets, np.array([now], np.int64))
    commit(page, layout.end, int(layout.offsets[-1]), now)
    log.remember_next(topic, queue_id, behind, start, layout.end)
    return layout.offsets, first


def _put_frames(log: CommitLog, layout: Layout, batch: BatchFrames) -> None:
    """In log order: the frames of each segment in one piece, a blank frame where a segment ends."""
    pieces: list[tuple[int, bytes | memoryview]] = [
        (run.offset, batch.frames[batch.bounds[run.first] : batch.bounds[run.last]].data) for run in layout.runs
    ]
    pieces += [(offset, _BLANK.pack(size, BLANK_MAGIC)) for offset, size in layout.blanks]
    for offset, piece in sorted(pieces, key=lambda each: each[0]):
        log.segments.put(offset, piece)
