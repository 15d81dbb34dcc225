"""How often a stream looks for new rows: when there is nothing, Spark reports no trigger, so the looks are counted."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_rmq.access.spark_api import ReadLimit
from pyspark_rmq.source import DefaultSource


def counted(reader: DataSourceStreamReader, path: str) -> DataSourceStreamReader:
    """The reader, which adds a byte to the file at `path` for each look."""
    look = reader.latestOffset

    def latest_offset(start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with Path(path).open("ab") as file:
            file.write(b".")
        return look(start, limit)

    reader.latestOffset = latest_offset  # type: ignore[method-assign]
    return reader


class CountedSource(DefaultSource):
    """`format("counted")`: our source with the option `looks`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._looks = options["looks"]
        super().__init__({name: value for name, value in options.items() if name.lower() != "looks"})

    @classmethod
    def name(cls) -> str:
        return "counted"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return counted(super().streamReader(schema), self._looks)
