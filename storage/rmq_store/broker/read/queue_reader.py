"""Reads a range of one queue as record batches (data plane).

Queue entries give offsets and sizes; one gather per segment gives columns. Entries have no checksum, so the topic, the
queue and the queue offset in each record are compared with the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.errors import CorruptQueueError, CorruptRecordError, OffsetOutOfRangeError
from rmq_store.files.locks.background import map_in_pairs
from rmq_store.format.batches.frame_decoder import BatchTooLargeError, NotOwnedError, Owner, decode_frames
from rmq_store.format.tables.schema import message_schema
from rmq_store.format.views.consume_queue import ENTRY_BYTES, PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.placeholder_entries import placeholders_around
from rmq_store.memory import BatchMemory

# Stored frames per batch: keeps the 32-bit offsets of Arrow's binary columns far from their limit, decompressed
# bodies too. A few times what a batch needs is kept for the next ones. Somewhat more than an eighth of a segment: what
# queues have in one mostly comes to an even number of equal parts, for two threads.
BATCH_ROWS = 32_768
BATCH_BYTES = 9 << 20
# Unusual messages are read into Arrow's pool, which grows unless it is asked now and then to release memory.
# If nothing came from there, that costs nothing.
_POOL_BYTES = 256 << 20
_REMEDY = "`rmq repair` lets the store be used on both sides of it"
_REBUILD = "`rmq repair` builds the queues again from the log"

# One for the process: Spark's workers open a store for each task.
_memory = BatchMemory()


class _Frames(NamedTuple):
    """Frames of one segment, with their commit-log offsets and sizes, (n,) each, and the queue that they must belong
    to.
    """

    offsets: np.ndarray
    sizes: np.ndarray
    owner: Owner

    def part(self, low: int, high: int) -> _Frames:
        """The frames [low, high)."""
        owner = self.owner._replace(queue_offsets=self.owner.queue_offsets[low:high])
        return _Frames(self.offsets[low:high], self.sizes[low:high], owner)


class QueueReader:
    """Reads queue ranges of one log. The caller passes the entries, because it knows where the log ends."""

    def __init__(self, log: CommitLog, broker_name: str, body_limit_bytes: int) -> None:
        self._log = log
        self._broker_name = broker_name
        self._body_limit_bytes = body_limit_bytes
        self._pool_bytes = 0

    def read(
        self,
        request: ReadRequest,
        entries: np.ndarray,
        *,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of `request`, in queue order. `entries` (n,) of dtype ENTRY are the entries of
        `request.queue_offsets()`.

        Raises:
            CorruptQueueError: an entry and the record it points at disagree, or no record is there.
            OffsetOutOfRangeError: retention has deleted the messages since the caller read the entries; or the entries
                are damaged, and point below the log. The error does not say which messages are left.
            CorruptRecordError: a record is damaged, or its segment is missing in the middle of the log. For accepted
                damage, the error names all lost messages; with `request.skip_lost` they are left out.
        """
        topic, queue_id, columns, tags = request.topic, request.queue_id, request.columns, request.tag_filter
        queue_offsets = request.queue_offsets()
        assert len(queue_offsets) == len(entries)
        end = int(queue_offsets[-1]) + 1 if len(entries) else request.start
        offsets = entries["commit_log_offset"].astype(np.int64)
        sizes = entries["frame_size"].astype(np.int32)
        wanted = sizes != PRE_BLANK_SIZE
        lost = self._log.accepted_damage.mask(offsets) & wanted
        if tags is not None:
            wanted &= tags.may_match(entries["tags_code"])
        wanted &= ~lost
        stop = None
        if lost.any() and not request.skip_lost:
            stop = int(lost.argmax())  # whatever its tag was
            wanted[stop:] = False
        hole = None if stop is None else self._hole(topic, queue_id, int(queue_offsets[stop]), entries[stop])
        if not wanted.all():
            offsets, sizes, queue_offsets = offsets[wanted], sizes[wanted], queue_offsets[wanted]
        decoded = list(dict.fromkeys([*columns, *(["tags"] if tags is not None else [])]))
        schema = message_schema(tuple(columns))
        decode = partial(self._decode, columns=decoded, raw_body=request.raw_body)
        wanted_frames = _Frames(offsets, sizes, Owner(topic, queue_id, queue_offsets))
        pieces = (wanted_frames.part(*cut) for cut in self._batches(offsets, sizes, batch_rows, batch_bytes))
        for frames, made in (map_in_pairs if request.two_threads else _one_by_one)(pieces, decode):
            try:
                for batch in _whole_or_halves(frames, made, decode):
                    if tags is not None:
                        batch = batch.filter(tags.matches(batch.column("tags")))
                    if decoded != [*columns]:
                        batch = pa.RecordBatch.from_arrays([batch.column(name) for name in columns], schema=schema)
                    if batch.num_rows:
                        yield batch
            except FileNotFoundError as error:
                missed = int(frames.owner.queue_offsets[0]), int(frames.offsets[0]), int(frames.sizes[0])
                raise self._missing_segment(topic, queue_id, *missed, end) from error
            self._pool_bytes += int(frames.sizes.sum())
            if self._pool_bytes > _POOL_BYTES:
                self._pool_bytes = 0
                pa.default_memory_pool().release_unused()
        if hole is not None:
            raise hole

    def _hole(self, topic: str, queue_id: int, queue_offset: int, entry: np.void) -> CorruptRecordError:
        """The error for a message in accepted damage."""
        bad = self._log.accepted_damage.covering(int(entry["commit_log_offset"]))
        assert bad is not None
        first, last = placeholders_around(self._log, topic, queue_id, queue_offset)
        return CorruptRecordError(
            str(self._log.root / bad.file),
            bad.start,
            f"messages [{first}, {last}) of {topic}-{queue_id} are lost: bytes {bad.start} to {bad.end} of the log are "
            f"damaged ({bad.reason}). Those before {first} and from {last} on can be read",
        )

    def _batches(
        self, offsets: np.ndarray, sizes: np.ndarray, batch_rows: int, batch_bytes: int
    ) -> Iterator[tuple[int, int]]:
        """Cut rows into runs that lie in one segment and keep to the limits. Rows of one segment are cut into equal
        parts, so that two threads get equal work.
        """
        segment_bytes = self._log.segments.size_bytes
        ends = np.cumsum(sizes.astype(np.int64))
        first, count = 0, len(offsets)
        while first < count:
            base = self._log.segments.base_of(int(offsets[first]))
            here = first + max(int(np.searchsorted(offsets[first:], base + segment_bytes)), 1)
            before = int(ends[first - 1]) if first else 0
            most_bytes = _equal_share(int(ends[here - 1]) - before, batch_bytes)
            last = int(np.searchsorted(ends, before + most_bytes, side="right"))
            last = min(max(last, first + 1), first + _equal_share(here - first, batch_rows), here)
            # Entries that are damaged may be in no order.
            elsewhere = (offsets[first:last] - base).view(np.uint64) >= segment_bytes
            if elsewhere.any():
                last = first + int(elsewhere.argmax())
            yield first, last
            first = last

    def _decode(self, frames: _Frames, columns: list[str], raw_body: bool) -> pa.RecordBatch:
        """One batch. BatchTooLargeError: the decompressed bodies are too large for one batch."""
        offsets, sizes, owner = frames
        base = self._log.segments.base_of(int(offsets[0]))
        buffer = self._log.segments.open(base).buffer
        try:
            return decode_frames(
                buffer,
                offsets - base,
                sizes,
                base_offset=base,
                columns=columns,
                broker_name=self._broker_name,
                raw_body=raw_body,
                body_limit_bytes=self._body_limit_bytes,
                owner=owner,
                memory=_memory,
            )
        except CorruptRecordError as error:
            queue_offset = int(owner.queue_offsets[_row_at(offsets, sizes, error.offset)])
            raise damaged_message(self._log, owner.topic, owner.queue_id, queue_offset, error) from error
        except NotOwnedError as error:
            queue_offset, offset = int(owner.queue_offsets[error.row]), int(offsets[error.row])
            what = f"points at byte {offset} of the log, where {[*error.found]} is stored"
            raise damaged_entry(self._log, owner.topic, owner.queue_id, queue_offset, what) from error

    def _missing_segment(
        self, topic: str, queue_id: int, queue_offset: int, offset: int, size: int, end: int
    ) -> OffsetOutOfRangeError | CorruptQueueError | CorruptRecordError:
        if offset < 0 or size <= 0:  # no entry ever was like that: this one is not retention's doing
            what = f"says {size} bytes at byte {offset} of the log"
            return damaged_entry(self._log, topic, queue_id, queue_offset, what)
        if offset >= self._log.start():
            return damaged_message(self._log, topic, queue_id, queue_offset, self._log.missing_segment(offset))
        what = f"{topic}-{queue_id}: retention removed messages from {queue_offset} on while they were read"
        return OffsetOutOfRangeError(what, queue_offset, end, end)


