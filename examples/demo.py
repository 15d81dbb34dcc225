"""A demo on real data: read a RocketMQ broker's store with Spark, consume it with a group, write a store.

Run it with `make demo`, or with `python examples/demo.py` where `pip install .[spark]` was done. It takes about a
minute, writes to a temporary directory only, and removes that at the end. Where Maven and a JDK are, a Java client has
a part too, and its jars (70 MB) stay in `build`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).resolve().parent
ARCHIVE = HERE / "data" / "rocketmq-5.5.0-store.tar.xz"
CHECK_HOST = HERE.parent / "tools" / "check_host.sh"

try:
    import pyspark  # noqa: F401
    from demo_output import console, heading, print_rows, rmq, say, show
    from java_client import JavaProducer, MissingJavaError, jars, served
    from rich.panel import Panel

    import pyspark_rmq  # noqa: F401
    import rmq_store  # noqa: F401
except ImportError as error:
    sys.exit(f"{error.name} is not installed here: run `make demo`, or `pip install .[spark]` first.")

Count = Callable[[int], None]
LIVE_ORDERS = 60
LIVE_PAUSE_MS = 100

ORDER = "orderId string, customer struct<name string, city string>, items array<struct<qty int, price double>>"


# -- The demo prints the source of each of these functions, and then runs it. Narrow, for 80 columns. ------------------


def read_orders(spark: SparkSession, store: str) -> DataFrame:
    return (
        spark.read.format("rmq")
        .option("path", store)
        .option("subscribe", "OrderTopic")
        .load()
    )  # fmt: skip


def orders_by_city(spark: SparkSession, orders: DataFrame) -> DataFrame:
    orders.createOrReplaceTempView("messages")
    return spark.sql(f"""
        WITH parsed AS (
            SELECT tags, from_json(CAST(body AS STRING), '{ORDER}') AS o
            FROM messages
        )
        SELECT o.customer.city,
               count(*) AS orders,
               count_if(tags = 'TagA') AS with_tag_TagA,
               sum(aggregate(o.items, 0D, (t, i) -> t + i.qty * i.price))
                   AS turnover
        FROM parsed GROUP BY ALL ORDER BY orders DESC""")


def dead_letters(spark: SparkSession, store: str) -> DataFrame:
    (
        spark.read.format("rmq")
        .option("path", store)
        .option("subscribePattern", "%DLQ%.*")
        .load()
        .createOrReplaceTempView("dead")
    )
    return spark.sql("""
        SELECT topic, properties['RETRY_TOPIC'] AS came_from,
               reconsumeTimes AS failures, count(*) AS messages
        FROM dead GROUP BY ALL ORDER BY messages DESC""")


def enrich(spark: SparkSession, store: str, own: str, checkpoint: str) -> Any:
    messages = (
        spark.readStream.format("rmq")
        .option("path", store)
        .option("subscribe", "OrderTopic")
        .option("group", "cg_partial")
        .load()
    )
    order = f"from_json(CAST(body AS STRING), '{ORDER}') AS o"
    orders = messages.selectExpr("keys", order).where("o.orderId IS NOT NULL")
    enriched = orders.selectExpr(
        "keys",
        "'enriched' AS tags",
        # Orders of one city stay in one queue, in their order.
        "o.customer.city AS shardingKey",
        """to_json(struct(
               o.orderId, o.customer.city, size(o.items) AS lines,
               aggregate(o.items, 0D, (t, i) -> t + i.qty * i.price) AS total
           )) AS body""",
    )
    return (
        enriched.writeStream.format("rmq")
        .option("path", own)
        .option("topic", "EnrichedOrders")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def read_enriched(spark: SparkSession, own: str) -> DataFrame:
    return (
        spark.read.format("rmq")
        .option("path", own)
        .option("subscribe", "EnrichedOrders")
        .load()
    )  # fmt: skip


def read_live(spark: SparkSession, own: str, checkpoint: str, count: Count) -> Any:
    return (
        spark.readStream.format("rmq")
        .option("path", own)
        .option("subscribe", "LiveOrders")
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(lambda orders, batch: count(orders.count()))
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )


# -- The steps ---------------------------------------------------------------------------------------------------------


def tell(spark: SparkSession, work: Path) -> None:
    """Run all steps. `work` holds the broker's store, a working copy of it, and later a store of our own."""
    store, copy, own = (str(work / name) for name in ("broker-store", "working-copy", "own-store"))
    before = fingerprint(Path(store))

    heading("1. Batch: the broker's messages are a table")
    show(read_orders)
    orders = read_orders(spark, store)
    with console.status("Spark reads the store"):
        count = orders.count()
        print_rows(orders.select("queueId", "queueOffset", "tags", "storeTimestamp", "body"), limit=4)
    say(
        f"{count} messages of OrderTopic, in {len(orders.columns)} columns that are named as in RocketMQ. Most bodies "
        "are JSON, so SQL can query them (ORDER is the schema of that JSON):"
    )
    show(orders_by_city)
    with console.status("Spark runs the query"):
        print_rows(orders_by_city(spark, orders))
    say(
        "The row without a city counts the bodies that are plain text. When a group has failed on a message too often, "
        "the broker moves the message to a dead-letter topic. That is a table too:"
    )
    show(dead_letters)
    with console.status("Spark runs the query"):
        print_rows(dead_letters(spark, store))
    changed = fingerprint(Path(store)) ^ before
    say(f"Files of the broker's store that these queries changed: {len(changed)}.")

    heading("2. Stream: a consumer group continues where Java stopped")
    say(
        "Programs of one consumer group share their read position. A Java program read a part of OrderTopic in the "
        "group cg_partial, and stopped. The offsets are in the store (from here on, a working copy):"
    )
    rmq(work, "groups", "cg_partial", "--store", "working-copy")
    say("A Spark stream takes over. It writes the enriched orders to a new topic, in a store of our own:")
    show(enrich)
    first_run = run_to_the_end(lambda: enrich(spark, copy, own, str(work / "checkpoint-1")))
    say(f"It has read {first_run} messages, and committed the group's offsets when its output was stored:")
    rmq(work, "groups", "cg_partial", "--store", "working-copy")

    heading("3. The same query again reads nothing")
    say("This is a new query with an empty checkpoint, so only the group's offsets determine its start.")
    second_run = run_to_the_end(lambda: enrich(spark, copy, own, str(work / "checkpoint-2")))
    say(f"Messages read: {second_run}.")

    heading("4. The store that we wrote")
    show(read_enriched)
    enriched = read_enriched(spark, own)
    with console.status("Spark reads it back"):
        count = enriched.count()
        print_rows(enriched.selectExpr("queueId", "queueOffset", "keys", "CAST(body AS STRING)"), limit=4)
    say(f"{count} enriched orders. If Spark repeats a batch of the stream after a crash, nothing is added twice.")
    say("The same on the command line. The files have RocketMQ's format, so a broker can open them.")
    rmq(work, "topics", "--store", "own-store")
    rmq(work, "verify", "--store", "own-store")

    heading("5. A Java client sends, and Spark reads while it sends")
    try:
        with console.status("Maven fetches RocketMQ's Java client, once"):
            jars()
    except MissingJavaError as error:
        say(f"This part is left out: {error}.")
    else:
        read_while_java_sends(spark, work, own)


