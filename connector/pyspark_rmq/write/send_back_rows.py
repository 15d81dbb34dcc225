"""The rows of a write with the option `sendBack`, as the engine takes them. Data plane.

A row has reasons if its errorClass, errorMessage or stackHash is not NULL. These three are stored, lastFailureTime
(now, if there is no such column), and the query and batch that Spark names. The engine keeps the time and place of the
first failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

_FIXED = ("commitLogOffset", "msgId", "delayLevel")
_SAYS_WHY = ("errorClass", "errorMessage", "stackHash")


def query_reasons(context: TaskContext) -> dict[str, str | None]:
    """The reasons that Spark knows of a task: its query and batch; None where it runs in none."""
    from rmq_store import failure

    return {
        failure.QUERY_ID: context.getLocalProperty("sql.streaming.queryId"),
        failure.BATCH_ID: context.getLocalProperty("streaming.sql.batchId"),
    }


def send_back_rows(
    batch: pa.RecordBatch, names: Sequence[str], of_query: Mapping[str, str | None], now_ms: int
) -> pa.RecordBatch:
    """Return rows of the sink as `rmq_store.SEND_BACK_SCHEMA`. All rows get `of_query`, without None values."""
    import pyarrow as pa

    columns = {name: batch.column(name) for name in _FIXED if name in names}
    columns["properties"] = _reasons(batch, names, of_query, now_ms)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _reasons(
    batch: pa.RecordBatch, names: Sequence[str], of_query: Mapping[str, str | None], now_ms: int
) -> pa.MapArray:
    """The reasons of each row by property; null for rows without a reason."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmq_store import failure

    count = batch.num_rows
    properties = {"errorClass": failure.ERROR_CLASS, "errorMessage": failure.ERROR_MESSAGE}
    properties["stackHash"] = failure.STACK_HASH
    given = {properties[name]: batch.column(name).cast(pa.string()) for name in _SAYS_WHY if name in names}
    says_why = np.zeros(count, np.bool_)
    for values in given.values():
        says_why |= values.is_valid().to_numpy(zero_copy_only=False)
    failed_ms = pa.repeat(pa.scalar(now_ms), count)
    if "lastFailureTime" in names:
        given_ms = pc.divide(batch.column("lastFailureTime").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), 1000)
        failed_ms = pc.coalesce(given_ms, failed_ms)
    given[failure.FIRST_FAILURE_MS] = given[failure.LAST_FAILURE_MS] = failed_ms.cast(pa.string())
    given |= {name: pa.repeat(pa.scalar(value, pa.string()), count) for name, value in of_query.items()}
    # Row by row: the i-th of `width` values belongs to the i-th name. A null value is no property. A null row has no
    # values at all: Arrow would give them to the row before it.
    width, rows = len(given), np.flatnonzero(says_why)
    order = (rows[:, None] + np.arange(width) * count).ravel()
    values = pa.concat_arrays(list(given.values())).take(pa.array(order))
    keys = pa.array(list(given)).take(pa.array(np.tile(np.arange(width), len(rows))))
    starts = np.concatenate(([0], np.cumsum(says_why) * width)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(starts, mask=np.append(~says_why, False)), keys, values)
