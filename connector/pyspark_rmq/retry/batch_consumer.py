"""The batches of a query of `consume`: the handler's results are stored, and failed rows are sent back. Control plane.

The steps of a batch, in the driver:

    C1  a batch that an earlier run completed, but that Spark did not log, is skipped: its marker is stored
    C2  the handler runs in the executors (`handler_runner`); its results are persisted, so it runs once per attempt
    C3  the flood breaker checks the results
    C4  `on_results` gets all rows with their results
    C5  the failed rows are sent back as one unit, together with the marker of this batch
    C6  Spark logs the batch; the next poll for messages commits the group's offsets

After a failure before C5 nothing is stored: Spark repeats the batch, handler and `on_results` included. After C5 no
step runs again. A batch without failed rows has no marker, and may be repeated as a whole after C4.

With a cluster there is no unit and no marker: C5 is each task's own, and a batch may be repeated as a whole after it,
too. Messages that are sent back already are left out then.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from time import sleep
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pyspark_rmq.position.position import refuse
from pyspark_rmq.query.foreach_batch import BatchFunction, map_in_arrow
from pyspark_rmq.retry.consumed_from import ConsumedFrom, MarkedBatches
from pyspark_rmq.retry.failure_reason import NO_RESULT
from pyspark_rmq.retry.flood_breaker import FloodWatch
from pyspark_rmq.retry.handler_runner import DLQ, REASON_COLUMNS, SUCCESS, HandlerRunner, Mode
from pyspark_rmq.retry.idempotency import SparkIdempotency, TaskIdempotency
from rmq_store.real_time import monotonic

_log = logging.getLogger(__name__)

_PAUSE_S = 1.0

# A marker's value is the batch id and, below it, so many bits that tell its rows from others.
_DIGEST_BITS = 31


@dataclass(frozen=True, slots=True)
class _Counts:
    """The handler's answers for a batch; `digest` tells its rows from those of another batch."""

    rows: int
    failed: int
    dead: int
    unanswered: int
    digest: int


