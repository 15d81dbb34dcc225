"""`pyspark_rmq.redrive`: sends dead letters that a query chooses back to the group that failed on them.

The engine has the rules, and makes a repetition harmless (`Store.dead_letters`). This module chooses the rows, their
order and the rate, and returns the results as a DataFrame. Data plane: keys and results pass through Parquet files in a
temporary directory, so neither is ever in memory as a whole. The results end in Spark's storage on disk.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from pyspark_rmq.options.option_values import group_name
from pyspark_rmq.options.options import DLQ_PREFIX
from pyspark_rmq.position.position import refuse
from pyspark_rmq.retry.redriven_from import RedrivenFrom, names_of, redriven_from
from rmq_store.arguments import instance

# Rows that are handed to the engine at once: one unit.
_CHUNK_ROWS = 10_000


def redrive(
    df: DataFrame,
    *,
    path: str | None = None,
    options: Mapping[str, str] | None = None,
    group: str,
    dry_run: bool = False,
    limit: int | None = None,
    rate_per_second: float | None = None,
    max_replays: int | None = None,
    to_topic: str | None = None,
    parking_topic: str | None = None,
) -> DataFrame:
    """Send dead letters of `group` to its retry topic again, where only this group sees them. Returns a row for each.

    `df` has rows of `spark.read.format("rmq").option("dlq", group)`, filtered as you like. `queueId`, `queueOffset` and
    `storeTopic` name a message; `msgId`, if the column exists, must be that message's. `df` is computed once. On return
    the messages have been moved, in the order in which they became dead letters. Body, keys, tags and user properties
    stay; `reconsumeTimes` begins at 0. A message is moved once, however often this is called, so repeat a call that was
    interrupted. The dead letter itself stays until retention deletes it.

    Args:
        df: dead letters, not a stream. `df.limit(n)` would count messages that were moved before: use `limit`.
        path: directory of the store; or
        options: those that name a cluster, such as {"nameServer": "ns1:9876"}, and settleTime and sendTimeout.
        group: the consumer group that failed on them.
        dry_run: move nothing, and return what would happen to each message.
        limit: move at most this number of messages. Messages that were moved before do not count, so the same call
            again
            moves the next ones. Rows after the last moved one are left out of the result.
        rate_per_second: move at most this number of messages per second.
        max_replays: how often a message may be redriven. One that died again after that goes to `parking_topic`, or is
            refused if there is none.
        to_topic: send them to this topic instead; then every group that is subscribed to it sees them.
        parking_topic: see `max_replays`.

    Returns:
        DataFrame: queueId, queueOffset, msgId; outcome ("REDRIVEN", "PARKED", "ALREADY_REDRIVEN", "REFUSED", "GONE";
        of a dry run "WOULD_REDRIVE" and "WOULD_PARK"), reason, target, targetQueueId, newQueueOffset,
        newCommitLogOffset. It is a local checkpoint: an action on it moves nothing again.

    Raises:
        UsageError: columns are missing, rows are no dead letters of the group, or arguments contradict each other;
            nothing was moved.
        StoreLockedError, StoreFullError, StoreFailedError: as `Store.append`; messages moved before that stay moved.
        LeaseHeldError, MQBrokerError, MQClientError, SendInDoubtError, RemotingError: as `ClusterDeadLetters.redrive`.
    """
    place, group = redriven_from(path, options), group_name(instance("group", group, str), "group")
    if not isinstance(df, DataFrame):
        refuse(f"redrive: df is a {type(df).__name__}, not a DataFrame")
    if not isinstance(dry_run, bool):
        refuse(f"redrive: dry_run={dry_run!r} is neither True nor False")
    if rate_per_second is not None and not (
        isinstance(rate_per_second, int | float) and not isinstance(rate_per_second, bool) and rate_per_second > 0
    ):
        refuse(f"redrive: rate_per_second={rate_per_second!r} is no rate")
    if limit is not None and (type(limit) is not int or limit < 1):
        refuse(f"redrive: limit={limit!r} is no number of messages")
    columns = _columns(df, names_of(place))
    limits: dict[str, Any] = {"to_topic": to_topic, "max_replays": max_replays, "parking_topic": parking_topic}
    with place.opened() as letters, tempfile.TemporaryDirectory(prefix="pyspark-rmq-redrive-") as work:
        # Arguments that make no sense are refused before anything is computed.
        schema = letters.plan(group, pa.RecordBatch.from_pylist([], place.schema), **limits).schema
        keys, results = Path(work) / "keys", Path(work) / "results.parquet"
        # One task, sorted: the engine reads dead letters in the order in which they are stored.
        df.select(*columns).repartition(1).sortWithinPartitions(*names_of(place)).write.parquet(keys.as_uri())
        row_count = _check(keys, group, names_of(place))
        with (
            _progress(row_count, f"{'looking at' if dry_run else 'redriving'} dead letters of {group}") as advance,
            pq.ParquetWriter(results, schema) as writer,
        ):
            pause_s = 0.0
            left = limit
            for rows, chunk in _chunks(keys, rate_per_second, place):
                if left == 0:
                    break
                if dry_run:
                    answer = letters.plan(group, chunk, limit=left, **limits)
                else:
                    if pause_s:
                        sleep(pause_s)
                    answer = letters.redrive(group, chunk, limit=left, **limits)
                    pause_s = _moved(answer) / rate_per_second if rate_per_second is not None else 0.0
                if left is not None:
                    left -= pc.sum(pc.is_valid(answer.column("target"))).as_py() or 0
                writer.write_batch(_with_ids(answer, chunk.slice(0, answer.num_rows)))
                advance(rows)
        read = df.sparkSession.read.parquet(results.as_uri())
        return read.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)


def _columns(df: DataFrame, names: Sequence[str]) -> list[str]:
    """The columns to read: those that locate a message, the topic that holds it, and its id if the column exists."""
    if df.isStreaming:
        refuse("redrive: a stream has no end; call it in foreachBatch, or read the dead letters with spark.read")
    said_by = "storeTopic" if "storeTopic" in df.columns else "topic"
    if not {*names, said_by} <= set(df.columns):
        refuse(
            f"redrive: keep the columns {', '.join(names)} and storeTopic in the query that chooses the dead letters; "
            f"given: {', '.join(df.columns)}"
        )
    return [*names, said_by, *(["msgId"] if "msgId" in df.columns else [])]


def _batches(keys: Path, rows: int) -> Iterator[pa.RecordBatch]:
    for file in sorted(keys.glob("*.parquet")):
        with pq.ParquetFile(file) as parquet:
            yield from parquet.iter_batches(rows)


def _check(keys: Path, group: str, names: Sequence[str]) -> int:
    """The number of rows. Raises UsageError unless all of them are dead letters of the group."""
    count = 0
    for batch in _batches(keys, _CHUNK_ROWS):
        if any(batch.column(name).null_count for name in names):
            refuse(f"redrive: {' or '.join(names)} is NULL in some row")
        wrong = [topic for topic in pc.unique(batch.column(len(names))).to_pylist() if topic != DLQ_PREFIX + group]
        if wrong:
            refuse(
                f"redrive: rows of {wrong[0]!r} are no dead letters of group {group!r}; read them with "
                f'.option("dlq", "{group}") and keep the column storeTopic'
            )
        count += batch.num_rows
    return count


def _chunks(keys: Path, rate_per_second: float | None, place: RedrivenFrom) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(rows read, chunk): the keys in order, each once, though a join may have made several rows of one message."""
    rows = _CHUNK_ROWS if rate_per_second is None else max(1, int(min(_CHUNK_ROWS, rate_per_second)))
    last: list[object] | None = None
    for batch in _batches(keys, rows):
        columns = [batch.column(name) for name in names_of(place)]
        again = reduce(pc.and_, (pc.equal(column[1:], column[:-1]) for column in columns))
        is_first = last != [column[0].as_py() for column in columns]
        last = [column[-1].as_py() for column in columns]
        first_rows = batch.filter(pa.concat_arrays([pa.array([is_first]), pc.invert(again)]))
        kept = [name for name in place.schema.names if name in first_rows.schema.names]
        yield batch.num_rows, first_rows.select(kept)


def _moved(answer: pa.RecordBatch) -> int:
    return pc.sum(pc.is_in(answer.column("outcome"), pa.array(["REDRIVEN", "PARKED"]))).as_py() or 0


def _with_ids(answer: pa.RecordBatch, chunk: pa.RecordBatch) -> pa.RecordBatch:
    """The answer, in which rows whose messages were not read have their ids, too."""
    if "msgId" not in chunk.schema.names:
        return answer
    ids = pc.coalesce(answer.column("msgId"), chunk.column("msgId"))
    return answer.set_column(answer.schema.get_field_index("msgId"), "msgId", ids)


@contextlib.contextmanager
def _progress(row_count: int, text: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing in a pipe or a notebook."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=row_count)
        yield lambda rows: bar.advance(task, rows)
