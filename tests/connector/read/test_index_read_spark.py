"""Finding messages in Spark: by options, and by filters that Spark pushes down."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from ..spark_lacks import needs_spark

pytestmark = [pytest.mark.long, pytest.mark.spark]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COUNT = 6_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import pyarrow as pa

    from rmq_store import Store

    root = tmp_path_factory.mktemp("found") / "store"
    with Store.open(root, create=True) as store:
        store.create_topic("Orders", 4)
        keys = [f"ORD-{number} C-{number % 100}" for number in range(COUNT)]
        store.append(pa.record_batch({"body": pa.array([b"tea"] * COUNT), "keys": keys}), "Orders")
    return root


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def orders(spark: Any, path: Path, **options: str) -> Any:
    return spark.read.format("rmq").options(path=str(path), subscribe="Orders", **options).load()


def numbers(frame: Any) -> list[int]:
    return sorted(int(row["keys"].split(" ")[0][4:]) for row in frame.select("keys").collect())


def plan_of(frame: Any) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        frame.explain()
    return said.getvalue()


def test_a_message_is_found_by_its_key_and_by_its_ids(spark: Any, path: Path) -> None:
    frame = orders(spark, path, key="ORD-4711")
    (row,) = frame.collect()
    assert (row["keys"], bytes(row["body"])) == ("ORD-4711 C-11", b"tea")
    assert frame.rdd.getNumPartitions() == 1, "one task, for one message"
    assert numbers(orders(spark, path, msgId=row["msgId"])) == [4711]
    many = "\n".join(f"ORD-{number}" for number in range(1, 2 * COUNT, 2))
    assert numbers(orders(spark, path, key=many)) == list(range(1, COUNT, 2))
    assert orders(spark, path, uniqKey="nobody").count() == 0
    with pytest.raises(Exception, match="option key is not possible for a stream read"):
        stream = spark.readStream.format("rmq").options(path=str(path), subscribe="Orders", key="ORD-1").load()
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


FILTERS: tuple[Callable[[], Any], ...] = (
    # Every tenth message, so in two queues at least, whichever was the first one to be filled.
    lambda: F.col("keys").endswith("7") & (F.col("queueId") != 1) & F.col("tags").isNull(),
    lambda: (F.col("storeTimestamp") > F.lit("2001-01-01").cast("timestamp")) & (F.col("queueOffset") == 3),
    lambda: F.col("keys").isin("ORD-1 C-1", "ORD-2 C-2") | (F.col("queueOffset") < 2),
)


@needs_spark("filter pushdown")
def test_filters_that_are_pushed_down_give_the_same_rows(spark: Any, path: Path, pushing: None) -> None:
    for make in FILTERS:
        found = numbers(orders(spark, path, filterPushdown="true").where(make()))
        assert found == numbers(orders(spark, path).where(make()))
        assert found
    frame = orders(spark, path, filterPushdown="true").where("keys = 'ORD-4711 C-11'")
    assert frame.rdd.getNumPartitions() == 1, "the index was asked"
    plan = plan_of(frame)
    assert "BatchScan rmq" in plan
    assert " Filter (" not in plan, "nothing is left for Spark"
    assert " Filter (" in plan_of(orders(spark, path).where("keys = 'ORD-4711 C-11'"))


@needs_spark("filter pushdown")
def test_queries_of_one_frame_share_what_was_pushed_and_so_it_has_to_be_asked_for(
    spark: Any, path: Path, pushing: None
) -> None:
    """Of Spark 4.3.0. When this fails, a later Spark does better, and the option may become the default."""
    frame = orders(spark, path, filterPushdown="true")
    assert numbers(frame.where("keys = 'ORD-7 C-7'")) == [7]
    assert frame.count() == 1
    frame = orders(spark, path)
    assert numbers(frame.where("keys = 'ORD-7 C-7'")) == [7]
    assert frame.count() == COUNT
    spark.conf.set(PUSHDOWN, "false")
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        orders(spark, path, filterPushdown="true").collect()
