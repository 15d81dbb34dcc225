"""Filters that Spark passes to the source: fewer rows are read, and the query's result is the same.

Only for users who enable it: Spark 4.3.0 keeps one plan for each DataFrame (PythonDataSourceV2.setReadInfo), so all
queries of it get the rows of the query that pushed its filters last.

The reader takes a filter on a column that is stored as it is shown, if Arrow decides it as Spark does: comparisons with
integers and times, equality and patterns of text, NULL or not. If the filter permits, less is planned: queues by
`topic` and `queueId`, offsets by `queueOffset`; equality of `keys` or `msgId` is looked up in the index. Each filter is
checked before the body is read. Times do not narrow the plan: a broker's clock may have been set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType, TimestampType

from pyspark_rmq.access.spark_api import (
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
from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.options.options import Lookup, SourceOptions
from pyspark_rmq.position.planning import QueueSlice
from pyspark_rmq.position.queue_ids import number_of
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.schema.row_filters import Comparison, where_all_hold
from pyspark_rmq.schema.schema import SOURCE_SCHEMA

_EQUALITY = (EqualTo, EqualNullSafe, In)
_ORDER = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_PATTERN = (StringStartsWith, StringEndsWith, StringContains)
_NULL = (IsNull, IsNotNull)

_COMPARED: Mapping[type[DataType], tuple[type, tuple[type[Filter], ...]]] = {
    IntegerType: (int, (*_EQUALITY, *_ORDER)),
    LongType: (int, (*_EQUALITY, *_ORDER)),
    TimestampType: (datetime, (*_EQUALITY, *_ORDER)),
    StringType: (str, (*_EQUALITY, *_PATTERN)),
}

_QUEUE_COLUMNS = ("topic", "queueId")
_INT64_MAX = (1 << 63) - 1


class PushingReader(RmqReader):
    """A reader that takes filters. Spark refuses it if `spark.sql.python.filterPushdown.enabled` is off."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._queue_comparisons: list[Comparison] = []
        self._offsets = (0, _INT64_MAX)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that this source can decide, and return the others."""
        # Of rows that come back, or are dead letters, the topic that is shown is not that of the queue.
        restored = self._options.subscription.of_group is not None
        left: list[Filter] = []
        for pushed in filters:
            comparison = _comparison(pushed)
            if comparison is None or (comparison.column == "topic" and restored):
                left.append(pushed)
            else:
                self._take(comparison)
        return left

    def _take(self, comparison: Comparison) -> None:
        if comparison.column in _QUEUE_COLUMNS:
            self._queue_comparisons.append(comparison)
            return
        offsets = _offsets(comparison)
        if offsets is not None:
            self._offsets = max(self._offsets[0], offsets[0]), min(self._offsets[1], offsets[1])
            if comparison.operation != "In":
                return
        self._conditions = [*self._conditions, comparison]
        if self._lookup is None and location_of(self._options).index_is_exact:
            self._lookup = _lookup(comparison)

    def _narrow(self, parts: list[QueueSlice]) -> list[QueueSlice]:
        first, last = self._offsets
        parts = [part._replace(start=max(part.start, first), end=min(part.end, last)) for part in parts]
        topics, queue_ids = [part.topic for part in parts], [number_of(part.queue_id) for part in parts]
        queues = {"topic": pa.array(topics, pa.string()), "queueId": pa.array(queue_ids, pa.int32())}
        numbers = pa.array(range(len(parts)), pa.int64())
        wanted = where_all_hold(self._queue_comparisons, pa.record_batch(queues | {"number": numbers}))
        return [part for part in map(parts.__getitem__, wanted.column("number").to_pylist()) if part.start < part.end]


def _comparison(pushed: Filter) -> Comparison | None:
    """The comparison that decides a filter here; None: Spark has to decide it."""
    negated = isinstance(pushed, Not)
    inner: Any = pushed.child if isinstance(pushed, Not) else pushed
    if type(inner) not in (*_EQUALITY, *_ORDER, *_PATTERN, *_NULL) or len(inner.attribute) != 1:
        return None
    (column,) = inner.attribute
    kind: type[Filter] = type(inner)
    operation = kind.__name__
    compared = _COMPARED.get(type(SOURCE_SCHEMA[column].dataType)) if column in SOURCE_SCHEMA.names else None
    if compared is None:
        return None
    if kind in _NULL:
        return Comparison(column, operation, None, negated)
    value_type, kinds = compared
    values = inner.value if kind is In else (inner.value,)
    if kind not in kinds or not all(_is_plain(value, value_type) for value in values):
        return None
    return Comparison(column, operation, tuple(values) if kind is In else inner.value, negated)


def _is_plain(value: object, value_type: type) -> bool:
    """Whether a value is of the column's type for certain: no NULL, which makes a comparison NULL."""
    if type(value) is not value_type:
        return False
    if isinstance(value, int):
        return -_INT64_MAX <= value <= _INT64_MAX
    return not isinstance(value, datetime) or value.tzinfo is not None


def _offsets(comparison: Comparison) -> tuple[int, int] | None:
    """Queue offsets [start, end) outside of which a comparison of `queueOffset` does not hold; inside it does, but for
    IN. None: of another column, or no such range.
    """
    if comparison.column != "queueOffset" or comparison.negated:
        return None
    value = comparison.value
    match comparison.operation:
        case "EqualTo" | "EqualNullSafe":
            return value, value + 1
        case "In":
            return min(value, default=0), max(value, default=-1) + 1
        case "GreaterThan":
            return value + 1, _INT64_MAX
        case "GreaterThanOrEqual":
            return value, _INT64_MAX
        case "LessThan":
            return 0, value
        case "LessThanOrEqual":
            return 0, value + 1
        case "IsNotNull":
            return 0, _INT64_MAX
    return None


def _lookup(comparison: Comparison) -> Lookup | None:
    """The conditions that the index can answer: every row for which the comparison holds is among the answers."""
    if comparison.negated or comparison.operation not in ("EqualTo", "EqualNullSafe", "In"):
        return None
    texts: Sequence[Any] = comparison.value if comparison.operation == "In" else (comparison.value,)
    if comparison.column == "keys":
        # KEYS that are equal to a text have each of its keys; the first will do.
        texts = [next(filter(None, text.split(" ")), "") for text in texts]
    elif comparison.column != "msgId":
        return None
    return Lookup("key" if comparison.column == "keys" else "id", tuple(dict.fromkeys(texts))) if all(texts) else None