def read_while_java_sends(spark: SparkSession, work: Path, own: str) -> None:
    """Serve our own store, let RocketMQ's Java client send to it, and read the same directory with Spark."""
    say(
        "`rmq broker run own-store --listen 127.0.0.1:0` serves the store to RocketMQ's own clients. A Java program "
        f"sends {LIVE_ORDERS} orders to it. Spark reads the same directory, and no copy of it:"
    )
    show(read_live)
    with served(own, work) as address, JavaProducer(address, "LiveOrders", LIVE_ORDERS, LIVE_PAUSE_MS, work) as java:
        with console.status("the Java client starts"):
            java.wait_for_the_first()
        read = 0

        def count(orders: int) -> None:
            nonlocal read
            sent, read = len(java.statuses), read + orders
            say(f"  Sent by Java: {sent:2}. Read by Spark: {read:2}.")

        query = read_live(spark, own, str(work / "checkpoint-3"), count)
        try:
            query.processAllAvailable()
            java.go_on()
            with console.status("Java sends"):
                java.wait()
            query.processAllAvailable()
        finally:
            query.stop()
    say(f"Statuses that Java got: {', '.join(sorted(set(java.statuses)))}. Orders that Spark has read: {read}.")
    rmq(work, "verify", "--store", "own-store")


