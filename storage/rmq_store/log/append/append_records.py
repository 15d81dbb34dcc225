"""Append a few records that become visible together, without columns (CommitLog.java, asyncPutMessages).

The steps and the bytes are those of `append`. Its arrays cost the same for one row and for a thousand, and a client's
batch has a hundred.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from rmq_store.errors import UsageError
from rmq_store.format.frames.frame_check import BLANK_MAGIC
from rmq_store.format.frames.stored_message import complete_frame
from rmq_store.format.views.consume_queue import ENTRY
from rmq_store.log.append.append import AllOrNothing, OneRecord, commit
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.layout import BLANK_BYTES
from rmq_store.log.views.views import QueueKey

_BLANK: Final = struct.Struct(">ii")
_ENTRY: Final = struct.Struct(">qiq")

assert _ENTRY.size == ENTRY.itemsize


def append_records(log: CommitLog, records: Sequence[OneRecord]) -> list[tuple[int, int]]:
    """Append records in their order, visible together; the caller holds `append_lock`. Returns the commit-log offset
    and the queue offset of each. Memory: a copy of the records of one segment.

    Visible, durable and raises as `append`.
    """
    if not records:
        return []
    page = log.writing_page
    start = page.appended_end
    offsets, end = _laid_out(records, start, log.segments.size_bytes)
    rows: dict[QueueKey, list[int]] = {}
    for row, record in enumerate(records):
        rows.setdefault((record.topic, record.queue_id), []).append(row)
    firsts = {key: log.next_queue_offset(*key, start) for key in rows}
    queue_offsets = [0] * len(records)
    for key, of_queue in rows.items():
        for queue_offset, row in enumerate(of_queue, firsts[key]):
            queue_offsets[row] = queue_offset
    key_counts = [len(record.key_hashes) for record in records]
    with AllOrNothing(log, start, end), log.views.putting_keys(sum(key_counts)):
        now = log.clock()
        for record, queue_offset, offset in zip(records, queue_offsets, offsets, strict=True):
            complete_frame(record.frame, queue_offset, offset, now, crc_property=log.crc_property)
        for offset, data in _pieces(records, offsets, start, log.segments.size_bytes):
            log.segments.put(offset, data)
        for key, of_queue in rows.items():
            entries = b"".join(_entry(records[row], offsets[row], now) for row in of_queue)
            log.views.queue(*key).put(firsts[key], np.frombuffer(entries, ENTRY))
        hashes = [each for record in records for each in record.key_hashes]
        log.views.put_keys(
            np.array(hashes, np.int32), np.array(key_counts), np.array(offsets, np.int64), np.array([now], np.int64)
        )
    commit(page, end, offsets[-1], now)
    for key, of_queue in rows.items():
        log.remember_next(*key, firsts[key] + len(of_queue), start, end)
        start = end
    return list(zip(offsets, queue_offsets, strict=True))


def _laid_out(records: Sequence[OneRecord], start: int, segment_bytes: int) -> tuple[list[int], int]:
    """Where each record begins, the first at `start` or in the next segment; and the end of the last one."""
    offsets = []
    for record in records:
        size = len(record.frame)
        if size + BLANK_BYTES > segment_bytes:
            raise UsageError(f"a record of {size} bytes does not fit a segment of {segment_bytes} bytes")
        room = segment_bytes - start % segment_bytes
        if size + BLANK_BYTES > room:
            start += room
        offsets.append(start)
        start += size
    return offsets, start


def _pieces(
    records: Sequence[OneRecord], offsets: Sequence[int], start: int, segment_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """What is written, in log order: the records of each segment in one piece, a blank frame where a segment ends."""
    at, piece = start, list[bytearray]()
    for record, offset in zip(records, offsets, strict=True):
        if offset > start:
            yield at, b"".join([*piece, _BLANK.pack(offset - start, BLANK_MAGIC)])
            at = offset
            piece.clear()
        piece.append(record.frame)
        start = offset + len(record.frame)
    yield at, b"".join(piece)


def _entry(record: OneRecord, offset: int, now: int) -> bytes:
    return _ENTRY.pack(offset, len(record.frame), now + record.delay_ms if record.delay_ms > 0 else record.tags_code)
