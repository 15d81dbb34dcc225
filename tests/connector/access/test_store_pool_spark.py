"""What a Spark session keeps open after a commit, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Store, StoreConfig

pytestmark = [pytest.mark.long, pytest.mark.spark]

Make = Callable[..., Any]


def message_count(path: Path) -> int:
    with Store.open(path, read_only=True) as store:
        return sum(limit.max_offset for limit in store.queue_ranges("Orders").values())


def wait_until_closed(path: Path) -> None:
    deadline_s = time.monotonic() + 30
    while (path / "abort").exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    with Store.open(path) as store:
        assert store.recovery is not None and store.recovery.trust == "CLEAN"


def test_a_batch_write_closes_the_store_behind_its_return(spark: Any, make_store: Make) -> None:
    path = make_store(Orders=0)
    rows = spark.range(100).selectExpr("'Orders' as topic", "cast(id as string) as body")
    for times in (1, 2):
        rows.write.format("rmq").option("path", str(path)).mode("append").save()
        assert message_count(path) == 100 * times
        wait_until_closed(path)


def test_under_sync_flush_a_batch_write_leaves_the_store_closed(spark: Any, tmp_path: Path) -> None:
    """It may be the last thing that a job does."""
    path = tmp_path / "store"
    with Store.open(path, create=True, config=StoreConfig(flush_disk_type="SYNC_FLUSH")) as store:
        store.create_topic("Orders", 4)
    rows = spark.range(100).selectExpr("'Orders' as topic", "cast(id as string) as body")
    for times in (1, 2):
        rows.write.format("rmq").option("path", str(path)).mode("append").save()
        assert not (path / "abort").exists()
        assert message_count(path) == 100 * times


def test_after_a_streams_last_batch_the_store_is_closed_in_a_moment(
    spark: Any, make_store: Make, tmp_path: Path
) -> None:
    path = make_store(Orders=0)
    rates = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=300, numPartitions=2).load()
    rows = rates.selectExpr("'Orders' as topic", "cast(value as string) as body")
    sink = rows.writeStream.format("rmq").options(path=str(path), checkpointLocation=str(tmp_path / "checkpoint"))
    # It ends by itself: a query that is stopped in the middle of a commit leaves the store as a kill does.
    sink.trigger(availableNow=True).start().awaitTermination()
    wait_until_closed(path)
    assert message_count(path) == 300
