"""Runs a handler over the rows of a batch, in the executors, and turns its answers into columns. Data plane.

The meaning of an answer for a row, as RocketMQ's listeners (ConsumeMessageConcurrentlyService.processConsumeResult):

    SUCCESS, CONSUME_SUCCESS        done
    RECONSUME_LATER, 0              again, after the group's next delay
    None                            as RECONSUME_LATER; the reason says that nothing was answered
    1, 2, ...                       again, after this delay level
    DLQ, -1                         a dead letter, at once
    an exception                    as RECONSUME_LATER; its class, message and stack are the reason

An exception of a handler for whole batches says nothing about single rows: the batch is halved until only the guilty
rows fail. So a handler sees a row at least once, and rows next to a guilty one several times.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_rmq.access.store_location import StoreLocation
from pyspark_rmq.position.position import refuse
from pyspark_rmq.retry.failure_reason import Reason, no_result, reason_of, returned
from pyspark_rmq.retry.idempotency import NOT_DONE, Rows, TaskIdempotency
from pyspark_rmq.schema.message_ids import ids_or_errors

if TYPE_CHECKING:
    from pyspark.sql import Row

SUCCESS: Final = "SUCCESS"
RECONSUME_LATER: Final = "RECONSUME_LATER"
DLQ: Final = "DLQ"

Mode = Literal["row", "pandas", "arrow"]
MODES: Final = ("row", "pandas", "arrow")

# No delay level: a row that was consumed.
DONE: Final = np.iinfo(np.int32).min
_DEAD = -1
# Inside this module only: a row for which the handler answered None.
_UNANSWERED: Final = DONE + 1
_LEVEL_MAX = np.iinfo(np.int32).max
_WORDS = {SUCCESS: DONE, "CONSUME_SUCCESS": DONE, RECONSUME_LATER: 0, DLQ: _DEAD}

# The state of a row after the handler has seen it. The reasons replace those of an earlier failure.
RESULT_COLUMNS: Final = ("result", "delayLevel")
REASON_COLUMNS: Final = ("errorClass", "errorMessage", "stackHash", "lastFailureTime")

_TIMESTAMP = pa.timestamp("us", tz="UTC")

Levels = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class HandlerRunner:
    """The function that a task runs: `runner(batches)` yields the columns `passed_columns` of all rows, then the
    results.

    With `once` each message takes effect once; the handler then also gets a connection, unless its effects are outside.
    `max_reconsume_times` decides whether a failure is the last one. `location` has the clock that gives the time of a
    failure.
    """

    handler: Callable[..., Any]
    mode: Mode
    location: StoreLocation
    passed_columns: tuple[str, ...]
    max_reconsume_times: int
    once: TaskIdempotency | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the handler over the rows of one task. Raises `UsageError` for an invalid result."""
        clock = self.location.clock()
        for batch in batches:
            if not batch.num_rows:
                continue
            _check_single(batch)
            verdicts = _Verdicts(batch.num_rows)
            if self.once is not None:
                self._run_once(batch, self.once, verdicts)
            elif self.mode == "row":
                self._run_rows(batch, verdicts)
            else:
                self._run_batch(batch, 0, verdicts)
            yield self._answer(batch, verdicts, clock())

    def _run_rows(self, batch: pa.RecordBatch, verdicts: _Verdicts) -> None:
        for number, row in enumerate(_rows(batch)):
            try:
                result = self.handler(row)
            except Exception as error:
                verdicts.fail(number, reason_of(error))
            else:
                verdicts.levels[number] = _level_or_none(result)

    def _run_once(self, batch: pa.RecordBatch, once: TaskIdempotency, verdicts: _Verdicts) -> None:
        """Get the results of the rows from a handler that gets a connection, and only rows that are not done yet."""
        if self.mode != "row":
            rows = Rows(batch, _levels, DONE)
            done = rows.run(once, lambda connection, some: self.handler(connection, self._given(some)))
            verdicts.take(0, rows, done)
            return
        handler: Any = self.handler
        for number, row in enumerate(_rows(batch)):
            rows = Rows(batch.slice(number, 1), _level_of_row, DONE)
            if once.settings.outside:
                done = [rows.run_outside(once, lambda row=row: handler(row))]  # type: ignore[misc]
            else:
                done = rows.run(once, lambda connection, _, row=row: handler(connection, row))  # type: ignore[misc]
            verdicts.take(number, rows, done)

    def _given(self, batch: pa.RecordBatch) -> Any:
        return batch.to_pandas(maps_as_pydicts="lossy") if self.mode == "pandas" else batch

    def _run_batch(self, batch: pa.RecordBatch, start: int, verdicts: _Verdicts) -> None:
        """Get the results of the rows of `batch`, which are those from `start` on."""
        try:
            result = self.handler(self._given(batch))
        except Exception as error:
            if batch.num_rows == 1:
                verdicts.fail(start, reason_of(error))
                return
        else:
            verdicts.levels[start : start + batch.num_rows] = _levels(result, batch.num_rows)
            return
        half = batch.num_rows // 2
        self._run_batch(batch.slice(0, half), start, verdicts)
        self._run_batch(batch.slice(half), start + half, verdicts)

    def _answer(self, batch: pa.RecordBatch, verdicts: _Verdicts, now_ms: int) -> pa.RecordBatch:
        verdicts.give_reasons_to_unanswered()
        failed = verdicts.levels != DONE
        dead = failed & (verdicts.levels < 0)
        dead |= failed & (batch.column("reconsumeTimes").fill_null(0).to_numpy() >= self.max_reconsume_times)
        results = pa.array(np.select([dead, failed], [2, 1], 0).astype(np.int8))
        columns = {name: batch.column(name) for name in self.passed_columns}
        columns["result"] = pa.array([SUCCESS, RECONSUME_LATER, DLQ]).take(results)
        columns["delayLevel"] = pa.array(verdicts.levels, mask=~failed)
        columns |= verdicts.reasons_of(failed)
        now = pa.array(np.full(batch.num_rows, now_ms * 1000, np.int64), mask=~failed)
        columns["lastFailureTime"] = now.cast(_TIMESTAMP)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class _Verdicts:
    """The delay levels of the rows of a batch, and the reasons of the rows that failed by an exception."""

    def __init__(self, count: int) -> None:
        self.levels: Levels = np.full(count, DONE, np.int32)
        self._reasons: dict[int, Reason] = {}
        self._unanswered = np.zeros(count, np.bool_)

    def give_reasons_to_unanswered(self) -> None:
        """Turn each answer None into RECONSUME_LATER."""
        self._unanswered = self.levels == _UNANSWERED
        self.levels[self._unanswered] = 0

    def fail(self, number: int, reason: Reason) -> None:
        self.levels[number] = 0
        self._reasons[number] = reason

    def take(self, start: int, rows: Rows, done: list[bool]) -> None:
        """Take the outcomes of rows that are done once; the first of them is row `start`."""
        for number, (is_done, found) in enumerate(zip(done, ids_or_errors(rows.batch), strict=True), start):
            if is_done:
                continue
            if not isinstance(found, str):
                self.fail(number, reason_of(found))
            elif found in rows.levels:
                self.levels[number] = rows.levels[found]
            else:
                self.fail(number, rows.reasons.get(found, NOT_DONE))

    def reasons_of(self, failed: npt.NDArray[np.bool_]) -> dict[str, pa.Array]:
        """The reason columns; null for rows that have not failed."""
        reasons = [returned(RECONSUME_LATER), returned(DLQ), no_result(), *self._reasons.values()]
        codes = np.select([self._unanswered, self.levels == _DEAD], [2, 1], 0)
        codes[list(self._reasons)] = np.arange(3, len(reasons))
        taken = pa.array(codes, mask=~failed)
        return {
            "errorClass": pa.array([reason.error_class for reason in reasons], pa.string()).take(taken),
            "errorMessage": pa.array([reason.error_message for reason in reasons], pa.string()).take(taken),
            "stackHash": pa.array([reason.stack_hash for reason in reasons], pa.string()).take(taken),
        }