@dataclass
class BatchConsumer(BatchFunction):
    """Runs the handler for the batches of one query, with the arguments of `consume`. Tasks of the handler pass on
    `_passed_columns`, and return rows of `_schema`.
    """

    _handler: Callable[..., Any]
    _mode: Mode
    _place: ConsumedFrom
    _group: str
    _max_reconsume_times: int | None
    _on_results: Callable[[DataFrame, int], None] | None
    _reasons: bool
    _passed_columns: tuple[str, ...]
    _schema: StructType
    _watch: FloodWatch | None
    _idempotency: SparkIdempotency | None
    _run_began: bool = field(default=False, init=False)
    _warned: bool = field(default=False, init=False)

    def _run_batch(self, batch: DataFrame, query_id: str, batch_id: int) -> None:
        """Steps C1 to C5 of the module's table."""
        from pyspark import StorageLevel

        location = self._place.location
        if not self._run_began and not location.is_consuming(self._group):
            refuse(
                f"nobody reads as group {self._group!r} in {self._place}: what fails here would never come back. Give "
                "the stream the options path and group that consume has, and leave commitOffsets on"
            )
        if self._was_completed(batch, query_id, batch_id):
            _log.info("batch %d was completed before: its failed messages have been sent back", batch_id)
            return
        most = self._max_reconsume_times
        if most is None:
            most = self._group_maximum()
        once = self._once(query_id, batch_id, most)
        runner = HandlerRunner(self._handler, self._mode, location, self._passed_columns, most, once)
        results = map_in_arrow(batch, runner.__call__, self._schema).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = _count(results)
            self._warn_of_unanswered(counts, batch_id)
            now_ms = location.clock()()
            if self._watch is not None:
                self._watch.check(counts.rows, counts.dead, now_ms)
            if self._on_results is not None:
                self._on_results(results, batch_id)
            if counts.failed:
                value = _marker_value(batch_id, counts.digest) if isinstance(self._place, MarkedBatches) else batch_id
                self._send_back(results, query_id, value, most)
            if self._watch is not None:
                self._watch.count(counts.dead, now_ms)
        finally:
            results.unpersist()

    def _group_maximum(self) -> int:
        """The setting of the group. While nobody tells it, and somebody who is away may, the batch waits."""
        from rmq_store.cluster import is_away
        from rmq_store.errors import StoreError

        until_s = monotonic() + self._place.away_ms / 1000
        has_warned = False
        while True:
            try:
                return self._place.location.retry_max_times(self._group)
            except StoreError as error:
                if not is_away(error) or monotonic() >= until_s:
                    raise
                if not has_warned:
                    _log.warning(
                        "group %r: its maximum of retries is not known, and waited for, %.0f s at most "
                        "(brokerAwayTimeout): %s", self._group, self._place.away_ms / 1000, error,
                    )  # fmt: skip
                has_warned = True
            sleep(_PAUSE_S)

    def _once(self, query_id: str, batch_id: int, max_reconsume_times: int) -> TaskIdempotency | None:
        if self._idempotency is None:
            return None
        ladder_ms = self._place.location.retry_ladder_ms()
        token = f"{query_id}/{batch_id}"
        return TaskIdempotency(self._idempotency, self._group, ladder_ms, max_reconsume_times, token)

    def _warn_of_unanswered(self, counts: _Counts, batch_id: int) -> None:
        if counts.unanswered and not self._warned:
            self._warned = True
            _log.warning(
                "group %r: the handler returned None for %d of %d rows of batch %d, which come back later as with "
                "RECONSUME_LATER; their reason is %s. Return SUCCESS for rows that are done",
                self._group, counts.unanswered, counts.rows, batch_id, NO_RESULT,
            )  # fmt: skip

    def _was_completed(self, batch: DataFrame, query_id: str, batch_id: int) -> bool:
        """Whether an earlier run has sent this batch's failures back. Only the first batch of a run can be repeated."""
        if self._run_began or not isinstance(self._place, MarkedBatches):
            self._run_began = True
            return False
        newest = self._place.last_sent_back(_key(self._group, query_id))
        found = -1 if newest is None else newest >> _DIGEST_BITS
        if found < batch_id:
            self._run_began = True
            return False
        if found == batch_id and newest == _marker_value(batch_id, _digest(batch)):
            self._run_began = True
            return True
        from rmq_store.errors import MarkerError

        other = "other rows than now" if found == batch_id else f"batch {found}"
        raise MarkerError(
            f"batch {batch_id} of query {query_id}: the store has {other} of this query for group {self._group!r}; its "
            "checkpoint was set back or copied, or messages of the batch are lost since. Start with a new checkpoint: "
            "the query then starts at the group's offsets"
        )

    def _send_back(self, results: DataFrame, query_id: str, value: int, of_group: int) -> None:
        columns = [*self._place.columns, "delayLevel", *(REASON_COLUMNS if self._reasons else ())]
        writer = results.where(results["result"] != SUCCESS).select(*columns).write.format("rmq").mode("append")
        writer.options(
            **self._place.sink_options,
            sendBack=self._group,
            **self._place.maximum_option(self._max_reconsume_times, of_group),
            txnAppId=query_id,
            txnVersion=str(value),
        ).save()


def _key(group: str, query_id: str) -> str:
    """As the sink makes it of sendBack and txnAppId."""
    return f"{group}/{query_id}"


def _marker_value(batch_id: int, digest: int) -> int:
    return batch_id << _DIGEST_BITS | digest


def _count(results: DataFrame) -> _Counts:
    """Run the handler on all rows, keep what it says, and count it."""
    from pyspark.sql import functions as F

    failed = F.count_if(results["result"] != SUCCESS)
    unanswered = F.count_if(results["errorClass"] == NO_RESULT)
    found = results.agg(*_fingerprint(results), failed, F.count_if(results["result"] == DLQ), unanswered).head()
    assert found is not None  # an aggregate without groups has one row
    rows, offsets, failed_rows, dead_rows, unanswered_rows = found
    return _Counts(rows, failed_rows, dead_rows, unanswered_rows, _digest_of(rows, offsets))


def _digest(batch: DataFrame) -> int:
    found = batch.agg(*_fingerprint(batch)).head()
    assert found is not None  # an aggregate without groups has one row
    return _digest_of(*found)


def _fingerprint(rows: DataFrame) -> list[Any]:
    from pyspark.sql import functions as F

    # The remainder keeps the sum of any batch far from the largest number.
    return [F.count("*"), F.coalesce(F.sum(rows["commitLogOffset"] % (1 << 31)), F.lit(0))]


def _digest_of(rows: int, offsets: int) -> int:
    return zlib.crc32(f"{rows} {offsets}".encode()) >> (32 - _DIGEST_BITS)
