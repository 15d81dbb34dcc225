"""Spark's Python data source doing nothing: the ceiling for ours. Same columns, one batch per task, repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

BATCH_ROWS = 10_000


class NullSource(DataSource):
    """`format("null_rmq")`: options `rows`, `partitions`, `bodyBytes`; a sink that only takes batches."""

    @classmethod
    def name(cls) -> str:
        return "null_rmq"

    def schema(self) -> StructType:
        from pyspark_rmq.schema import SOURCE_SCHEMA

        return SOURCE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return NullReader(schema, {name: int(self.options[name]) for name in ("rows", "partitions", "bodyBytes")})

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return NullWriter()


class NullReader(DataSourceReader):
    def __init__(self, schema: StructType, sizes: dict[str, int]) -> None:
        self._schema = schema
        self._sizes = sizes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._sizes["partitions"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        from bench.messages import batch

        schema = to_arrow_schema(self._schema, timezone="UTC")
        made = batch(BATCH_ROWS, self._sizes["bodyBytes"], "Bench")
        filler = {
            "string": pa.array(["127.0.0.1:10911"]).take(pa.array(np.zeros(BATCH_ROWS, np.int32))),
            "numbers": pa.array(np.arange(BATCH_ROWS, dtype=np.int64)),
        }
        columns = []
        for field in schema:
            if field.name in made.schema.names:
                columns.append(made.column(field.name).cast(field.type))
            else:
                kind = "string" if pa.types.is_string(field.type) else "numbers"
                columns.append(filler[kind].cast(field.type))
        ready = pa.RecordBatch.from_arrays(columns, schema=schema)
        for _ in range(self._sizes["rows"] // self._sizes["partitions"] // BATCH_ROWS):
            yield ready


class NullWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
