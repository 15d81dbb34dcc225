"""The dead letters of a group as filtered rows, with the failure reasons in their properties (data plane).

Works on stores that are open for reading only. One step of a queue is in memory at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rmq_store.broker.dlq.archive_schema import DEAD_LETTER_SCHEMA, columns_of_properties
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.broker.filter.sql92 import Selector
from rmq_store.errors import OffsetOutOfRangeError, UsageError, nearest
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.format.text import names
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.results import QueueRange

if TYPE_CHECKING:
    from rmq_store.broker.store.store import Store

_STEP_ROWS = 16_384
_STEP_BYTES = 16 << 20
_NEEDED = ("queueId", "queueOffset", "storeTimestamp", "reconsumeTimes", "properties")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of dead letters. `reason`: an error class, its last part, or a stack hash. `since_ms`: they became dead
    letters at this time or later.
    """

    since_ms: int | None = None
    reason: str | None = None
    selector: Selector | None = None

    @property
    def needs_reading(self) -> bool:
        """True if the filter needs the records, and queue offsets are not enough."""
        return self.reason is not None or self.selector is not None


class DeadLetterRows:
    """The present dead letters of `group`; later ones are left out.

    Raises (when constructed):
        UsageError: a bad name, or the group has no dead letters' topic.
    """

    def __init__(self, store: Store, group: str, wanted: Wanted | None = None) -> None:
        names.validate_group(group)
        self.topic = names.dlq_topic(group)
        if store.find_topic(self.topic) is None:
            prefix = names.DLQ_PREFIX
            known = [name.removeprefix(prefix) for name in store.topics() if name.startswith(prefix)]
            meant = nearest(group, known)
            raise UsageError(f"group {group!r} has no dead letters" + (f"; {meant!r} has" if meant else ""))
        self.group = group
        self._store = store
        self._wanted = wanted or Wanted()
        self._ranges = dict(sorted(store.queue_ranges(self.topic).items()))
        self._moved: Mapping[int, OffsetRanges] | None = None

    def ranges(self) -> Mapping[int, QueueRange]:
        """The range of each queue, without the filter."""
        return self._ranges

    def count(self) -> int:
        """The number of dead letters, without the filter."""
        return sum(queue.max_offset - queue.min_offset for queue in self._ranges.values())

    def redriven_count(self) -> int:
        """The number of present dead letters that were redriven. CorruptionError: a record of the redrive ledger is
        damaged.
        """
        redriven = self._redriven()
        return sum(
            redriven.get(queue_id, OffsetRanges.none()).count_in(*limits) for queue_id, limits in self._ranges.items()
        )

    def places(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (queue ids int32, queue offsets int64) of the selected dead letters, in the order of the queues."""
        if self._wanted.needs_reading:
            for batch in self.batches(("queueId", "queueOffset")):
                yield batch.column("queueId").to_numpy(), batch.column("queueOffset").to_numpy()
            return
        for queue_id in self._ranges:
            first, last = self._range(queue_id)
            for start in range(first, last, _STEP_ROWS):
                offsets = np.arange(start, min(start + _STEP_ROWS, last), dtype=np.int64)
                yield np.full(len(offsets), queue_id, np.int32), offsets

    def batches(self, columns: Sequence[str] = tuple(DEAD_LETTER_SCHEMA.names)) -> Iterator[pa.RecordBatch]:
        """Yield the selected dead letters, in the order of the queues; DEAD_LETTER_SCHEMA restricted to `columns`.

        Raises:
            CorruptionError: a record is damaged.
        """
        for queue_id in self._ranges:
            first, last = self._range(queue_id)
            for start in range(first, last, _STEP_ROWS):
                yield from self._step(queue_id, start, min(start + _STEP_ROWS, last), columns)

    def newest(self, count: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The last `count` selected dead letters, the newest first, one row at a time. Raises as `batches`."""
        found: list[tuple[int, int, int]] = []
        for queue_id in self._ranges:
            first, stop = self._range(queue_id)
            missing = count
            while missing and stop > first:
                start = max(first, stop - _STEP_ROWS)
                rows = [
                    row
                    for batch in self._step(queue_id, start, stop, ("commitLogOffset", "queueId", "queueOffset"))
                    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
                ]
                found += rows[-missing:]
                missing -= len(rows[-missing:])
                stop = start
        for _, queue_id, queue_offset in heapq.nlargest(count, found):
            yield from self._step(queue_id, queue_offset, queue_offset + 1, columns)

    def _range(self, queue_id: int) -> tuple[int, int]:
        first, last = self._ranges[queue_id]
        if self._wanted.since_ms is not None and first < last:
            first = max(first, self._store.offset_by_time(self.topic, queue_id, self._wanted.since_ms))
        return first, last

    def _step(self, queue_id: int, start: int, end: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read = columns_to_read(columns)
        while start < end:
            try:
                stop = self._store.offset_after_bytes(self.topic, queue_id, start, end, _STEP_BYTES)
                for batch in self._store.read(self.topic, queue_id, start, stop, columns=read):
                    yield from self._chosen(queue_id, batch, columns)
                start = stop
            except OffsetOutOfRangeError as error:  # retention took some meanwhile
                if error.minimum <= start:
                    raise
                start = error.minimum

    def _chosen(self, queue_id: int, batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        moved = self._redriven().get(queue_id, OffsetRanges.none()) if "redriven" in columns else None
        rows = chosen_rows(batch, columns, self._wanted, moved)
        if rows.num_rows:
            yield rows

    def _redriven(self) -> Mapping[int, OffsetRanges]:
        if self._moved is None:
            self._moved = self._store.redriven(self.group)
        return self._moved


def columns_to_read(columns: Sequence[str]) -> list[str]:
    """The columns of MESSAGE_SCHEMA that `chosen_rows` needs for these of DEAD_LETTER_SCHEMA."""
    return [name for name in MESSAGE_SCHEMA.names if name in columns or name in _NEEDED]


def chosen_rows(
    batch: pa.RecordBatch, columns: Sequence[str], wanted: Wanted, moved: OffsetRanges | None
) -> pa.RecordBatch:
    """The wanted dead letters of one queue; DEAD_LETTER_SCHEMA restricted to `columns`. `since_ms` is not looked at.
    `moved`: the offsets that were redriven; None: not known, and the column is null.
    """
    known = dict(zip(batch.schema.names, batch.columns, strict=True)) | columns_of_properties(batch)
    if moved is None:
        known["redriven"] = pa.nulls(batch.num_rows, pa.bool_())
    else:
        known["redriven"] = pa.array(moved.contains(batch.column("queueOffset").to_numpy()))
    schema = pa.schema([DEAD_LETTER_SCHEMA.field(name) for name in columns])
    rows = pa.RecordBatch.from_arrays([known[name] for name in columns], schema=schema)
    if (reason := wanted.reason) is not None:
        kinds = known["errorClass"]
        same = pc.or_(pc.equal(kinds, reason), pc.ends_with(kinds, f".{reason}"))
        same = pc.or_(pc.fill_null(same, False), pc.fill_null(pc.equal(known["stackHash"], reason), False))
    else:
        same = pa.array(np.ones(batch.num_rows, np.bool_))
    if (selector := wanted.selector) is not None:
        matching = [selector.matches(dict(pairs or ())) for pairs in known["properties"].to_pylist()]
        same = pc.and_(same, pa.array(matching, pa.bool_()))
    return rows.filter(same)
