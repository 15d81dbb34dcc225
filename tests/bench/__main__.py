"""Store, source and sink at 100 B and 1 KiB bodies, beside Spark's null source and sink, in one run.

make bench                        a few minutes
RMQ_BENCH_ROWS=200000 make bench  quick look
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.messages import BODY_BYTES, batch
from rmq_store import MESSAGE_SCHEMA, Message, Store

ROWS = int(os.environ.get("RMQ_BENCH_ROWS", "1000000"))
REPEATS = 3
QUEUES = 4
PARTITIONS = 4
_CHUNK = 100_000


def timed(run: Callable[[], object]) -> float:
    """Median of REPEATS after one warm-up, in seconds."""
    run()
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def touch_memory(directory: Path, size_bytes: int) -> None:
    """Write a file and remove it again, so that the page cache comes from memory that was used before.

    The first touch of a page on a virtual machine can take ten times as long as any later one; without this, whatever
    writes is measured by that alone, and the null sink, which writes nothing, is not.
    """
    path = directory / "touch"
    block = bytes(8 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(size_bytes // len(block)):
            file.write(block)
    path.unlink()


class Report:
    """Rows of the printed table."""

    def __init__(self) -> None:
        self.table = Table("what", "body B", "rows/s", "body MB/s", "of yardstick")

    def add(self, what: str, rows: int, body_bytes: int, seconds: float, yardstick_s: float | None = None) -> None:
        ratio = "" if yardstick_s is None else f"{yardstick_s / seconds:.2f}"
        rate = rows / seconds
        self.table.add_row(what, str(body_bytes), f"{rate:,.0f}", f"{rate * body_bytes / 1e6:,.1f}", ratio)


def bench_store(report: Report, root: Path, body_bytes: int) -> None:
    """Append and read without Spark, one process, one thread."""
    chunk = batch(_CHUNK, body_bytes)
    with Store.open(root, create=True) as store:
        store.create_topic("Bench", queue_count=QUEUES)

        def append() -> None:
            for _ in range(ROWS // _CHUNK):
                store.append(chunk, "Bench")

        report.add("store append", ROWS, body_bytes, timed(append))
        ranges = store.queue_ranges("Bench")
        share = ROWS // QUEUES

        def read(columns: list[str]) -> None:
            for queue_id in ranges:
                for _ in store.read("Bench", queue_id, 0, share, columns=columns):
                    pass

        report.add(
            "store read, all columns", share * QUEUES, body_bytes, timed(lambda: read(list(MESSAGE_SCHEMA.names)))
        )
        report.add("store read, body", share * QUEUES, body_bytes, timed(lambda: read(["body"])))
        message = Message("Bench", bytes(body_bytes), tags="TagA", keys="ORD-1")

        def send() -> None:
            for _ in range(5000):
                store.send(message)

        report.add("store send, one by one", 5000, body_bytes, timed(send))


def bench_delivery(report: Report, root: Path, body_bytes: int) -> None:
    """Delayed messages that are due, put again: beside a plain append of the same messages to the same store."""
    now_ms = int(time.time() * 1000)
    plain = batch(_CHUNK, body_bytes)
    delayed = plain.append_column("delayLevel", pa.array(np.ones(_CHUNK, np.int32)))
    seconds: dict[str, list[float]] = {"append": [], "deliver": []}
    with Store.open(root, create=True, clock=lambda: now_ms) as store:
        store.create_topic("Bench", queue_count=QUEUES)
        for _ in range(REPEATS + 1):
            begin = time.perf_counter()
            for _ in range(ROWS // _CHUNK):
                store.append(plain, "Bench")
            seconds["append"].append(time.perf_counter() - begin)
            for _ in range(ROWS // _CHUNK):
                store.append(delayed, "Bench")
            now_ms += 1000
            begin = time.perf_counter()
            delivered = store.schedule.deliver_due().delivered
            seconds["deliver"].append(time.perf_counter() - begin)
            if delivered != ROWS // _CHUNK * _CHUNK:
                raise AssertionError(f"{delivered} messages were delivered")
    # Without the warm-up, as `timed` does it.
    yardstick, taken = (statistics.median(seconds[name][1:]) for name in ("append", "deliver"))
    report.add("store append, for comparison", ROWS, body_bytes, yardstick)
    report.add("store delivery of due messages", ROWS, body_bytes, taken, yardstick)


def bench_spark(report: Report, root: Path, body_bytes: int) -> None:
    """Source and sink through Spark, each beside the null one with the same columns."""
    spark = _session()
    null = {"rows": ROWS, "partitions": PARTITIONS, "bodyBytes": body_bytes}

    def consume(format_name: str, options: dict[str, object], columns: str | None) -> float:
        reader = spark.read.format(format_name).options(**options)
        if columns is not None:
            reader = reader.schema(columns)
        frame = reader.load()
        return timed(lambda: frame.write.format("noop").mode("overwrite").save())

    source = root / "source"
    chunk = batch(_CHUNK, body_bytes)
    with Store.open(source, create=True) as store:
        store.create_topic("Bench", queue_count=QUEUES)
        for _ in range(ROWS // _CHUNK):
            store.append(chunk, "Bench")
    ours = {"path": str(source), "subscribe": "Bench"}
    narrow = "topic string, queueId int, queueOffset bigint, body binary, storeTimestamp timestamp"
    for label, columns in (("all columns", None), ("5 columns", narrow)):
        yardstick = consume("null_rmq", null, columns)
        report.add(f"Spark null source, {label}", ROWS, body_bytes, yardstick)
        report.add(f"Spark rmq source, {label}", ROWS, body_bytes, consume("rmq", ours, columns), yardstick)

    for label, wanted in (
        ("topic, body", ["topic", "body"]),
        ("5 columns", ["topic", "body", "tags", "keys", "properties"]),
    ):
        frame = spark.read.format("null_rmq").options(**null).load().select(*wanted)

        def write(format_name: str, **options: object) -> float:
            return timed(lambda: frame.write.format(format_name).options(**options).mode("append").save())  # noqa: B023

        yardstick = write("null_rmq", **null)
        report.add(f"Spark null sink, {label}", ROWS, body_bytes, yardstick)
        sink = root / f"sink-{len(wanted)}"
        with Store.open(sink, create=True) as store:
            store.create_topic("Bench", queue_count=QUEUES)
        report.add(f"Spark rmq sink, {label}", ROWS, body_bytes, write("rmq", path=str(sink)), yardstick)
        shutil.rmtree(sink)


def _session():  # type: ignore[no-untyped-def]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    from pyspark.sql import SparkSession

    from bench.null_source import NullSource

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(NullSource)
    return spark


def main() -> None:
    """Measure everything and print one table."""
    report = Report()
    console = Console()
    for body_bytes in BODY_BYTES:
        for bench in (bench_store, bench_delivery, bench_spark):
            with tempfile.TemporaryDirectory(prefix="rmq-bench-") as directory:
                # What one of the cases writes at most: log and staged files, warm-up and repeats.
                written = ROWS * (body_bytes + 300) * (REPEATS + 1) * 3
                free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
                touch_memory(Path(directory), min(written, free // 2))
                console.print(f"{bench.__name__}, {body_bytes} B, {ROWS:,} rows ...", highlight=False)
                bench(report, Path(directory) / "store", body_bytes)
    console.print(report.table)


if __name__ == "__main__":
    main()
