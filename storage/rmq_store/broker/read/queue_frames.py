"""Reads messages of one queue as the frames that lie in the log, for answers to pulls (data plane).

Frames that follow each other in the log are copied together. Source: DefaultMessageStore#getMessage.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rmq_store.broker.filter.tags import TagFilter
from rmq_store.broker.read.queue_reader import damaged_entry
from rmq_store.format.frames.frame_check import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2
from rmq_store.format.views.consume_queue import PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog

# Total size, magic, CRC of the body, queue id, flag, queue offset.
_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4"), ("queue_offset", ">i8")]
)


class FrameRange(NamedTuple):
    """`frame_count` whole frames one behind the other. The next message to look at has `next_offset`: those before it
    that are not among the frames were not wanted.
    """

    frames: bytes
    frame_count: int
    next_offset: int


class QueueFrames:
    """Copies frames out of one log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def read(
        self,
        topic: str,
        queue_id: int,
        start: int,
        entries: np.ndarray,
        count_max: int,
        bytes_max: int,
        tags: TagFilter | None,
    ) -> FrameRange:
        """The wanted messages from the queue offset `start` on, whose entries (n,) of dtype ENTRY are given: at most
        `count_max`, and at most `bytes_max` of frames, but one at least. Tags are compared by their hashes only.
        Messages in accepted damage are left out.

        Raises:
            CorruptQueueError: an entry points to no frame of this queue and offset.
            FileNotFoundError: a segment is gone.
        """
        wanted = entries["frame_size"] != PRE_BLANK_SIZE
        wanted &= ~self._log.accepted_damage.mask(entries["commit_log_offset"].astype(np.int64))
        if tags is not None:
            wanted &= tags.may_match(entries["tags_code"])
        rows = np.flatnonzero(wanted)
        if not len(rows):
            return FrameRange(b"", 0, start + len(entries))
        ends = np.cumsum(entries["frame_size"][rows], dtype=np.int64)
        fitting = max(int(np.searchsorted(ends, bytes_max, side="right")), 1)
        taken = rows[: min(count_max, fitting)]
        behind = int(taken[-1]) + 1 if len(taken) < len(rows) else len(entries)
        return FrameRange(self._copy(topic, queue_id, start + taken, entries[taken]), len(taken), start + behind)

    def _copy(self, topic: str, queue_id: int, queue_offsets: np.ndarray, entries: np.ndarray) -> bytes:
        offsets = entries["commit_log_offset"].astype(np.int64)
        sizes = entries["frame_size"].astype(np.int64)
        segment_bytes = self._log.segments.size_bytes
        bases = offsets - offsets % segment_bytes
        # A run ends where the next frame does not follow, or lies in another segment.
        cuts = np.flatnonzero((offsets[1:] != offsets[:-1] + sizes[:-1]) | (bases[1:] != bases[:-1])) + 1
        pieces = []
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(offsets)], strict=True):
            base = int(bases[first])
            data = np.frombuffer(self._log.segments.open(base).buffer, np.uint8)
            starts = offsets[first:last] - base
            self._check(topic, queue_id, queue_offsets[first:last], sizes[first:last], starts, data)
            pieces.append(data[int(starts[0]) : int(starts[-1] + sizes[last - 1])].tobytes())
        return b"".join(pieces)

    def _check(
        self,
        topic: str,
        queue_id: int,
        queue_offsets: np.ndarray,
        sizes: np.ndarray,
        starts: np.ndarray,
        data: np.ndarray,
    ) -> None:
        inside = (starts >= 0) & (sizes >= _HEAD.itemsize) & (starts + sizes <= len(data))
        sound = inside.copy()
        rows = np.flatnonzero(inside)
        heads = data[starts[rows, None] + np.arange(_HEAD.itemsize)].view(_HEAD)[:, 0]
        sound[rows] = (
            (heads["size"] == sizes[rows])
            & np.isin(heads["magic"], (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2))
            & (heads["queue_id"] == queue_id)
            & (heads["queue_offset"] == queue_offsets[rows])
        )
        if not sound.all():
            row = int(np.flatnonzero(~sound)[0])
            what = "points to no frame of this queue and offset"
            raise damaged_entry(self._log, topic, queue_id, int(queue_offsets[row]), what)
