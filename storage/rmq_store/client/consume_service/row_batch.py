"""A batch for a listener that takes rows."""

from __future__ import annotations

import pyarrow as pa

from rmq_store.client.consume_service.process_queue import Batch
from rmq_store.protocol.stored_messages import body_bytes


class RowBatch(Batch[pa.RecordBatch]):
    """Rows of MESSAGE_SCHEMA, at least one. The client adds no properties to them."""

    __slots__ = ("_rows",)

    def __init__(self, rows: pa.RecordBatch, *, is_undecoded: bool = False) -> None:
        super().__init__(*_extent(rows), is_undecoded=is_undecoded)
        self._rows = rows

    def left(self, shown_ms: int | None = None) -> pa.RecordBatch:
        """The unfinished rows."""
        return self._rows

    def keep(self, left: pa.RecordBatch) -> None:
        """Keep only these rows as unfinished."""
        self._rows = left
        self.count, self.size_bytes = 0, 0
        if left.num_rows:
            self.begin, self.end, self.count, self.size_bytes = _extent(left)


def _extent(rows: pa.RecordBatch) -> tuple[int, int, int, int]:
    """The first queue offset, the offset after the last one, the number of rows, and the bytes of their bodies."""
    offsets = rows.column("queueOffset")
    return offsets[0].as_py(), offsets[len(offsets) - 1].as_py() + 1, rows.num_rows, body_bytes(rows)
