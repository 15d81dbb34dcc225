"""Reads messages of one queue as the frames that lie in the log, for answers to pulls (data plane).

Frames that follow each other in the log are copied together. Source: DefaultMessageStore#getMessage.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rmq_store.broker.filter.tags import TagFilter
from rmq_store.broker.read.queue_reader import damaged_entry
from rmq_store.errors import CorruptQueueError
from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_check import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2
from rmq_store.format.views.consume_queue import ENTRY_FIELDS, PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.protocol.results import QueueRange

# As numpy's ENTRY: for the 32 messages of a usual pull, a loop takes a tenth of the time of numpy's calls.
# Total size, magic, queue id, queue offset; between them the CRC of the body, and the flag.
_HEAD: Final = struct.Struct(">ii4xi4xq")
_HEAD_BYTES: Final = _HEAD.size
_MAGICS: Final = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)
# No offset that an entry can hold lies in the segment that begins there.
_NOWHERE: Final = 1 << 64


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
        elif 0 < len(entries) <= count_max and (frames := self._of_one_segment(queue_id, start, entries, bytes_max)):
            return FrameRange(queue, frames, len(entries), behind)
        segments, segment_bytes = self._log.segments, self._log.segments.size_bytes
        unpack_head = _HEAD.unpack_from
        data: mmap.mmap | bytes = b""
        base = _NOWHERE
        # Frames that were copied; and the piece of `data` that is to be copied next.
        pieces: list[bytes] = []
        first = last = 0
        count = size_bytes = last_row = 0
        for row, (log_offset, size, _) in zip(rows, ENTRY_FIELDS.iter_unpack(entries.tobytes()), strict=True):
            if size == PRE_BLANK_SIZE:
                continue
            size_bytes += size
            if count and (count >= count_max or size_bytes > bytes_max):
                behind = start + last_row + 1
                break
            count, last_row = count + 1, row
            at = log_offset - base
            if at != last or at >= segment_bytes:
                pieces.append(data[first:last])
                if not 0 <= at < segment_bytes:
                    base = segments.base_of(log_offset)
                    data, at = segments.open(base).map, log_offset - base
                first = at
            last = at + size
            if size < _HEAD_BYTES or last > segment_bytes:
                raise self._damaged(topic, queue_id, start + row)
            says, magic, says_queue, says_offset = unpack_head(data, at)
            if says != size or says_queue != queue_id or says_offset != start + row or magic not in _MAGICS:
                raise self._damaged(topic, queue_id, start + row)
        pieces.append(data[first:last])
        return FrameRange(queue, b"".join(pieces), count, behind)

    def _of_one_segment(self, queue_id: int, start: int, entries: np.ndarray, bytes_max: int) -> bytes | None:
        """The frames of all entries, if the first one's segment has them all and nothing is special: an entry that is
        not for a message, damage, more than `bytes_max`. None otherwise, or without the extension.
        """
        if not native.LOADED:
            return None
        data = entries.tobytes()
        (log_offset, _, _) = ENTRY_FIELDS.unpack_from(data)
        segments = self._log.segments
        base = segments.base_of(log_offset)
        if base < 0:
            return None
        return native.functions.whole_frames(segments.open(base).map, base, data, queue_id, start, bytes_max)

    def _damaged(self, topic: str, queue_id: int, queue_offset: int) -> CorruptQueueError:
        return damaged_entry(self._log, topic, queue_id, queue_offset, "points to no frame of this queue and offset")

    def _wanted(self, entries: np.ndarray, tags: TagFilter | None) -> list[int]:
        """The rows that `tags` may match, and that do not lie in accepted damage."""
        wanted = ~self._log.accepted_damage.mask(entries["commit_log_offset"].astype(np.int64))
        if tags is not None:
            wanted &= tags.may_match(entries["tags_code"])
        rows: list[int] = np.flatnonzero(wanted).tolist()
        return rows
