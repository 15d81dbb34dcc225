"""A driver to be killed: `spark_driver.py JSON`. Says "ready" when Spark is there, then waits for a line of JSON on its
standard input, and runs the queries as it says: for ever, or to their end ("done").

The first argument: {"source", "target": directories, "queries": [{"topic", "group", "checkpoint"}]}; the line:
{"finish": bool, "query": number, "plan": {"point": ..., "count": ..., ...}}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from crash.workers.crashing_source import PREFIX, CrashingSource

given: dict[str, Any] = json.loads(sys.argv[1])
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.log.level", "OFF")
    .config("spark.python.daemon.module", "crash.workers.warm_daemon")
    # Spark 4.3.0 refuses a checkpoint in whose offsets/ a driver has died before its first batch was written down.
    .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    .getOrCreate()
)
spark.dataSource.register(CrashingSource)


def start(query: dict[str, str], target: str, plan: dict[str, str], finish: bool) -> Any:
    rows = (
        spark.readStream.format("rmq_crashing")
        .option("path", query["source"])
        .option("subscribe", query["topic"])
        .option("group", query["group"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1000000" if finish else "15")
        .options(**plan)
        .load()
        .select("body", "keys")
    )
    stream = (
        rows.writeStream.format("rmq_crashing")
        .option("path", target)
        .option("topic", "Out")
        .option("checkpointLocation", query["checkpoint"])
        .options(**plan)
    )
    return (stream.trigger(availableNow=True) if finish else stream).start()


def first_batch(checkpoint: Path) -> int:
    """The batch with which a query goes on."""
    begun = [int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")]
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    return max([0, *begun, *(batch + 1 for batch in done)])


print("ready", flush=True)
told: dict[str, Any] = json.loads(sys.stdin.readline())
queries = []
for number, query in enumerate(given["queries"]):
    plan = {}
    if number == told["query"]:
        plan = {PREFIX + name: value for name, value in told["plan"].items()}
        plan[PREFIX + "driver"] = str(os.getpgrp())
        plan[PREFIX + "batch"] = str(first_batch(Path(query["checkpoint"])) + int(told["plan"]["count"]) - 1)
    queries.append(start(query | {"source": given["source"]}, given["target"], plan, told["finish"]))
print("running", flush=True)
while not told["finish"]:
    for running in queries:
        if running.exception() is not None:
            raise SystemExit(f"a query failed: {running.exception()}")
    time.sleep(0.05)
for running in queries:
    running.awaitTermination()
print("done", flush=True)
