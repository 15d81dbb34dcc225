"""Spark's Python data source doing nothing: the ceiling for ours. Batch and stream, source and sink.

`format("null")`, with the options
    template          Arrow file with one record batch, which tasks hand over again and again; mapped, so that it costs
                      a task nothing to have it
    rows              how many rows there are
    rowsPerTrigger    how many of them a trigger of a stream takes; all of them without it
    rowsPerSecond     instead of `rows`, in a stream: so many come into being each second, from the query's start on,
                      and each has the time of its birth in its body (`bench.births`)
    looks             file that grows by a byte for each look for new rows (`bench.looks`)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bench import births
from bench.looks import counted
from pyspark_rmq.access.spark_api import (
    DataSourceStreamArrowWriter,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa

# As many as ours has queues.
PARTITIONS = 4


class NullSource(DataSource):
    """See above. The sink takes all batches and drops them."""

    @classmethod
    def name(cls) -> str:
        return "null"

    def schema(self) -> StructType:
        from pyspark_rmq.schema.schema import SOURCE_SCHEMA

        return SOURCE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return NullReader(_Rows(self.options["template"], tuple(schema.names)), int(self.options["rows"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        rows = _Rows(self.options["template"], tuple(schema.names))
        if "rowsPerSecond" in self.options:
            return ClockReader(rows, int(self.options["rowsPerSecond"]))
        total = int(self.options["rows"])
        per_trigger = int(self.options["rowsPerTrigger"]) if "rowsPerTrigger" in self.options else total
        reader = NullStreamReader(rows, total, per_trigger)
        return counted(reader, self.options["looks"]) if "looks" in self.options else reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return NullWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return NullStreamWriter()


class Share(InputPartition):
    """The rows `[start, end)` for one task."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


def shares(start: int, end: int) -> list[Share]:
    """One for each task; no empty ones."""
    cuts = [start + (end - start) * number // PARTITIONS for number in range(PARTITIONS + 1)]
    return [Share(low, high) for low, high in itertools.pairwise(cuts) if low < high]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The template's columns `names`."""

    path: str
    names: tuple[str, ...]

    def template(self) -> pa.RecordBatch:
        import pyarrow as pa

        with pa.memory_map(self.path) as file:
            return pa.ipc.open_file(file).get_batch(0).select(list(self.names))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        template = self.template()
        whole, rest = divmod(partition.end - partition.start, template.num_rows)
        for _ in range(whole):
            yield template
        if rest:
            yield template.slice(0, rest)


class NullReader(DataSourceReader):
    def __init__(self, rows: _Rows, total: int) -> None:
        self._rows = rows
        self._total = total

    def partitions(self) -> Sequence[InputPartition]:
        return shares(0, self._total)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class NullStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: _Rows, total: int, rows_per_trigger: int) -> None:
        self._rows = rows
        self._total = total
        self._rows_per_trigger = rows_per_trigger

    def initialOffset(self) -> dict[str, Any]:
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        limited = self._rows_per_trigger < self._total
        return ReadMaxRows(self._rows_per_trigger) if limited else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Spark 4.0 and 4.1 ask without `start`: nobody knows then where a trigger begins, and there is one for all."""
        if start is None:
            if self._rows_per_trigger < self._total:
                raise ValueError("rowsPerTrigger needs a Spark that tells the start of a batch: 4.2 or newer")
            return {"row": self._total}
        return {"row": min(self._total, start["row"] + self._rows_per_trigger)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return shares(start["row"], end["row"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        pass


class ClockReader(DataSourceStreamReader):
    """Row n is born n / `rows_per_second` seconds after the query asked for its first offset."""

    def __init__(self, rows: _Rows, rows_per_second: int) -> None:
        self._rows = rows
        self._interval_ns = 1_000_000_000 // rows_per_second

    def initialOffset(self) -> dict[str, Any]:
        return {"begun_ns": time.time_ns(), "row": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return start | {"row": (time.time_ns() - start["begun_ns"]) // self._interval_ns + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        parts = shares(start["row"], end["row"])
        begun_ns, interval_ns = end["begun_ns"], self._interval_ns
        return [Share(begun_ns + one.start * interval_ns, begun_ns + one.end * interval_ns) for one in parts]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        import numpy as np

        # Here the share is one of time: from the birth of its first row to that of the next task's.
        born_ns = np.arange(partition.start, partition.end, self._interval_ns, dtype=np.int64)
        template = self._rows.template().slice(0, len(born_ns))
        at = template.schema.get_field_index("body")
        yield template.set_column(at, template.schema.field(at), births.bodies(born_ns))

    def commit(self, end: dict[str, Any]) -> None:
        pass


class NullWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _drop(iterator)


class NullStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _drop(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        pass


def _drop(iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in iterator:
        pass
    return WriterCommitMessage()
