"""`LagListener`: the lag of all streaming queries of a session, as rows, log lines and metrics.

Spark calls it in threads of its own, after a batch and without delaying the query. No error here reaches Spark.
Source: StreamingQueryListener, StreamingQueryProgress (pyspark.sql.streaming.listener).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.lag.lag_metrics import stream_metrics
from pyspark_rmq.lag.lag_tracking import (
    CLUSTER_SCHEME,
    Batch,
    QueueRow,
    SourceRow,
    SourceTracker,
    batch_of,
    milliseconds,
)
from pyspark_rmq.position.position import refuse
from rmq_store.arguments import checked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from pyspark_rmq.access.store_reader import StoreReader

_log = logging.getLogger("pyspark_rmq.lag")
# No child of the logger above: its handlers write the JSON lines.
_own_log = logging.getLogger("pyspark_rmq.lag_listener")

# Of so many ended queries the last rows are kept.
_ENDED_MAX = 100


class LagListener(StreamingQueryListener):
    """Watches every streaming query that reads `format("rmq")`: `spark.streams.addListener(LagListener())`.

    After each progress of a query it reads the store, and writes one line of JSON for each source of this format to the
    logger `pyspark_rmq.lag` (level INFO). With `openmetrics_file` it also replaces that file by the metrics of all
    queries. The file is complete at every moment, and readable for every user. `rows`, `sources`, `table` and
    `openmetrics` return the same values at any time. Metrics cover running queries. Rows of a query that has ended stay
    as they were at its end, until it is started again; those of the last 100 ended queries are kept. Sources of other
    formats are ignored.

    Safe for threads. Errors never reach Spark. They are logged once for each kind, and counted in
    `rmq_listener_errors_total`. For a store that is not on this machine, and for a cluster, lag in seconds and dead
    letters are None, and messages are counted up to the end that the source has reported. The lag of queues whose
    broker is away is None.

    A query with state that goes on without brokers (onBrokerAway=goOn) is warned of once, in the logger
    `pyspark_rmq.lag_listener`: Spark drops the rows of a broker as late when it is back.

    Raises:
        UsageError: the directory of `openmetrics_file` does not exist.
    """

    @checked
    def __init__(self, openmetrics_file: str | Path | None = None) -> None:
        self._file = None if openmetrics_file is None else Path(openmetrics_file).absolute()
        if self._file is not None and not self._file.parent.is_dir():
            refuse(f"openmetrics_file={str(openmetrics_file)!r}: there is no directory {self._file.parent}")
        self._lock = threading.RLock()  # a signal handler may ask for rows in the middle of a look of its thread
        self._trackers: dict[tuple[str, str, int], SourceTracker] = {}
        self._ended: dict[tuple[str, str, int], SourceTracker] = {}
        self._stores: dict[str, tuple[StoreReader, Callable[[], int]]] = {}
        self._error_count = 0
        # The runs of queries with state that were warned of.
        self._warned_runs: set[str] = set()
        self._logged_kinds: set[str] = set()

    def rows(self) -> list[QueueRow]:
        """One row for each queue of each source of each query, as of its last progress; none before that."""
        with self._lock:
            return [row for tracker in self._known() for row in tracker.rows]

    def sources(self) -> list[SourceRow]:
        """One row for each source of each query: sums, retries and dead letters of its last batch."""
        with self._lock:
            return [tracker.total for tracker in self._known() if tracker.total is not None]

    def table(self) -> pa.Table:
        """`rows` as a table with the fields of `QueueRow` as columns; `spark.createDataFrame` accepts it."""
        import pyarrow as pa

        types = {
            "query": pa.string(), "query_id": pa.string(), "run_id": pa.string(), "batch_id": pa.int64(),
            "source": pa.int32(), "path": pa.string(), "group": pa.string(), "topic": pa.string(),
            "queue_id": pa.int32(), "position": pa.int64(), "end": pa.int64(), "messages": pa.int64(),
            "lag": pa.int64(), "lag_seconds": pa.float64(), "rate": pa.float64(), "eta_seconds": pa.float64(),
            "broker_name": pa.string(),
        }  # fmt: skip
        columns = list(zip(*self.rows(), strict=True)) or [()] * len(types)
        return pa.table({name: pa.array(columns[i], kind) for i, (name, kind) in enumerate(types.items())})

    def openmetrics(self) -> str:
        """The metrics of all running queries as OpenMetrics text: docs/metrics.md."""
        from rmq_store import openmetrics_text

        with self._lock:
            return openmetrics_text(stream_metrics(self._trackers.values(), self._error_count))

    def close(self) -> None:
        """Close the stores. A listener that still gets events opens them again."""
        with self._lock:
            self._close_all_but(())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Forget an earlier run of the query; nothing is known of its sources yet."""
        with self._lock, self._guarded():
            self._forget(lambda query_id, run_id: query_id == str(event.id) and run_id != str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Measure the sources after a batch, or after a trigger that had nothing to read."""
        with self._lock:
            with self._guarded():
                for number in range(len(event.progress.sources)):
                    with self._guarded():
                        batch = batch_of(event.progress, number)
                        if batch is not None:
                            self._completed(batch)
                            if batch.goes_on and event.progress.stateOperators:
                                self._warn_of_state(batch)
            self._write()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Measure the sources of a query that has had nothing to read for some seconds."""
        with self._lock:
            with self._guarded():
                trackers = [self._trackers[key] for key in self._trackers if key[1] == str(event.runId)]
                progress: StreamingQueryProgress | None = None
                for tracker in trackers:
                    with self._guarded():
                        store, now_ms = self._current_store(tracker.path)
                        if store is None and progress is None:
                            progress = self._last_progress(event)
                        now = None if progress is None else batch_of(progress, tracker.source)
                        tracker.idle(milliseconds(event.timestamp), store, now_ms, now)
            self._write()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keep the last rows of a query that has ended, and drop its metrics."""
        with self._lock:
            with self._guarded():
                over = {key: self._trackers.pop(key) for key in list(self._trackers) if key[1] == str(event.runId)}
                self._ended = dict([*self._ended.items(), *over.items()][-_ENDED_MAX:])
                self._warned_runs.discard(str(event.runId))
                self._close_all_but({tracker.path for tracker in self._trackers.values()})
            self._write()

    def _completed(self, batch: Batch) -> None:
        key = batch.query_id, batch.run_id, batch.source
        if key not in self._trackers:
            self._forget(lambda query_id, run_id: query_id == batch.query_id and run_id != batch.run_id)
            self._trackers[key] = SourceTracker()
        tracker = self._trackers[key]
        tracker.completed(batch, *self._current_store(batch.path))
        _log.info("%s", _line(tracker))

    def _last_progress(self, event: QueryIdleEvent) -> StreamingQueryProgress | None:
        """The last reports of the sources of an idle query: its event has nothing of them. None if the query cannot be
        asked.
        """
        session = self._session()
        query = None if session is None else session.streams.get(str(event.id))
        progress = None if query is None else query.lastProgress
        return progress if progress is not None and str(progress.runId) == str(event.runId) else None

    def _session(self) -> SparkSession | None:
        """Spark Connect tells a listener its session. In Spark Classic it is the one of this process."""
        session: SparkSession | None = self.spark
        if session is not None:
            return session
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession

        try:
            return SparkSession.active()
        except PySparkRuntimeError:  # there is none
            return None

    def _warn_of_state(self, batch: Batch) -> None:
        if batch.run_id not in self._warned_runs:
            self._warned_runs.add(batch.run_id)
            _own_log.warning(
                "query %s has state, and source %d of it goes on while a broker is away (onBrokerAway=goOn): Spark "
                "drops the rows of that broker as late when it is back. Set onBrokerAway=wait to keep them",
                batch.query or batch.query_id, batch.source,
            )  # fmt: skip

    def _known(self) -> list[SourceTracker]:
        return [*self._ended.values(), *self._trackers.values()]

    def _forget(self, is_over: Callable[[str, str], bool]) -> None:
        for trackers in (self._trackers, self._ended):
            for key in [key for key in trackers if is_over(key[0], key[1])]:
                del trackers[key]

    def _current_store(self, path: str | None) -> tuple[StoreReader | None, int]:
        """The refreshed store and its time; None and the machine's time if the store is not on this machine, or is a
        cluster: the way to its brokers is not in the progress.
        """
        if path is not None and not path.startswith(CLUSTER_SCHEME):
            with self._guarded():
                if path not in self._stores:
                    location = StoreDirectory(path)
                    self._stores[path] = location.open_to_read(), location.clock()
                store, clock = self._stores[path]
                try:
                    store.refresh()
                except Exception:  # it was replaced, say: opened anew for the next batch
                    self._stores.pop(path)[0].close()
                    raise
                return store, clock()
        return None, time.time_ns() // 1_000_000

    def _close_all_but(self, paths: Collection[str | None]) -> None:
        for path in [path for path in self._stores if path not in paths]:
            self._stores.pop(path)[0].close()

    def _write(self) -> None:
        if self._file is not None:
            from rmq_store import write_openmetrics

            with self._guarded():
                write_openmetrics(self._file, stream_metrics(self._trackers.values(), self._error_count))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Log every error of the block, and raise none: Spark would drop events, or print a trace for each."""
        try:
            yield
        except Exception as error:
            self._error_count += 1
            kind = type(error).__qualname__
            if kind not in self._logged_kinds:
                self._logged_kinds.add(kind)
                _own_log.exception("lag is not known; this kind of error, %s, is told once: %s", kind, error)


def _line(tracker: SourceTracker) -> str:
    """The JSON of a source: its sums, and those of its topics."""
    total = tracker.total
    assert total is not None  # a batch was just taken in
    topics: dict[str, dict[str, Any]] = {}
    for row in tracker.rows:
        topic = topics.setdefault(row.topic, {"messages": 0, "lag": 0, "lagSeconds": 0.0})
        topic["messages"] += row.messages
        for name, number, joined in (("lag", row.lag, sum), ("lagSeconds", row.lag_seconds, max)):
            known = number is not None and topic[name] is not None
            topic[name] = joined((topic[name], number)) if known else None
    names = ("query", "queryId", "runId", "batchId", "source", "path", "group", "messages", "retries", "deadLetters",
             "lag", "lagSeconds", "rate", "etaSeconds", "awayBrokers")  # fmt: skip
    return json.dumps({**dict(zip(names, total, strict=True)), "topics": topics}, ensure_ascii=False)
