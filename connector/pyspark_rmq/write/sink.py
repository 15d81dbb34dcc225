"""`Sink`: the target of the rows of a write. `sink_of` is the one place that chooses it.

                     new messages (rows)                         messages that failed (option sendBack)
    store            `store_sink.StoreRows`                      `store_sink.StoreSendBacks`
    cluster          `cluster_sink.ClusterRows`                  `cluster_sink.ClusterSendBacks`

A store gets the rows of all tasks as one unit, at the end of a write. Tasks of a cluster send their rows by themselves.
The writers of Spark (`writer`) do not know which sink they have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmq.options.options import SinkOptions
from pyspark_rmq.position.position import refuse

if TYPE_CHECKING:
    import pyarrow as pa


class BatchWrite(NamedTuple):
    """One `df.write`. Its id (a UUID) is made on the driver; all tasks have it."""

    write_uuid: str


class MicroBatch(NamedTuple):
    """One try of a batch of a streaming query, as Spark names it in a task."""

    query_id: str
    batch_id: int
    run_id: str


Unit = BatchWrite | MicroBatch
"""What Spark writes at once: all of its rows are stored, or it is an error."""


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """A task's report to the driver: `result` is what `Sink.write_task` returned."""

    unit: Unit
    result: object


class Sink(Protocol):
    """The target of rows. It is made on the driver; tasks and the end of a write have copies, so it is pickled."""

    def write_task(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> object:
        """Take the rows of one task. Called in the task; the result is pickled."""

    def finish(self, reports: Sequence[TaskReport], missing: int, batch_id: int | None) -> None:
        """End a write whose tasks have all succeeded, on the driver. `missing` tasks have not reported. `batch_id` is
        that of a streaming query; None for a batch write. On return the rows are stored as the options say.
        """

    def discard(self, units: Collection[Unit]) -> None:
        """Remove what failed writes have left that nobody reads."""


def transaction_key(options: SinkOptions, application: str) -> str:
    """The name of the numbered writes of an application (txnAppId). Each target counts for itself, as a Delta table
    does. No topic name has a "/" in it.
    """
    return f"{options.topic or ''}/{application}"


def sink_of(options: SinkOptions, schema: StructType, overwrite: str | None) -> Sink:
    """Check a write on the driver, and return its sink. `overwrite` names a mode that would replace rows; None: no such
    mode was asked for.

    Raises:
        UsageError: such a mode, or a schema that the sink does not take. NotAStoreError: see `store_sink`.
    """
    if overwrite is not None and options.send_back is not None:
        refuse("with sendBack messages are added to a retry topic and nothing is replaced; use mode append")
    if overwrite is not None:
        refuse(
            f"{overwrite} is not possible: messages of a topic cannot be replaced, other topics share their log and "
            "consumers have offsets in it; use mode append, or another topic"
        )
    if options.cluster is not None:
        from pyspark_rmq.write import cluster_sink

        return (cluster_sink.ClusterRows if options.send_back is None else cluster_sink.ClusterSendBacks)(
            options, schema
        )
    from pyspark_rmq.write import store_sink

    return (store_sink.StoreRows if options.send_back is None else store_sink.StoreSendBacks)(options, schema)
