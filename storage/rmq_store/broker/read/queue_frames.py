"""Reads messages of one queue as the frames that lie in the log, for answers to pulls (data plane).

Frames that follow each other in the log are copied together. Source: DefaultMessageStore#getMessage.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rmq_store.broker.filter.tags import TagFilter
from rmq_store.broker.read.queue_reader import damaged_entry
from rmq_store.format.frames.frame_check import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2
from rmq_store.format.views.consume_queue import PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.protocol.results import QueueRange

# As numpy's ENTRY: for the 32 messages of a usual pull, a loop takes a tenth of the time of numpy's calls.
_ENTRY: Final = struct.Struct(">qiq")
# Total size, magic, CRC of the body, queue id, flag, queue offset.
_HEAD: Final = struct.Struct(">iiiiiq")
_MAGICS: Final = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)


class FrameRange(NamedTuple):
    """`frame_count` whole frames one behind the other, of a queue with the range `queue`. The next message to look at
    has `next_offset`: those before it that are not among the frames were not wanted.
    """

    queue: QueueRange
    frames: bytes
    frame_count: int
    next_offset: int


class QueueFrames:
    """Copies frames out of one log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def read(
        self, topic: str, queue_id: int, queue: QueueRange, start: int, entries: np.ndarray, count_max: int,
        bytes_max: int, tags: TagFilter | None,
    ) -> FrameRange:  # fmt: skip
        """The wanted messages from the queue offset `start` on, whose entries (n,) of dtype ENTRY are given: at most
        `count_max`, and at most `bytes_max` of frames, but one at least. Tags are compared by their hashes only.
        Messages in accepted damage are left out. `queue`: the queue's range.

        Raises:
            CorruptQueueError: an entry points to no frame of this queue and offset.
            FileNotFoundError: a segment is gone.
        """
        behind = start + len(entries)
        rows: Sequence[int] = range(len(entries))
        if tags is not None or self._log.accepted_damage:
            rows = self._wanted(entries, tags)
            entries = entries[rows]
        found: list[tuple[int, int, int]] = []  # queue offset, offset in the log, size
        size_bytes = 0
        for row, (log_offset, size, _) in zip(rows, _ENTRY.iter_unpack(entries.tobytes()), strict=True):
            if size == PRE_BLANK_SIZE:
                continue
            size_bytes += size
            if found and (len(found) >= count_max or size_bytes > bytes_max):
                behind = found[-1][0] + 1
                break
            found.append((start + row, log_offset, size))
        return FrameRange(queue, self._copy(topic, queue_id, found), len(found), behind)

    def _wanted(self, entries: np.ndarray, tags: TagFilter | None) -> list[int]:
        """The rows that `tags` may match, and that do not lie in accepted damage."""
        wanted = ~self._log.accepted_damage.mask(entries["commit_log_offset"].astype(np.int64))
        if tags is not None:
            wanted &= tags.may_match(entries["tags_code"])
        rows: list[int] = np.flatnonzero(wanted).tolist()
        return rows

    def _copy(self, topic: str, queue_id: int, places: list[tuple[int, int, int]]) -> bytes:
        """The frames, those that follow each other in a segment in one piece."""
        pieces = []
        segment_bytes = self._log.segments.size_bytes
        base, data, first, last = 0, None, 0, 0
        for queue_offset, log_offset, size in places:
            if data is None or not 0 <= log_offset - base < segment_bytes:
                if data is not None:
                    pieces.append(data[first:last])
                base = self._log.segments.base_of(log_offset)
                data = self._log.segments.open(base).map
                first = last = log_offset - base
            at = log_offset - base
            if at != last:
                pieces.append(data[first:last])
                first = at
            last = at + size
            is_inside = _HEAD.size <= size <= segment_bytes - at
            says = _HEAD.unpack_from(data, at) if is_inside else None
            if says is None or says[0::3] != (size, queue_id) or says[5] != queue_offset or says[1] not in _MAGICS:
                what = "points to no frame of this queue and offset"
                raise damaged_entry(self._log, topic, queue_id, queue_offset, what)
        if data is not None:
            pieces.append(data[first:last])
        return b"".join(pieces)
