"""The interface that Spark has for Python data sources, by the names of the newest one. Older
ones get from here what they lack.

Only this module imports names that a Spark may lack (`tests/connector/spark_versions/test_spark_api.py`). It asks for
names and signatures, never for the number of a version: vendors patch theirs.

    DataSourceStreamArrowWriter    4.0 lacks it; but its tasks hand Arrow batches to each DataSourceArrowWriter,
                                   whatever they write (write_into_data_source.py)
    Filter and its classes         4.0 lacks them: nobody calls `pushFilters`
    ReadLimit and its classes,     4.0 and 4.1 lack them. `latestOffset()` gets neither a start nor a limit, and a
    SupportsTriggerAvailableNow    source is told nothing of AvailableNow (`pyspark_rmq.older_spark.untold_reader`)
    timezone of to_arrow_schema    4.0 and 4.1 lack it, and have UTC
    a second registration          4.0 refuses it
    offsets of a progress as JSON  4.0 and 4.1 show listeners of a Connect session the text of a Python dict instead
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

try:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter
except ImportError as error:
    from importlib import metadata

    try:
        _found = f"this is {metadata.version('pyspark')}"
    except metadata.PackageNotFoundError:
        _found = "it is not installed"
    raise ImportError(f"pyspark_rmq needs PySpark 4.0 or newer, and {_found}: pip install 'pyspark>=4.0'") from error

from pyspark.errors import AnalysisException

from pyspark_rmq.position.position import refuse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.listener import SourceProgress
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    HAS_STREAM_ARROW_WRITER = True
except ImportError:
    HAS_STREAM_ARROW_WRITER = False

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef, misc]
        """A writer of streams that Spark takes for one of Arrow batches."""


try:
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        IsNull,
        LessThan,
        LessThanOrEqual,
        Not,
        StringContains,
        StringEndsWith,
        StringStartsWith,
    )

    HAS_PUSHDOWN = True
except ImportError:
    HAS_PUSHDOWN = False

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    TELLS_STARTS = len(inspect.signature(DataSourceStreamReader.latestOffset).parameters) > 1
except ImportError:
    TELLS_STARTS = False

    class ReadLimit:  # type: ignore[no-redef]
        """How much a batch may read."""

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Everything that is there."""

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """At most so many bytes."""

        max_bytes: int

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        """Nothing, until there are so many rows."""

        min_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A source that is told of the trigger AvailableNow."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of rows of this schema: times are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source in a session. 4.0 refuses one that it has found by itself, with the error of a name that is
    taken: the session has it then.
    """
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def offset_of(source: SourceProgress, name: Literal["startOffset", "endOffset", "latestOffset"]) -> dict[str, Any]:
    """An offset in a source's progress, as a JSON object; {} for everything else that sources of other formats say,
    `None` included. Spark 4.0 and 4.1 show a listener an offset that is no JSON; the JSON of the whole progress has it.
    """
    try:
        try:
            value = json.loads(getattr(source, name))
        except ValueError:
            value = json.loads(source.json).get(name)
    except (TypeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def refuse_pushdown(options: Mapping[str, str]) -> None:
    """Raise `UsageError` for the option filterPushdown of a read if this Spark pushes no filters down."""
    if not HAS_PUSHDOWN and options.get("filterPushdown", "false").strip().lower() == "true":
        refuse("option filterPushdown: this Spark pushes no filters to a source in Python; leave it out, or take 4.1")


def lacking() -> dict[str, str]:
    """The things that this Spark lacks and the newest one has, and the consequences (docs/spark.md)."""
    found = {
        "filter pushdown": (HAS_PUSHDOWN, "the option filterPushdown is refused"),
        "admission control": (
            TELLS_STARTS,
            "a run with availableNow is one batch, and a limit caps the whole run. pyspark_rmq.commit_groups or "
            "`rmq checkpoint commit-group` commits what the group has read at its end",
        ),
    }
    return {name: text for name, (is_there, text) in found.items() if not is_there}


__all__ = [
    "HAS_PUSHDOWN", "HAS_STREAM_ARROW_WRITER", "TELLS_STARTS", "DataSourceStreamArrowWriter", "EqualNullSafe",
    "EqualTo", "Filter", "GreaterThan", "GreaterThanOrEqual", "In", "IsNotNull", "IsNull", "LessThan",
    "LessThanOrEqual", "Not", "ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "ReadMinRows",
    "StringContains", "StringEndsWith", "StringStartsWith", "SupportsTriggerAvailableNow", "arrow_schema", "lacking",
    "offset_of", "refuse_pushdown", "register_source",
]  # fmt: skip
