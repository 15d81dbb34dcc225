"""`consume(..., idempotency=...)` in a query: repeated tasks and batches, retries, Spark Connect."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import pyspark_rmq
from pyspark_rmq import SparkIdempotency
from rmq_store import ClockFile, UsageError
from rmq_store.reliable import Tables, open_engine

from ..conftest import CONNECT_TIMEOUT, connect_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.timeout(400),  # each has several queries, or a Spark of its own
]

Make = Callable[..., Any]
NOW_MS = 1_700_000_000_000


@pytest.fixture
def database(tmp_path: Path) -> str:
    """By a file: the workers of the session began before the test, and would not see a variable of its."""
    url = f"sqlite:///{tmp_path / 'effects.db'}"
    (tmp_path / "url").write_text(url)
    tables = Tables()
    sa.Table("effects", tables.metadata, sa.Column("body", sa.LargeBinary(50)))
    engine = open_engine(url)
    tables.metadata.create_all(engine)
    engine.dispose()
    return f"file:{tmp_path / 'url'}"


def effects(database: str) -> list[str]:
    engine = open_engine(database)
    try:
        with engine.connect() as connection:
            found = connection.execute(sa.text("SELECT body FROM effects")).scalars()
            return sorted(bytes(body).decode() for body in found)
    finally:
        engine.dispose()


def run_now(query: Any, checkpoint: Path) -> None:
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def test_a_task_that_dies_behind_a_commit_and_its_batch_have_each_effect_once(
    spark: Any, make_store: Make, database: str, tmp_path: Path
) -> None:
    path = make_store(Orders=24)
    died = tmp_path / "died"

    def handler(connection: sa.Connection, rows: Any) -> None:
        connection.execute(
            sa.text("INSERT INTO effects VALUES (:body)"), [{"body": body} for body in rows.column("body").to_pylist()]
        )
        if b"Orders-20" in rows.column("body").to_pylist() and not died.exists():
            died.touch()
            os._exit(1)  # behind the commits of the same task's earlier rows

    def run(handler: Any) -> list[Any]:
        found: list[Any] = []
        read = spark.readStream.format("rmq").options(path=str(path), subscribe="Orders", group="cg").load()
        query = pyspark_rmq.consume(
            read, handler, group="cg", path=str(path), mode="arrow",
            on_results=lambda rows, _: found.extend(rows.collect()),
            idempotency=SparkIdempotency(database=database, busy_wait_ms=0),
        )  # fmt: skip
        run_now(query, tmp_path / "c")
        return found

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    try:
        assert {row["result"] for row in run(handler)} == {"SUCCESS"}
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    expected = sorted(f"Orders-{number}" for number in range(24))
    assert died.exists()
    assert effects(database) == expected
    # Spark repeats the batch: it does not know that it was done.
    (tmp_path / "c" / "commits" / "0").unlink()
    (tmp_path / "c" / "commits" / ".0.crc").unlink()
    assert {row["result"] for row in run(lambda connection, rows: 1 / 0)} == {"SUCCESS"}
    assert effects(database) == expected


@pytest.mark.slow
def test_what_fails_comes_back_and_has_its_effect_then(
    spark: Any, make_store: Make, add_messages: Make, database: str, tmp_path: Path
) -> None:
    path = make_store(Orders=0)
    clock = ClockFile.create(path / "pyrmq" / "clock", NOW_MS)
    add_messages(path, "Orders", 0, 20)

    def run(failing: bytes) -> list[Any]:
        def handler(connection: sa.Connection, row: Any) -> str:
            connection.execute(sa.text("INSERT INTO effects VALUES (:body)"), {"body": row.body})
            if row.body.endswith(failing):
                raise LookupError("no such customer")
            return pyspark_rmq.SUCCESS

        found: list[Any] = []
        read = spark.readStream.format("rmq").options(path=str(path), subscribe="Orders", group="cg").load()
        query = pyspark_rmq.consume(
            read, handler, group="cg", path=str(path), on_results=lambda rows, _: found.extend(rows.collect()),
            idempotency=SparkIdempotency(database=database),
        )  # fmt: skip
        run_now(query, tmp_path / "c")
        return found

    failed = [row for row in run(b"7") if row["result"] != "SUCCESS"]
    assert {(bytes(row["body"]), row["errorClass"]) for row in failed} == {
        (b"Orders-7", "LookupError"),
        (b"Orders-17", "LookupError"),
    }
    assert len(effects(database)) == 18
    clock.advance(10_000)
    assert [row["result"] for row in run(b"none")] == ["SUCCESS"] * 2
    assert effects(database) == sorted(f"Orders-{number}" for number in range(20))


def test_consume_says_what_it_cannot_use_of_an_idempotency(spark: Any, make_store: Make) -> None:
    path = make_store(Orders=1)
    read = spark.readStream.format("rmq").options(path=str(path), subscribe="Orders", group="cg").load()
    once = SparkIdempotency(database="env:ORDERS_DB")
    for frame, given, message in (
        (
            read.drop("properties"),
            {"idempotency": once},
            "needs the column properties map<string,string> as it was read",
        ),
        (read, {"idempotency": "env:ORDERS_DB"}, "idempotency of consume is a str, not a SparkIdempotency"),
        (
            read,
            {"idempotency": SparkIdempotency(database="env:X", outside=True), "mode": "arrow"},
            "effects outside of the database need mode='row'",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            pyspark_rmq.consume(frame, print, group="cg", path=str(path), **given)


CONNECT = """
import sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
import sqlalchemy as sa
import pyspark_rmq
path, checkpoint, database = sys.argv[1:]
spark = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = spark.remote("local[2]").getOrCreate()

def handler(connection, row):
    connection.execute(sa.text("INSERT INTO effects VALUES (:body)"), {"body": row.body})
    return pyspark_rmq.SUCCESS

for number in "12":
    read = spark.readStream.format("rmq").options(path=path, subscribe="Orders", group="cg" + number).load()
    once = pyspark_rmq.SparkIdempotency(database=database, prefix="rmq_")
    query = pyspark_rmq.consume(read, handler, group="cg" + number, path=path, idempotency=once)
    query = query.option("checkpointLocation", checkpoint + number).trigger(availableNow=True)
    query.start().awaitTermination()
spark.stop()
"""


@pytest.mark.slow
@CONNECT_TIMEOUT
def test_it_works_on_spark_connect(
    make_store: Make, database: str, tmp_path: Path, run_program: Callable[..., str]
) -> None:
    path = make_store(Orders=10)
    with connect_port():
        run_program(CONNECT, path, tmp_path / "c", database)
    assert effects(database) == sorted([f"Orders-{number}" for number in range(10)] * 2)


@pytest.mark.slow
def test_the_example_runs_to_its_end(run_program: Callable[..., str]) -> None:
    example = Path(__file__).resolve().parents[3] / "examples" / "reliable" / "stock_in_spark.py"
    printed = run_program(example.read_text(encoding="utf-8")).splitlines()
    # Ten orders by each of two groups; of five orders for milk one must wait.
    assert printed[-2:] == ["orders 20", "stock {'milk': 0, 'tea': 15}"]
