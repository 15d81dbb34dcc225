"""The micro-batch reader for a Spark that tells a source neither the start of a batch, nor a limit, nor the trigger
(`spark_api.TELLS_STARTS`). It calls `RmqStreamReader` as a newer Spark would. Control plane.

The calls of such a Spark in the planning process (MicroBatchExecution, PythonMicroBatchStream of 4.0 and 4.1):

    new query            latestOffset(), initialOffset(), partitions(initial, end)
    restart              partitions(last, last); if `last` is not completed: partitions(start, last), where the start of
                         a first batch is asked from initialOffset
    further triggers     latestOffset(); if that is new: partitions(start, end), then commit(start) at the next one
    AvailableNow         one batch, then the end. A batch that is repeated is that one
    AvailableNow with    latestOffset() before everything else, whose answer is the end of the run. Further answers go
    spark.sql.streaming  to the query's progress only
      .triggerAvailableNowWrapper.enabled

So a batch starts at the end of the one before: where `partitions` ended. A batch whose rows nobody asks for (a
`foreachBatch` that reads none) has no `partitions`: then `latestOffset` is asked again behind an answer that was new.
In both cases the sink has completed that batch. The wrapper asks again without that, so there only `partitions` counts.
A second question before any `partitions` may be the wrapper's, or follow a first batch whose rows nobody asked for: it
is taken for the wrapper's, which commits nothing. At the third one the first batch is completed in both cases.

The first `latestOffset` of a process is *blind*: nobody knows yet whether the query is a new one. It is answered as to
a new query, and marked (`blind` in `pyspark_rmq.position.position`); nothing is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_rmq.access.executor_check import SentToExecutors
from pyspark_rmq.position.position import StreamPosition, refuse

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_rmq.read.stream_reader import RmqStreamReader

_log = logging.getLogger(__name__)

_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


class UntoldStreamReader(SentToExecutors, DataSourceStreamReader):
    """Remembers what Spark does not tell. `reader` gets each call with the start and the limit of its own options.
    `source` is for `StreamPosition.source`.
    """

    def __init__(self, reader: RmqStreamReader, source: Mapping[str, str]) -> None:
        self._reader = reader
        self._source = dict(source)
        # The start of the next batch: Spark's JSON object.
        self._start: dict[str, Any] | None = None
        # The last answer, if Spark has not asked for its partitions.
        self._answer: dict[str, Any] | None = None
        self._may_be_wrapped = False

    def initialOffset(self) -> dict[str, Any]:
        """As `RmqStreamReader.initialOffset`."""
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the end of the next batch; as `RmqStreamReader.latestOffset`.

        Raises:
            UsageError: the run has a limit, and Spark's wrapper of AvailableNow is on.
        """
        if self._start is None:
            if self._answer is None:
                self._warn_of_limit()
                self._answer = self._with_source(self._reader.latest_offset_blindly())
                return self._answer
            if not self._may_be_wrapped:
                self._may_be_wrapped = True
                self._refuse_limit()
                return self._answer
            self._start = self._answer
        elif self._answer is not None and not self._may_be_wrapped:
            self._start = self._answer
        end = self._reader.latestOffset(self._start, self._reader.getDefaultReadLimit())
        self._answer = end if end is self._start else self._with_source(end)
        return self._answer

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """As `RmqStreamReader.partitions`. From a position to the same one (`setLatestSeenOffset`): none.

        Raises:
            UsageError: the run has a limit, or reads a cluster or a topic with closed queues, and the wrapper is on.
        """
        if start != end:
            parts = self._reader.partitions(start, end)
        else:
            parts = []
            if self._start is None and self._answer is not None:
                self._may_be_wrapped = True
                self._refuse_limit()
                self._refuse_restart(StreamPosition.from_json(end))
        self._start, self._answer = end, None
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As `RmqStreamReader.read`."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """As `RmqStreamReader.commit`."""
        self._reader.commit(end)

    def stop(self) -> None:
        """As `RmqStreamReader.stop`."""
        self._reader.stop()

    def _with_source(self, position: dict[str, Any]) -> dict[str, Any]:
        return position | {"source": self._source}

    def _warn_of_limit(self) -> None:
        limits = self._reader.limit_options
        if limits:
            _log.warning(
                "this Spark does not tell a source its trigger: with availableNow a run is one batch, and %s caps the "
                "whole run; the next run goes on behind it",
                " and ".join(limits),
            )

    def _refuse_limit(self) -> None:
        """Refuse what the wrapper would do wrongly, before Spark writes its log: it ends with the answer it has."""
        limits = self._reader.limit_options
        if limits:
            refuse(
                f"{' and '.join(limits)} with availableNow: this Spark would end the run after one capped batch. Leave "
                f"the limit out, use processingTime, or set {_WRAPPER}=false to read one such batch a run"
            )

    def _refuse_restart(self, last: StreamPosition) -> None:
        """Refuse a query whose position has what its blind answer cannot have: `since`, `query`, closed queues."""
        if last.since or last.query or last.closed:
            what = "a topic with closed queues" if last.closed else "a cluster"
            refuse(f"availableNow of a query that reads {what} needs {_WRAPPER}=false on this Spark")
