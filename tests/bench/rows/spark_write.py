"""Our sink beside the null sink: batch and stream, exactly once, five columns and two; once with SYNC_FLUSH."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bench.case import Case, Pair, Target
from bench.messages import BODY_BYTES
from bench.null_source import PARTITIONS
from bench.scratch import SPARK_SETTINGS, Scratch
from bench.spark_input import TOPIC, rows_per_second, run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LET_GO_S = 60
ROWS = {100: 1_000_000, 1024: 400_000}
FEW = 10_000
COLUMNS = {"5": "topic, body, tags, keys, properties", "2": "topic, body"}

# docs/operations.md, "Faster writes".
TUNED_SPARK = SPARK_SETTINGS | {"spark.python.unix.domain.socket.enabled": "true"}
TUNED_STORE = {"message_index_enable": False, "enabled_append_prop_crc": False}
TUNED = (
    "Ours is tuned: a store without an index (messageIndexEnable=false) and without the second checksum of each "
    "message (enabledAppendPropCRC=false, as RocketMQ's own default is), and Spark's Unix domain sockets."
)

_BATCH = f"Rows made by `spark.range` in {PARTITIONS} partitions, which costs both sides the same, little."
_STREAM = (
    f"Rows made by `rate-micro-batch` in {PARTITIONS} partitions, AvailableNow, one trigger; from the query's start to "
    "its end."
)
_COUNTS = "Rows: " + " and ".join(f"{rows:,} of {size:,} B" for size, rows in ROWS.items()) + "."
_SETTINGS = (
    f"local[2]. Keys differ; the other columns come from literals; two properties. A new store of {PARTITIONS} "
    "queues for each measurement, removed outside of it."
)
_FLUSHED = {
    "ASYNC_FLUSH": (
        "The rows are in the page cache when the write returns. The flush and the closing of the store begin at once "
        "and end later, outside of the measurement."
    ),
    "SYNC_FLUSH": "The rows are on the disk and the store is closed when the write returns.",
}

_BARE_SETTINGS = (
    "The ceiling of a write. Tasks write as many bytes as ours stage, always the same ones; the commit copies "
    "them into preallocated files in two threads. Nothing is encoded or flushed; there is no checksum, queue or "
    "index."
)
_BARE_LIMIT = (
    "The kernel: each byte is written into the page cache twice. First tasks write it while they share both "
    "processors with the JVM; then the commit copies it while no task runs."
)

# Found by timing the tasks and the commit inside of Spark's processes, with perf, with writes whose commit does
# nothing, and with loops that copy and fill in as many bytes.
_LIMIT = (
    "Each byte is written twice: tasks stage encoded rows, then one process appends them while no task runs. With "
    "two columns the commit took 365 ms at 100 B and 333 ms at 1 KiB; the append is nine tenths of it. The two "
    "rows of the ceiling show the cost of staging and copying alone."
)
# By hand, two sessions of 17 rounds in any order, all with the sockets; sessions with and without these in turn.
_TUNED_LIMIT = (
    "As without tuning. Without the index ours gains a thirtieth, without the second checksum a twentieth more. "
    "The sockets bring rows to Python sooner, for both sides: each writes about a tenth more rows/s."
)


def columns(frame: DataFrame, number: str, names: str, body_bytes: int) -> DataFrame:
    """The columns `names` for rows that are numbered in the column `number`."""
    body = "".join(f"{7 * each % 251:02x}" for each in range(body_bytes))
    expressions = {
        "topic": f"'{TOPIC}'",
        "body": f"X'{body}'",
        "tags": f"element_at(array('TagA', 'TagB', 'TagC', 'TagD', 'TagE'), cast({number} % 5 as int) + 1)",
        "keys": f"concat('ORD-', {number})",
        "properties": "map('region', 'eu-west', 'priority', '7')",
    }
    return frame.selectExpr(*(f"{expressions[name]} as {name}" for name in names.split(", ")))


def _remove(path: Path) -> None:
    """Remove a store when nobody has it open any more: the commit of a stream keeps it for a moment."""
    from rmq_store.files.locks.lock import OfdLock

    lock, end_s = OfdLock(path / "lock"), time.monotonic() + LET_GO_S
    while (holder := lock.who()).kind != "free":
        if time.monotonic() > end_s:
            raise TimeoutError(f"{path}: process {holder.pid} has it open for {LET_GO_S} s")
        time.sleep(0.05)
    shutil.rmtree(path)


def batch_run(spark: SparkSession, rows: int, names: str, body_bytes: int) -> Callable[[str, dict[str, str]], None]:
    frame = columns(spark.range(rows, numPartitions=PARTITIONS), "id", names, body_bytes)
    return lambda sink, options: frame.write.format(sink).options(**options).mode("append").save()


def _stream_run(
    spark: SparkSession, rows: int, names: str, body_bytes: int, directory: Path
) -> Callable[[str, dict[str, str]], None]:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    frame = columns(source.option("numPartitions", PARTITIONS).load(), "value", names, body_bytes)

    def run(sink: str, options: dict[str, str]) -> None:
        run_stream(frame, directory, sink, **options)

    return run


def our_rows_per_second(
    scratch: Scratch, rows: int, run: Callable[[str, dict[str, str]], None], store_settings: Mapping[str, Any]
) -> float:
    """Write to a new store, see that all rows are there, and remove it."""
    from rmq_store import Store, StoreConfig

    path = scratch.directory / uuid.uuid4().hex
    with Store.open(path, create=True, config=StoreConfig(**store_settings)) as store:
        store.create_topic(TOPIC, queue_count=PARTITIONS)
    figure = rows_per_second(rows, lambda: run("rmq", {"path": str(path)}))
    with Store.open(path, read_only=True) as store:
        assert sum(limits.max_offset for limits in store.queue_ranges(TOPIC).values()) == rows
    _remove(path)
    return figure


def _writing(
    mode: str,
    names: str,
    body_bytes: int,
    store_settings: Mapping[str, Any] = MappingProxyType({}),
    spark_settings: Mapping[str, str] = SPARK_SETTINGS,
) -> Callable[[Scratch], Iterator[Pair]]:
    def prepare(scratch: Scratch) -> Iterator[Pair]:
        spark, rows = scratch.spark(spark_settings), scratch.rows(ROWS[body_bytes])
        if mode == "batch":
            run = batch_run(spark, rows, names, body_bytes)
        else:
            run = _stream_run(spark, rows, names, body_bytes, scratch.directory)
        # A staged copy and the log.
        scratch.touch_memory(2 * rows * (body_bytes + 300))
        yield Pair(
            lambda: our_rows_per_second(scratch, rows, run, store_settings),
            lambda: rows_per_second(rows, lambda: run("null", {})),
        )

    return prepare


def _bare(body_bytes: int) -> Callable[[Scratch], Iterator[Pair]]:
    def prepare(scratch: Scratch) -> Iterator[Pair]:
        rows = scratch.rows(ROWS[body_bytes])
        row_bytes = _row_bytes(scratch, COLUMNS["2"], body_bytes)
        run = batch_run(scratch.spark(), rows, COLUMNS["2"], body_bytes)
        scratch.touch_memory(2 * rows * row_bytes)

        def bare() -> float:
            path = scratch.directory / uuid.uuid4().hex
            path.mkdir()
            figure = rows_per_second(rows, lambda: run("bare", {"path": str(path), "rowBytes": str(row_bytes)}))
            assert sum(file.stat().st_size for file in path.iterdir()) >= rows * row_bytes
            shutil.rmtree(path)
            return figure

        yield Pair(bare, lambda: rows_per_second(rows, lambda: run("null", {})))

    return prepare


def _row_bytes(scratch: Scratch, names: str, body_bytes: int) -> int:
    """What a row takes in the log."""
    from rmq_store import Store

    path = scratch.directory / "few"
    with Store.open(path, create=True) as store:
        store.create_topic(TOPIC, queue_count=PARTITIONS)
    batch_run(scratch.spark(), FEW, names, body_bytes)("rmq", {"path": str(path)})
    with Store.open(path, read_only=True) as store:
        start, end = store.log_range()
    _remove(path)
    return (end - start) // FEW


def _cases() -> Iterator[Case]:
    for count, names in COLUMNS.items():
        for body_bytes in BODY_BYTES:
            for mode, source in (("batch", _BATCH), ("stream", _STREAM)):
                yield Case(
                    f"write-{mode}-{count}-columns-{body_bytes}",
                    f"{mode} write, exactly once, ({names})",
                    "write",
                    body_bytes,
                    "null sink, same columns",
                    "rows/s",
                    Target(0.75, floor=0.55),
                    (_SETTINGS, _COUNTS, source, _FLUSHED["ASYNC_FLUSH"]),
                    contextmanager(_writing(mode, names, body_bytes)),
                    limit=_LIMIT,
                )
    for body_bytes in BODY_BYTES:
        yield Case(
            f"write-tuned-5-columns-{body_bytes}",
            f"batch write, exactly once, tuned, ({COLUMNS['5']})",
            "write",
            body_bytes,
            "null sink, same columns",
            "rows/s",
            Target(0.75, floor=0.55),
            (TUNED, _SETTINGS, _COUNTS, _BATCH, _FLUSHED["ASYNC_FLUSH"]),
            contextmanager(_writing("batch", COLUMNS["5"], body_bytes, TUNED_STORE, TUNED_SPARK)),
            limit=_TUNED_LIMIT,
        )
    for body_bytes in BODY_BYTES:
        yield Case(
            f"write-bare-{body_bytes}",
            f"ceiling of a write: the bytes of ({COLUMNS['2']}), staged and copied, nothing encoded",
            "write",
            body_bytes,
            "null sink, same columns",
            "rows/s",
            None,
            (_BARE_SETTINGS, _COUNTS, _BATCH),
            contextmanager(_bare(body_bytes)),
            limit=_BARE_LIMIT,
        )
    yield Case(
        "write-batch-sync-flush-1024",
        f"batch write with SYNC_FLUSH, exactly once, ({COLUMNS['5']})",
        "write",
        1024,
        "null sink, same columns",
        "rows/s",
        None,
        (_SETTINGS, _COUNTS, _BATCH, _FLUSHED["SYNC_FLUSH"]),
        contextmanager(_writing("batch", COLUMNS["5"], 1024, {"flush_disk_type": "SYNC_FLUSH"})),
        limit=_LIMIT,
    )


CASES = tuple(_cases())
