"""A store as a `QueueSource`: the store itself, with the questions of a reader that no other caller has. Control plane;
`read_slice` is data plane.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pyspark_rmq.position.position import Queue
from rmq_store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_rmq.access.queue_source import (
        DelayedMessages,
        FoundRows,
        LostOffsets,
        Pins,
        QueueSource,
        Redriven,
        Sizes,
        SliceRead,
    )
    from pyspark_rmq.position.planning import Range
    from pyspark_rmq.position.queue_ids import QueueId


class StoreReader(Store):
    """See `QueueSource`. It has all capabilities of a directory."""

    second_read_is_cheap = True

    def version(self) -> Hashable:
        """The commit-log offsets `[start, end)` that exist. Topics have a table of their own: see `topics`."""
        return self.log_range()

    def is_still(self, version: Hashable) -> bool:
        """See `QueueSource.is_still`; retention is not seen here."""
        assert isinstance(version, tuple)
        return self.has_not_grown(version[1])

    def ranges(self, queues: Iterable[Queue]) -> dict[Queue, Range]:
        """See `QueueSource.ranges`: a store reports every queue."""
        return {queue: self.queue_range(*queue) for queue in queues}

    def offsets_by_time(self, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        """See `QueueSource.offsets_by_time`."""
        return {queue: self.offset_by_time(*queue, time_ms) for queue, time_ms in times_ms.items()}

    def read_slice(self, wanted: SliceRead) -> Iterator[pa.RecordBatch]:
        """Raises what `Store.read` raises."""
        return self.read(
            *wanted.part, columns=wanted.columns, tags=wanted.tags, raw_body=wanted.raw_body, only=wanted.only,
            two_threads=False,  # Spark runs a task for each processor
        )  # fmt: skip

    def find(
        self,
        topic: str,
        texts: Sequence[str],
        spans: Mapping[QueueId, tuple[int, int]],
        by: Literal["key", "unique key", "id"],
    ) -> FoundRows:
        """See `QueueSource.find`. Raises `CorruptionError`: the index is damaged."""
        return self.query.rows.find(topic, texts, spans, by)

    def redriven_of(self, group: str, queue_id: QueueId) -> Redriven | None:
        """See `QueueSource.redriven_of`."""
        assert isinstance(queue_id, int)
        return self.redriven(group).get(queue_id)

    def known_groups(self) -> Collection[str]:
        """See `QueueSource.known_groups`."""
        return {*self.groups(), *self.all_committed_offsets()}

    def starts_at_first_message(self, group: str, queue: Queue, max_offset: int) -> bool:
        """See `QueueSource.starts_at_first_message`."""
        from rmq_store import starts_at_first_message

        return starts_at_first_message(self, *queue, max_offset)

    def deliver_due(self, limit: int | None) -> int | None:
        """See `DelayedMessages.deliver_due`. StoreFullError: there is no room for them."""
        return self.schedule.deliver_due(limit).next_due_ms


if TYPE_CHECKING:

    def _is_source(store: StoreReader) -> QueueSource:
        """Never called. mypy fails here if a member is missing, or has another signature."""
        return store

    def _has_capabilities(store: StoreReader) -> tuple[Pins, Sizes, LostOffsets, DelayedMessages]:
        """The same of the capabilities."""
        return store, store, store, store