def run_to_the_end(start: Callable[[], Any]) -> int:
    """Run a query until it has read all messages; return the number of rows that it read."""
    with console.status("the stream runs"):
        query = start()
        query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def introduce() -> None:
    """Explain the terms to a reader who knows none of them."""
    console.print(
        Panel(
            "[b]Apache RocketMQ[/b] is a message broker: programs send messages to topics, others read them, and the "
            "broker keeps all messages in a directory, its [i]store[/i]: one log of all messages, and for each queue "
            "of a topic a list of positions in the log.\n\n"
            "[b]pyspark-rmq[/b] reads and writes such a directory from Python and from Spark. No broker runs here. "
            "The store below was written by a real broker (5.5.0), and comes with this project.",
            title="pyspark-rmq",
            width=min(100, console.width),
        )
    )


def fingerprint(root: Path) -> set[tuple[str, int, int]]:
    """(path, size, time of the last change in ns) of every file."""
    states = ((path, path.stat()) for path in root.rglob("*"))
    return {(str(path), state.st_size, state.st_mtime_ns) for path, state in states}


# -- Set-up and clean-up -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet_spark(work: Path) -> Iterator[SparkSession]:
    """A small Spark session that writes its log to a file below `work` and nothing to the terminal."""
    from pyspark.sql import SparkSession

    # Spark's workers use the `python3` of PATH unless told otherwise.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Spark warns about versions of packages that are not used here, and logs the interruption by Ctrl-C.
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    builder = SparkSession.builder.master("local[2]").appName("pyspark-rmq demo")
    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with standard_error_to(work / "spark.log"), console.status("Spark starts (a JVM and two Python workers)"):
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def standard_error_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of processes started meanwhile (here the JVM) to a file, for their whole life."""
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def unpack(work: Path) -> None:
    """Two copies of the broker's store: one to read, and one to consume."""
    for name in ("broker-store", "working-copy"):
        with tarfile.open(ARCHIVE) as tar:
            # Absent before 3.11.4.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(work)
        (work / "store").rename(work / name)


def main() -> int:
    """Run the demo; the exit code."""
    if subprocess.run(["sh", str(CHECK_HOST), "java"], check=False).returncode:
        return 1
    work = Path(tempfile.mkdtemp(prefix="pyspark-rmq-demo-"))
    introduce()
    try:
        unpack(work)
        with quiet_spark(work) as spark:
            tell(spark, work)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except Exception as error:
        # Spark's message may hold stack traces of hundreds of lines. The Python error is the last line of one.
        lines = str(error).splitlines() or [""]
        causes = [line for line in lines if re.match(r"[\w.]+Error: ", line)]
        reason = causes[-1] if causes else f"{type(error).__name__}: {lines[0]}"
        console.print(f"\nThe demo failed: {reason}", style="red", markup=False)
        log = Path(tempfile.gettempdir()) / "pyspark-rmq-demo.log"
        if (work / "spark.log").exists():
            shutil.copyfile(work / "spark.log", log)
            console.print(f"Spark's log is in {log}.", markup=False)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say("\nThe demo has ended, and its temporary directory is deleted. README.md lists the guarantees and the limits.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
