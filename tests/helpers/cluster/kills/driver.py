"""The program that is killed: it writes each file of lines that comes as a batch of its own, again after a restart.

    python -m helpers.cluster.kills.driver '{"query": "shuffle", "topic": "T", "has_timers": false, "sink": {...}}'

Files are `in/<batch>.txt` below RMQ_KILLS; a line is the body of a row. A stream has its checkpoint there; batch writes
note a version in `done` when they are through, as a scheduler of jobs does.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.cluster.kills.source import KilledSource, shared

FAILURES_MAX = 30
BATCHES_OF_A_REQUEST = 3
ROWS_OF_A_BATCH = 40


def session() -> Any:
    from pyspark.sql import SparkSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = (
            SparkSession.builder.master("local[2,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.sql.files.maxPartitionBytes", "400000")
            .config("spark.sql.files.openCostInBytes", "1000")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.warehouse.dir", str(shared() / "warehouse"))
            .getOrCreate()
        )
    spark.dataSource.register(KilledSource)
    return spark


def rows_of(lines: Any, query: str, topic: str, has_timers: bool) -> Any:
    """Two partitions behind a shuffle, in another order each time; the columns that the query asks for. A row's time of
    delivery is that of its file and ten seconds: another attempt asks for the same one.
    """
    from pyspark_rmq.query.foreach_batch import map_in_arrow

    columns = ["value as body"]
    schema = "body string"
    if query == "topics by column":
        columns.append(f"concat('{topic}-', cast(abs(hash(value)) % 2 as string)) as topic")
        schema += ", topic string"
    if query == "delayed rows":
        columns.append("case when abs(hash(value)) % 40 = 0 then 1 end as delayLevel")
        schema += ", delayLevel int"
    if query == "delayed rows" and has_timers:
        lines = lines.selectExpr("value", "_metadata.file_modification_time as written")
        columns.append("case when abs(hash(value)) % 40 = 1 then written + interval 10 seconds end as deliverTimestamp")
        schema += ", deliverTimestamp timestamp"
    return map_in_arrow(lines.repartition(2, "value").selectExpr(*columns), in_any_order, schema)


def in_any_order(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of a partition in an order that is another one in each attempt, a few in each batch."""
    import numpy as np
    import pyarrow as pa

    given = list(batches)
    if given:
        table = pa.Table.from_batches(given)
        order = np.random.default_rng().permutation(len(table))
        yield from table.take(order).combine_chunks().to_batches(ROWS_OF_A_BATCH)


def write_batch(rows: Any, batch: int, options: dict[str, str]) -> None:
    writer = rows.write.format("rmq_killed").options(**options)
    writer.option("txnAppId", "kills").option("txnVersion", batch).mode("append").save()


def stream(spark: Any, query: str, topic: str, has_timers: bool, options: dict[str, str]) -> None:
    """Until the end of the process; a query that fails is started again."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(shared() / "in"))
    if query == "foreachBatch":
        writer = lines.writeStream.foreachBatch(
            lambda batch, number: write_batch(rows_of(batch, query, topic, has_timers), number, options)
        )
    else:
        writer = rows_of(lines, query, topic, has_timers).writeStream.format("rmq_killed").options(**options)
    writer.option("checkpointLocation", str(shared() / "checkpoint")).start().awaitTermination()


def failing_once(flag: Path) -> Any:
    """Rows pass, but the first task that has passed on enough of them for a request fails."""

    def passing(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            yield batch
            if number == BATCHES_OF_A_REQUEST and not flag.exists():
                flag.touch()
                raise RuntimeError("this attempt of a task ends here")

    return passing


def batch_writes(spark: Any, query: str, topic: str, has_timers: bool, options: dict[str, str]) -> None:
    """Until the end of the process: one write for each file, and a task of each that fails once."""
    from pyspark_rmq.query.foreach_batch import map_in_arrow

    done = shared() / "done"
    while True:
        batch = int(done.read_text()) + 1 if done.exists() else 0
        file = shared() / "in" / f"{batch}.txt"
        if not file.exists():
            time.sleep(0.05)
            continue
        rows = rows_of(spark.read.text(str(file)), query, topic, has_timers)
        write_batch(map_in_arrow(rows, failing_once(shared() / f"failed-{batch}"), "body string"), batch, options)
        done.with_suffix(".new").write_text(str(batch))
        done.with_suffix(".new").rename(done)


def main() -> None:
    given = json.loads(sys.argv[1])
    query, topic = given["query"], given["topic"]
    options = dict(given["sink"])
    if query != "topics by column":
        options["topic"] = topic
    spark = session()
    (shared() / "started").touch()
    for _ in range(FAILURES_MAX):
        try:
            (batch_writes if query == "failing tasks" else stream)(spark, query, topic, given["has_timers"], options)
        except Exception:
            traceback.print_exc()
            time.sleep(0.5)


if __name__ == "__main__":
    main()
