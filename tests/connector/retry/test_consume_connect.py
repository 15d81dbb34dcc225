"""`consume` on Spark Connect: a batch runs in a process of the server, without SparkContext, and finds its query."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig

from ..conftest import CONNECT_TIMEOUT, connect_port

PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from pyspark.sql import SparkSession
import pyspark_rmq
from rmq_store import Store
path, scratch = sys.argv[1:]
spark = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = spark.remote("local[2]").getOrCreate()
said = {}

def start(group, handler, checkpoint, name=None, **options):
    stream = spark.readStream.format("rmq").options(path=path, subscribe="Orders", group=group).load()
    writer = pyspark_rmq.consume(stream, handler, group=group, path=path, **options)
    writer = writer.option("checkpointLocation", scratch + "/" + checkpoint).trigger(availableNow=True)
    return (writer.queryName(name) if name else writer).start()

def row_handler(row):
    if row.keys == "k1":
        raise LookupError("no such customer")
    return None if row.keys == "k2" else "DLQ" if row.keys == "k3" else "SUCCESS"

def fifth(rows):
    return [5 if key == "k0" else "SUCCESS" for key in rows.column("keys").to_pylist()]

def count(rows, batch_id):
    Path(scratch, "results").write_text(json.dumps([batch_id, rows.count()]))

# Two at once, so that each batch has to find its own query.
row = start("row", row_handler, "row", on_results=count)
arrow = start("arrow", fifth, "arrow", "mine", mode="arrow")
pandas = start("pandas", lambda frame: ["RECONSUME_LATER"] * len(frame), "pandas", mode="pandas")
for query in (row, arrow, pandas):
    query.awaitTermination()
said["names"] = [row.name, arrow.name]
said["ids"] = [row.id, arrow.id, pandas.id]

breaker = start("flood", lambda row: "DLQ", "flood", breaker=pyspark_rmq.FloodBreaker(max_percent=10))
try:
    breaker.awaitTermination()
    said["breaker"] = "did not trip"
except Exception as error:
    said["breaker"] = "FloodBreakerError" in str(error)

def waiting():
    with Store.open(path, read_only=True) as store:
        return sum(limits.max_offset for limits in store.queue_ranges("SCHEDULE_TOPIC_XXXX").values())

# The batch whose failures were sent back, and that Spark has not noted, is done: its marker is there.
said["before"] = waiting()
(commit,) = Path(scratch, "pandas", "commits").glob("[0-9]*")
commit.unlink()
Path(scratch, "pandas", "commits", f".{commit.name}.crc").unlink(missing_ok=True)
again = start("pandas", lambda frame: 1 / 0, "pandas", mode="pandas")
again.awaitTermination()
said["again"] = again.id == pandas.id
said["after"] = waiting()
dead = spark.read.format("rmq").options(path=path, dlq="row").load()
said["dead"] = [[r.keys, r.errorClass] for r in dead.collect()]
spark.stop()
print(json.dumps(said))
"""


@pytest.mark.spark
@pytest.mark.slow
@CONNECT_TIMEOUT
def test_the_whole_way_of_retries_works_on_spark_connect(tmp_path: Path, run_program: Callable[..., str]) -> None:
    """It asked the batch for a SparkContext, which a session of Connect does not have: each query failed at once."""
    path = tmp_path / "store"
    # Nothing comes back while the test runs, however long that takes.
    config = StoreConfig(max_hash_slot_num=16, max_index_num=64, message_delay_level=" ".join(["1h"] * 18))
    with Store.open(path, create=True, config=config) as store:
        store.create_topic("Orders", 2)
        for number in range(6):
            store.send(Message("Orders", b"%d" % number, keys=f"k{number}"))
    with connect_port():
        said = json.loads(run_program(PROGRAM, path, tmp_path).splitlines()[-1])
    assert said["names"][0].startswith("consume row ") and said["names"][1] == "mine"
    assert json.loads((tmp_path / "results").read_text()) == [0, 6]
    assert said["breaker"] is True
    assert said["again"] is True
    assert said["after"] == said["before"] == 9
    assert said["dead"] == [["k3", "DLQ"]]
    with Store.open(path) as store:
        waiting = [
            message["properties"]
            for queue_id, limits in store.queue_ranges("SCHEDULE_TOPIC_XXXX").items()
            for batch in store.read("SCHEDULE_TOPIC_XXXX", queue_id, limits.min_offset, limits.max_offset)
            for message in batch.to_pylist(maps_as_pydicts="strict")
        ]
        newest = [store.last_unit("sendback", f"{group}/{said['ids'][n]}") for n, group in enumerate(("row", "arrow"))]
    reasons: dict[str, list[str]] = {}
    for properties in waiting:
        reasons.setdefault(properties["REAL_TOPIC"].removeprefix("%RETRY%"), []).append(properties["PYRMQ_ERROR_CLASS"])
    assert sorted(reasons["row"]) == ["LookupError", "NoResult"]
    assert reasons["arrow"] == ["RECONSUME_LATER"]
    assert reasons["pandas"] == ["RECONSUME_LATER"] * 6
    assert None not in newest, "each marker has the id of its own query"
