"""The batches of one queue that were pulled and are not done yet: `process_queue` for rows, by the same rule.

A batch is known by a number. It stands for the range [begin, end) of queue offsets from its first row to behind its
last; ranges are disjoint and ascend with their numbers, so the first batch that is left has the smallest offset that is
not done, in whatever order batches end. Source: ProcessQueue.java.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.client.held_queue import HeldQueue


@dataclass(slots=True)
class _Batch:
    """Rows that are not done, at least one. `started_ms`: when a listener got them."""

    rows: pa.RecordBatch
    begin: int
    end: int
    size_bytes: int
    started_ms: int | None = None


class BatchProcessQueue(HeldQueue):
    """Unfinished batches in queue order. Safe for threads."""

    def __init__(self) -> None:
        super().__init__()
        # In the order of their numbers. Unlike a dict it finds its first batch at once when many before it have gone.
        self._batches: OrderedDict[int, _Batch] = OrderedDict()
        self._next_number = 0
        self._count = 0
        self._size_bytes = 0
        self._end = 0

    @property
    def count(self) -> int:
        """Rows pulled and not done."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._size_bytes

    @property
    def max_span(self) -> int:
        """Distance between the first and the last offset not done."""
        with self._lock:
            if not self._batches:
                return 0
            return self._batches[next(reversed(self._batches))].end - 1 - self._first().begin

    def put(self, rows: pa.RecordBatch) -> int:
        """Add a batch of MESSAGE_SCHEMA with at least one row, behind all before; returns its number."""
        batch = _batch_of(rows)
        with self._lock:
            number = self._next_number
            self._next_number += 1
            self._batches[number] = batch
            self._count += rows.num_rows
            self._size_bytes += batch.size_bytes
            self._end = batch.end
            return number

    def left(self, number: int) -> pa.RecordBatch | None:
        """The rows of a batch that are not done; None: all are."""
        with self._lock:
            batch = self._batches.get(number)
            return None if batch is None else batch.rows

    def mark_started(self, number: int, now_ms: int) -> None:
        """Note when the time for handling the batch began."""
        with self._lock:
            if number in self._batches:
                self._batches[number].started_ms = now_ms

    def settle(self, number: int, left: pa.RecordBatch) -> int:
        """Of an unfinished batch only `left` is not done, none or some of its rows; returns the offset to commit."""
        with self._lock:
            before = self._batches[number]
            self._count += left.num_rows - before.rows.num_rows
            if left.num_rows:
                after = self._batches[number] = _batch_of(left)
                after.started_ms = before.started_ms
                self._size_bytes += after.size_bytes - before.size_bytes
            else:
                del self._batches[number]
                self._size_bytes -= before.size_bytes
            return self._first().begin if self._batches else self._end

    def first_expired(self, limit_ms: int, now_ms: int) -> int | None:
        """The number of the first batch, if a listener has had it for more than `limit_ms`."""
        with self._lock:
            if not self._batches:
                return None
            started_ms = self._first().started_ms
            if started_ms is None or now_ms - started_ms <= limit_ms:
                return None
            return next(iter(self._batches))

    def _first(self) -> _Batch:
        return self._batches[next(iter(self._batches))]


def _batch_of(rows: pa.RecordBatch) -> _Batch:
    offsets = rows.column("queueOffset")
    size_bytes = int(pc.sum(pc.binary_length(rows.column("body"))).as_py() or 0)
    return _Batch(rows, offsets[0].as_py(), offsets[len(offsets) - 1].as_py() + 1, size_bytes)