def _check_single(batch: pa.RecordBatch) -> None:
    """Refuse several rows of one message: it would be sent back for each of them, and again for each of its copies."""
    # A commit-log offset is one of a broker.
    names = [name for name in ("commitLogOffset", "brokerName") if name in batch.schema.names]
    messages = pa.table(batch.select(names)).group_by(names).aggregate([([], "count_all")])
    if messages.num_rows < batch.num_rows:
        counts = messages.column("count_all").to_numpy()
        log_offset = messages.column("commitLogOffset")[int(counts.argmax())]
        refuse(
            f"consume: {counts.max()} rows have the commitLogOffset {log_offset}: a message is "
            "judged as a whole. Take it apart (explode, a join) in the handler, or behind on_results"
        )


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows as Spark's `Row`; maps are dicts, times are aware."""
    from pyspark.sql import Row

    make = Row(*batch.schema.names)
    columns = []
    for column in batch.columns:
        values = column.to_pylist()
        if pa.types.is_map(column.type):
            values = [None if pairs is None else dict(pairs) for pairs in values]
        columns.append(values)
    return (make(*values) for values in zip(*columns, strict=True))


def _level_of_row(result: Any, count: int) -> Levels:
    return np.full(count, _level_or_none(result), np.int32)


def _level_or_none(result: Any) -> int:
    return _UNANSWERED if result is None else level_of(result)


