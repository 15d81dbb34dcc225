"""On Spark Connect: finds the query to which a batch of `consume` or `write_once` belongs. Control plane.

A batch runs in a process of the server, in a Connect session of its own. Neither a SparkContext nor a local property of
the tasks names the query: Spark sets those in the query's thread, and the batch's jobs run in another thread. But the
session that started the query lists its active queries, and a name is unique in this list. So each query of `consume`
or `write_once` has a name there: the user's, or a unique one that is made here.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

from pyspark_rmq.position.position import refuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pyspark_rmq.query.foreach_batch import BatchFunction


def is_connect(frame: DataFrame) -> bool:
    """True if this DataFrame belongs to a session of Spark Connect."""
    return type(frame).__module__.startswith("pyspark.sql.connect.")


class NamedQuery:
    """Finds, in the server's process, the id of the query with this name in the session that started it."""

    def __init__(self, session_id: str, name: str) -> None:
        self._session_id = session_id
        self._name = name
        self._found: str | None = None

    def __call__(self, batch: DataFrame) -> str:
        """The id of the query. Raises `UsageError` if Spark's list does not have it."""
        if self._found is None:
            self._found = self._look_up()
        return self._found

    def _look_up(self) -> str:
        from pyspark.sql.connect.session import SparkSession

        url = os.environ.get("SPARK_CONNECT_LOCAL_URL")  # foreach_batch_worker.py has its session from there, too
        if url is None:
            refuse("this Spark Connect server does not say where it listens; Spark 4.0 or newer is needed")
        session = SparkSession.builder.remote(f"{url};session_id={self._session_id}").create()
        ids = [str(query.id) for query in session.streams.active if query.name == self._name]
        if len(ids) != 1:
            refuse(f"the session has {len(ids)} active queries named {self._name!r}: the query of this batch is over")
        return ids[0]


def batch_writer(stream: DataFrame, what: str, function: BatchFunction) -> DataStreamWriter:
    """The writer of a query whose batches go to `function`. On Spark Connect the function is pickled when the query
    starts, because only then its name is known. A name that is made here begins with `what`.
    """
    if not is_connect(stream):
        return stream.writeStream.foreachBatch(function.run_batch)
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as ConnectWriter

    class NamedWriter(ConnectWriter):
        """Gives the query a name, if the user does not."""

        _name: str | None = None

        def queryName(self, queryName: str) -> Any:
            """As Spark's."""
            self._name = queryName
            return super().queryName(queryName)

        def start(self, *arguments: Any, **options: Any) -> Any:
            """As Spark's."""
            # start(path, format, outputMode, partitionBy, queryName)
            given = options.get("queryName") or (arguments[4] if len(arguments) > 4 else None) or self._name
            name = given or f"{what} {uuid.uuid4().hex[:12]}"
            session: Any = stream.sparkSession
            self.foreachBatch(function.finding(NamedQuery(session.session_id, name)).run_batch)
            if given is None:
                options["queryName"] = name
            return super().start(*arguments, **options)

    plan: Any = stream
    writer: Any = NamedWriter(plan._plan, plan.sparkSession)
    return writer  # type: ignore[no-any-return]
