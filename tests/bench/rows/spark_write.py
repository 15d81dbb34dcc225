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
    "message (enabledAppendPropCRC=false, as RocketMQ's own default is), and Spark's Unix domain sockets. "
)

_BATCH = f"`spark.range` in {PARTITIONS} partitions"
_STREAM = f"`rate-micro-batch` in {PARTITIONS} partitions, AvailableNow, one trigger; from the query's start to its end"
_SETTINGS = (
    "local[2]; rows made by {source}, which costs both sides the same, little; keys differ, the other columns come "
    f"from literals, two properties. A new store of {PARTITIONS} queues for each measurement, removed outside of it. "
    "Rows: " + " and ".join(f"{rows:,} of {size:,} B" for size, rows in ROWS.items()) + ". "
    "{flushed}"
)
_FLUSHED = {
    "ASYNC_FLUSH": (
        "In the page cache when the write is over; the flush, and closing the store, begin at once and go on behind "
        "it, outside of the measurement."
    ),
    "SYNC_FLUSH": "On the disk, and the store closed, when the write is over.",
}

_BARE_SETTINGS = (
    f"local[2]; rows from {_BATCH} as in the lines above. Tasks write as many bytes as ours stage, always the same "
    "ones; the commit copies them into preallocated files in two threads. Nothing is encoded, has a checksum, a queue "
    "or an index, or is flushed. A new directory for each measurement, removed outside of it."
)
_BARE_LIMIT = (
    "The kernel: each byte is written into the page cache twice, at first by tasks that share both processors with the "
    "JVM, then while no task runs."
)

# Found by timing the tasks and the commit inside of Spark's processes, with perf, with writes whose commit does
# nothing, and with loops that copy and fill in as many bytes.
_LIMIT = (
    "The null sink drops what tasks give it; ours writes it twice: tasks stage encoded rows, and then one process "
    "appends them while no task runs. What that takes by itself is said by the two lines of the ceiling, which at 1 "
    "KiB lies below the target of the others; with staged files renamed, instead of copied, it stood at 0.86 and "
    "0.81. Phase by phase, with two columns (medians of 13 runs, ms): all but the commit 863 beside the null sink's "
    "666 at 100 B, 962 beside 765 at 1 KiB; the commit 365 and 333, of which the append itself nine tenths, the "
    "rest checking the staged files and opening the store. In tasks a third of what is added is encoding with both "
    "checksums, a third writing into the page cache, the rest numpy and Arrow for batches of 10,000 rows. In the "
    "append copying, filling in offsets and writing are a half of the processor time, queues and index a third. "
    "Task files that become segments of the log were tried in a loop: to fill in offsets where they lie takes 0.16 "
    "s for 480 MB in a map, 0.08 with reads and writes, to copy them 0.11. Queue entries and their numbers made by "
    "the extension gain a twentieth of an append, records written by it a tenth, and neither was seen in these "
    "lines; both were left out. So were hints to the disk for queues and index, slots mapped in one go, and new "
    "index entries looked at by regions of slots. Larger batches in tasks (20,000 rows) gain a tenth of the "
    "encoding at 100 B and nothing at 50,000. Written at places that are multiples of the kernel's pages, or "
    "encoded in parts that stay in the processor's cache, rows of 1 KiB gain a fiftieth. What else the machine does "
    "is seen in these lines most: in five runs of one day that of the batch write of five columns at 100 B stood at "
    "0.60, 0.68, 0.71, 0.71 and 0.73, beside 700,000, 640,000, 620,000, 710,000 and 950,000 rows/s of the null "
    "sink. Since then slots of the index are written once, blocks of staged files are reserved, and short "
    "properties are copied without a call: in one session with the version before, both in turn, tasks took 0.83 to "
    "0.89 of the processor time, the commit 0.86 to 0.92, and the write 0.95 to 0.98 of the time (three runs of 15 "
    "to 18). The hours since were slow ones: 0.62 and 0.68 beside 525,000 and 544,000 rows/s. With batches of tasks "
    "encoded in one pass, and offsets filled in with what frames of one size have in common computed once, tasks "
    "take 0.93 of the processor time, the commit 0.94 and the write 0.96 of the time (21 times each, in turn). "
    "Without gain: staged memory given back behind the commit (the log's pages then come from elsewhere), staged "
    "files' checksums taken while frames are copied, and larger writes: in Spark 1 MiB at a time cost tasks a "
    "quarter more than 512 KiB. On a machine whose null sink wrote 0.97 to 1.2 million rows/s the line stood at "
    "0.69, 0.66, 0.66 and 0.70."
)
# By hand, two sessions of 17 rounds in any order, all with the sockets; sessions with and without these in turn.
_TUNED_LIMIT = (
    "As in the lines above. Without the index ours gains a thirtieth, without the second checksum a twentieth more. "
    "The sockets let rows reach Python sooner, the null sink's as well as ours: both write about a tenth more rows/s."
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
                    _SETTINGS.format(source=source, flushed=_FLUSHED["ASYNC_FLUSH"]),
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
            TUNED + _SETTINGS.format(source=_BATCH, flushed=_FLUSHED["ASYNC_FLUSH"]),
            contextmanager(_writing("batch", COLUMNS["5"], body_bytes, TUNED_STORE, TUNED_SPARK)),
            limit=_TUNED_LIMIT,
        )
    for body_bytes in BODY_BYTES:
        yield Case(
            f"write-bare-{body_bytes}",
            f"no write of ours, but its ceiling: the bytes of ({COLUMNS['2']}), staged and copied by a commit",
            "write",
            body_bytes,
            "null sink, same columns",
            "rows/s",
            None,
            _BARE_SETTINGS,
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
        _SETTINGS.format(source=_BATCH, flushed=_FLUSHED["SYNC_FLUSH"]),
        contextmanager(_writing("batch", COLUMNS["5"], 1024, {"flush_disk_type": "SYNC_FLUSH"})),
        limit=_LIMIT,
    )


CASES = tuple(_cases())