def level_of(result: Any) -> int:
    """The delay level for one result; DONE for success. Raises `UsageError` for an invalid result."""
    if result is None:
        return 0
    if isinstance(result, Enum):
        result = result.name
    if isinstance(result, str):
        if result in _WORDS:
            return _WORDS[result]
    elif not isinstance(result, bool | np.bool_ | float | np.floating):
        try:
            level = operator.index(result)
        except TypeError:
            level = DONE
        if _DEAD <= level <= _LEVEL_MAX:
            return level
    refuse(
        f"the handler answered {result!r} for a row: possible are SUCCESS, RECONSUME_LATER, DLQ, a delay level "
        "(0: the next one, -1: dead letter), or None for RECONSUME_LATER"
    )


def _levels(results: Any, count: int) -> Levels:
    """The delay levels for the answer of a handler for batches, about `count` rows."""
    if results is None:
        return np.full(count, DONE, np.int32)
    if isinstance(results, str | int | np.integer | Enum):
        return np.full(count, level_of(results), np.int32)
    is_table = isinstance(results, Mapping | bytes | pa.RecordBatch | pa.Table) or getattr(results, "ndim", 1) != 1
    if is_table or not (isinstance(results, Iterable) and isinstance(results, Sized)):
        refuse(
            f"the handler answered a {type(results).__name__} for {count} rows: possible are one word or level for all "
            "of them, a list, a Series or an array with a result for each, or None"
        )
    array = _as_array(results)
    given = len(results) if array is None else len(array)
    if given != count:
        refuse(f"the handler answered {given} results for {count} rows: one for each row is needed, or None")
    if array is None:
        return np.fromiter((_level_or_none(result) for result in results), np.int32, count)
    if pa.types.is_integer(array.type) or pa.types.is_null(array.type):
        levels_or_nulls = array.cast(pa.int64()) if pa.types.is_null(array.type) else array
        given_levels = levels_or_nulls.fill_null(0).to_numpy(zero_copy_only=False)
        wrong = (given_levels < _DEAD) | (given_levels > _LEVEL_MAX)
        if wrong.any():
            level_of(int(given_levels[wrong.argmax()]))
        unanswered = levels_or_nulls.is_null().to_numpy(zero_copy_only=False)
        return np.where(unanswered, np.int32(_UNANSWERED), given_levels.astype(np.int32))
    codes = array.dictionary_encode()
    by_code = np.array([*(level_of(word) for word in codes.dictionary.to_pylist()), _UNANSWERED], np.int32)
    levels: Levels = by_code[codes.indices.fill_null(len(by_code) - 1).to_numpy(zero_copy_only=False)]
    return levels


def _as_array(results: Any) -> pa.Array | None:
    """Results as one Arrow array, NaN as null; None if their types differ, or Arrow does not know them."""
    if isinstance(results, pa.ChunkedArray):
        array = results.combine_chunks()
    elif isinstance(results, pa.Array):
        array = results
    else:
        try:
            array = pa.array(results, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            return None
    if pa.types.is_nested(array.type):
        return None
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_floating(array.type):
        # pandas has no integers with gaps.
        try:
            array = array.cast(pa.int64())
        except pa.ArrowInvalid:
            pass
    return array
