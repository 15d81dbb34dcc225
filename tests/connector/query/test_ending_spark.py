"""A program of Spark's that ends as programs do leaves a clean store: nothing to recover, and no file `abort`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, Store, StoreConfig

# Ends a few milliseconds behind its last commit: what the workers kept open is open then.
PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
what, path, checkpoint, reuse = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = spark.config("spark.python.worker.reuse", reuse).getOrCreate()
def stream(**options):
    return spark.readStream.format("rmq").options(path=path, subscribe="Orders", **options).load()
def bills(stream, topic="Bills", name="a"):
    sink = stream.select("body").writeStream.format("rmq").options(path=path, topic=topic)
    return sink.option("checkpointLocation", checkpoint + name)
def write(df, *batch):
    df.select("body").write.format("rmq").options(path=path, topic="Bills").mode("append").save()
if what == "batch":
    write(spark.sql("SELECT 'b' AS body"))
elif what == "stop":
    query = bills(stream(group="g")).start()
    query.processAllAvailable()
    query.stop()
elif what == "stop, idle":
    import time
    query = bills(stream(group="g")).start()
    query.processAllAvailable()
    time.sleep(4)
    query.stop()
elif what == "no stop":
    bills(stream(group="g")).start().processAllAvailable()
elif what == "no group":
    few = stream(startingOffsets="earliest", maxOffsetsPerTrigger=2)
    bills(few).trigger(availableNow=True).start().awaitTermination()
elif what == "availableNow":
    bills(stream(group="g", maxOffsetsPerTrigger=2)).trigger(availableNow=True).start().awaitTermination()
elif what == "foreachBatch":
    query = stream(group="g").writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
elif what == "consume":
    import pyspark_rmq
    query = pyspark_rmq.consume(stream(group="g"), lambda row: pyspark_rmq.RECONSUME_LATER, group="g", path=path)
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
elif what == "two sinks":
    first = bills(stream(group="g")).start()
    second = bills(stream(group="h"), "Copies", "b").start()
    first.processAllAvailable()
    second.processAllAvailable()
    first.stop()
    second.stop()
spark.stop()
print("stopped")
"""

slow = pytest.mark.slow

# The processes of a session end behind `spark.stop()`, beside the driver.
CLOSED_WITHIN_S = 30


@pytest.mark.spark
@pytest.mark.parametrize(
    ("what", "flush_disk_type", "reuse"),
    [
        ("batch", "ASYNC_FLUSH", "true"),
        ("stop, idle", "ASYNC_FLUSH", "true"),
        pytest.param("stop", "ASYNC_FLUSH", "true", marks=slow),
        pytest.param("no stop", "ASYNC_FLUSH", "true", marks=slow),
        pytest.param("no group", "ASYNC_FLUSH", "true", marks=slow),
        pytest.param("availableNow", "ASYNC_FLUSH", "true", marks=slow),
        pytest.param("foreachBatch", "ASYNC_FLUSH", "true", marks=slow),
        pytest.param("consume", "ASYNC_FLUSH", "true", marks=slow),
        pytest.param("two sinks", "ASYNC_FLUSH", "true", marks=slow),
        pytest.param("batch", "SYNC_FLUSH", "true", marks=slow),
        pytest.param("availableNow", "SYNC_FLUSH", "true", marks=slow),
        pytest.param("batch", "ASYNC_FLUSH", "false", marks=slow),
        pytest.param("availableNow", "ASYNC_FLUSH", "false", marks=slow),
    ],
)
@pytest.mark.slow
def test_a_program_that_ends_as_programs_do_leaves_a_clean_store(
    tmp_path: Path, run_program: Callable[..., str], what: str, flush_disk_type: Any, reuse: str
) -> None:
    path = tmp_path / "store"
    small = StoreConfig(max_hash_slot_num=16, max_index_num=64, flush_disk_type=flush_disk_type)
    with Store.open(path, create=True, config=small) as store:
        store.create_topic("Orders", 2)
        for number in range(6):
            store.send(Message("Orders", b"%d" % number))
    assert run_program(PROGRAM, what, path, tmp_path / "checkpoint", reuse) == "stopped\n"
    deadline_s = time.monotonic() + CLOSED_WITHIN_S
    while (path / "abort").exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    with Store.open(path) as store:
        assert store.recovery is not None and store.recovery.trust == "CLEAN"
        assert "%RETRY%g" in store.topics() if what == "consume" else "Bills" in store.topics()