def _equal_share(whole: int, limit: int) -> int:
    """Size of each part, if `whole` is cut into the fewest equal parts that keep to the limit."""
    return -(-whole // max(-(-whole // limit), 1))


_Decode = Callable[[_Frames], pa.RecordBatch]


def _one_by_one(pieces: Iterator[_Frames], decode: _Decode) -> Iterator[tuple[_Frames, Callable[[], pa.RecordBatch]]]:
    return ((frames, partial(decode, frames)) for frames in pieces)


def _whole_or_halves(frames: _Frames, made: Callable[[], pa.RecordBatch], decode: _Decode) -> Iterator[pa.RecordBatch]:
    """The batch of `made`; if it is too large, the batches of both halves of the frames, one after the other."""
    try:
        yield made()
    except BatchTooLargeError:
        half = len(frames.offsets) // 2
        for part in (frames.part(0, half), frames.part(half, len(frames.offsets))):
            yield from _whole_or_halves(part, partial(decode, part), decode)


def _row_at(offsets: np.ndarray, sizes: np.ndarray, offset: int) -> int:
    """The row for an error about the record at `offset`; of several rows, the one with an impossible size."""
    rows = np.flatnonzero(offsets == offset)
    return int(rows[sizes[rows].argmin()]) if len(rows) else 0


def damaged_message(
    log: CommitLog, topic: str, queue_id: int, queue_offset: int, error: CorruptRecordError
) -> CorruptRecordError:
    """The error for a message of a queue, made from the `error` about its record."""
    path = log.segments.path(log.segments.base_of(error.offset))
    reason = f"message {queue_offset} of {topic}-{queue_id} is damaged: {error.reason}"
    return CorruptRecordError(str(path), error.offset, f"{reason}. `rmq verify` names all damage, {_REMEDY}")


def damaged_entry(log: CommitLog, topic: str, queue_id: int, queue_offset: int, what: str) -> CorruptQueueError:
    """The error for an entry of a queue; `what` is its defect."""
    directory, start = log.views.queue(topic, queue_id).run.directory, queue_offset * ENTRY_BYTES
    place = f"bytes {start} to {start + ENTRY_BYTES} of the queue"
    reason = f"entry {queue_offset} of {topic}-{queue_id} ({place}) {what}. {_REBUILD}"
    return CorruptQueueError(str(directory), start, reason)
