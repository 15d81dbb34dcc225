"""`GroupListener`: commits what a query has read at its end, on a Spark that does not ask the source then.

Spark calls it in a thread of its own, in the program that has the session, behind the end of the query.
Source: StreamingQueryListener, StreamingQueryProgress (pyspark.sql.streaming.listener).
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_rmq.access.spark_api import TELLS_STARTS, offset_of
from pyspark_rmq.older_spark.group_commit import commit_position
from pyspark_rmq.position.position import StreamPosition
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger("pyspark_rmq.group_listener")

# In the durations of a progress: the batch has its entry in Spark's log of commits.
_COMMITTED = "commitOffsets"

_listened: weakref.WeakSet[SparkSession] = weakref.WeakSet()


class GroupListener(StreamingQueryListener):
    """Commits the end of each query's last completed batch for its group: `spark.streams.addListener(GroupListener())`.

    For a Spark before 4.2. A newer one asks the source behind each batch, and the source has committed by then.
    `pyspark_rmq.register`, `consume` and `write_once` add it by themselves. The program must live until Spark calls
    the listener, shortly behind the end of the query; if it ends earlier, the next run of the query commits.

    No error reaches Spark. Each is logged, and the next run commits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Of running queries, by run: the ends of the sources in the last batch that Spark has committed.
        self._done: dict[str, list[StreamPosition]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is completed yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Remember the end of a batch that is in Spark's log of commits."""
        progress = event.progress
        if _COMMITTED not in progress.durationMs:
            return
        ends = [_position(offset_of(source, "endOffset")) for source in progress.sources]
        with self._lock:
            self._done[str(progress.runId)] = [end for end in ends if end is not None and "group" in end.source]

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new: the source has committed the last batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Commit what the query has completed, whatever has ended it."""
        with self._lock:
            ends = self._done.pop(str(event.runId), [])
        for end in ends:
            try:
                commit_position(end, {})
            except Exception as error:
                _log.warning(
                    "query %s: its last batch is not committed for group %s; its next run, or `rmq checkpoint "
                    "commit-group`, commits it: %s",
                    event.id, end.source["group"], error,
                )  # fmt: skip


def listen(session: SparkSession) -> None:
    """Add a `GroupListener` to a session, once, if this Spark needs one."""
    if not TELLS_STARTS and session not in _listened:
        _listened.add(session)
        session.streams.addListener(GroupListener())


def _position(found: dict[str, Any]) -> StreamPosition | None:
    """A position of this format; None of sources of other formats."""
    if not {"version", "store", "topics"} <= found.keys():
        return None
    try:
        return StreamPosition.from_json(found)
    except UsageError as error:
        _log.warning("a position is not committed: %s", error)
        return None
