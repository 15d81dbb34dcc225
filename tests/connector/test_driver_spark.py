"""What a driver's program meets: threads, tables, wrong options of a stream, types of strings, failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_rmq import failure, register
from rmq_store import Store
from rmq_store.errors import NotAStoreError, UsageError

pytestmark = [pytest.mark.long, pytest.mark.spark]

Make = Callable[..., Any]
NO_TABLE = "cannot be a table of Spark's catalog.*CREATE TEMPORARY VIEW"


def in_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns, or raises, in a thread of its own."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


@pytest.fixture
def rows(spark: Any) -> Any:
    return spark.range(2).selectExpr("CAST(id AS STRING) AS body")


@pytest.fixture
def catalog(spark: Any) -> Iterator[Callable[[], set[str]]]:
    """The tables that there are, besides those from before; CREATE TABLE without USING is not tried with Hive."""
    spark.conf.set("spark.sql.legacy.createHiveTableByDefault", "false")

    def tables() -> set[str]:
        return {table.name for table in spark.catalog.listTables() if not table.isTemporary}

    assert tables() == set()
    yield tables
    for name in tables():
        spark.sql(f"DROP TABLE {name}")
    spark.conf.unset("spark.sql.legacy.createHiveTableByDefault")


def test_any_thread_of_a_driver_writes_after_it_has_registered(
    spark: Any, rows: Any, make_store: Make, bodies: Make, tmp_path: Path
) -> None:
    """Spark looks for Python data sources in the active session of the thread, and only the main one has it."""
    path = make_store(Orders=3)

    def write() -> None:
        rows.write.format("rmq").options(path=str(path), topic="T").mode("append").save()

    def stream() -> Any:
        read = spark.readStream.format("rmq").options(path=str(path), subscribe="Orders", startingOffsets="earliest")
        sink = read.load().select("body").writeStream.format("rmq").options(path=str(path), topic="T")
        query = sink.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
        query.awaitTermination()
        return query.exception()

    refused = in_thread(write)
    assert isinstance(refused, Exception) and "DATA_SOURCE_NOT_FOUND" in str(refused)
    assert in_thread(lambda: (register(spark), write())) == (None, None)
    assert in_thread(lambda: (register(spark), stream())) == (None, None)
    assert bodies(path, "T") == ["0", "1", "Orders-0", "Orders-1", "Orders-2"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE o USING rmq OPTIONS (path '{path}', subscribe 'Orders')",
        "CREATE TABLE o USING rmq OPTIONS (path '{path}', topic 'T') AS SELECT 'b' AS body",
        "CREATE TABLE o USING rmq LOCATION '{path}'",
    ],
)
def test_a_table_is_refused_before_it_is_made(
    spark: Any, make_store: Make, catalog: Callable[[], set[str]], statement: str
) -> None:
    path = make_store(Orders=3)
    with pytest.raises(Exception, match=NO_TABLE):
        spark.sql(statement.format(path=path))
    assert catalog() == set()


def test_a_table_with_rows_is_refused_before_a_row_is_written(
    spark: Any, rows: Any, make_store: Make, catalog: Callable[[], set[str]], bodies: Make, tmp_path: Path
) -> None:
    """Spark hands these on as it does `save()`: the rows would be stored, and the table could not be read."""
    path = make_store(Orders=3)
    writer = rows.write.format("rmq").options(path=str(path), topic="T")
    for save in (
        lambda: writer.saveAsTable("o"),
        lambda: writer.mode("append").saveAsTable("o"),
        lambda: rows.writeTo("o").using("rmq").option("path", str(path)).option("topic", "T").create(),
    ):
        with pytest.raises(Exception, match=NO_TABLE):
            save()
        assert (catalog(), bodies(path, "T")) == (set(), [])
    nowhere = tmp_path / "nowhere"
    with pytest.raises(Exception, match=NO_TABLE):
        rows.write.format("rmq").options(path=str(nowhere), topic="T").saveAsTable("o")
    assert not nowhere.exists()

    def write(batch: Any, batch_id: int) -> None:
        batch.select("body").write.format("rmq").options(path=str(path), topic="T").mode("append").save()

    read = spark.readStream.format("rmq").options(path=str(path), subscribe="Orders", startingOffsets="earliest")
    query = read.load().writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "cp"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert len(bodies(path, "T")) == 3


def test_a_table_that_spark_made_without_asking_is_refused_with_what_works(
    spark: Any, make_store: Make, catalog: Callable[[], set[str]], bodies: Make
) -> None:
    path = make_store(Orders=3)
    spark.sql(f"CREATE TABLE o (body BINARY) USING rmq OPTIONS (path '{path}', subscribe 'Orders')")
    assert catalog() == {"o"}
    frame = spark.sql("SELECT CAST('b' AS BINARY) AS body")
    for use in (
        lambda: spark.table("o").collect(),
        lambda: spark.sql("INSERT INTO o SELECT CAST('b' AS BINARY)"),
        lambda: frame.write.insertInto("o"),
    ):
        with pytest.raises(Exception, match=NO_TABLE):
            use()
    assert len(bodies(path, "Orders")) == 3


def test_a_temporary_view_reads_and_one_with_a_schema_takes_rows(
    spark: Any, make_store: Make, bodies: Make
) -> None:
    path = make_store(Orders=3)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING rmq OPTIONS (path '{path}', subscribe 'Orders')")
    assert spark.sql("SELECT count(*) FROM orders").collect()[0][0] == 3
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sink (body STRING) USING rmq OPTIONS (path '{path}', topic 'T')")
    spark.sql("INSERT INTO sink SELECT 'b'")
    assert bodies(path, "T") == ["b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnAppId": "x"}, "txnAppId is not possible for a read"),
        ({"topic": "T"}, "topic is not possible for a read"),
        ({"maxOffsetsPerTrigger": "10k"}, "'10k' is not an integer"),
        ({"group": "cg bills"}, "the group name 'cg bills' holds characters"),
        ({"startingOffsets": "{"}, "startingOffsets is not JSON"),
    ],
)
def test_a_stream_is_refused_at_load(spark: Any, tmp_path: Path, options: dict[str, str], message: str) -> None:
    given = {"path": str(tmp_path), "subscribe": "Orders"} | options
    with pytest.raises(Exception, match=message):
        spark.readStream.format("rmq").options(**given).load()


def started(frame: Any, checkpoint: Path, **options: str) -> Any:
    writer = frame.writeStream.format("noop" if not options else "rmq").options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"key": "x"}, "", "option key is not possible for a stream read, only for a batch read"),
        ({"endingOffsets": "latest"}, "", "option endingOffsets is not possible for a stream read"),
        ({}, "nope BINARY", "the source has no column 'nope'"),
    ],
)
def test_what_only_the_query_can_know_is_its_error_and_no_other(
    spark: Any, make_store: Make, tmp_path: Path, options: dict[str, str], schema: str, message: str
) -> None:
    """At load() Spark does not say whether a batch or a stream is wanted. Its own UnboundLocalError hid this."""
    reader = spark.readStream.format("rmq").options(path=str(make_store(Orders=3)), subscribe="Orders", **options)
    query = started((reader.schema(schema) if schema else reader).load(), tmp_path / "cp")
    with pytest.raises(Exception, match=message) as refused:
        query.awaitTermination()
    assert "UnboundLocalError" not in str(refused.value)
    found = failure(query)
    assert found is not None and found.is_a(UsageError)
    assert found.message.startswith(message)


def test_the_failure_of_a_query_is_the_python_error_of_source_sink_or_function(
    spark: Any, make_store: Make, tmp_path: Path
) -> None:
    path = make_store(Orders=3)
    reader = spark.readStream.format("rmq").options(path=str(path), subscribe="Orders", startingOffsets="earliest")
    frame = reader.load()
    fine = started(frame.select("body"), tmp_path / "fine", path=str(path), topic="T")
    fine.awaitTermination()
    assert failure(fine) is None
    bad_sink = started(frame.selectExpr("body AS bodi"), tmp_path / "sink", path=str(path), topic="T")

    def fail(rows: Any, batch_id: int) -> None:
        raise KeyError("no such\ncustomer")

    bad_function = frame.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "f")).start()
    missing = started(
        frame.select("body"), tmp_path / "new", path=str(tmp_path / "mistyped"), topic="T", createStore="false"
    )
    for query, error, text in (
        (bad_sink, UsageError, "the sink has no column 'bodi'"),
        (bad_function, KeyError, "'no such\\ncustomer'"),
        (missing, NotAStoreError, f"{tmp_path / 'mistyped'}: there is no store here, and createStore=false"),
    ):
        with pytest.raises(Exception, match="STREAM_FAILED"):
            query.awaitTermination()
        found = failure(query)
        assert found is not None and found.is_a(error) and found.message.startswith(text), found
        assert not found.message.rstrip().endswith("SQLSTATE: XXKST"), found
    assert not (tmp_path / "mistyped").exists()


def test_collated_strings_and_those_with_a_length_are_written_and_read(spark: Any, make_store: Make) -> None:
    path = make_store()
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        frame = spark.sql(
            "SELECT collate('a', 'UNICODE_CI') AS tags, CAST('k' AS VARCHAR(10)) AS keys, CAST('b' AS CHAR(3)) AS body"
        )
        frame.write.format("rmq").options(path=str(path), topic="T").mode("append").save()
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")
    read = spark.read.format("rmq").options(path=str(path), subscribe="T")
    found = read.schema("tags STRING COLLATE UNICODE_CI, keys STRING, body BINARY").load().where("tags = 'A'").collect()
    assert [(row["tags"], row["keys"], bytes(row["body"])) for row in found] == [("a", "k", b"b  ")]


def test_a_transactions_version_may_be_a_time_in_nanoseconds(spark: Any, rows: Any, make_store: Make) -> None:
    path = make_store()
    options = {"path": str(path), "topic": "T", "txnAppId": "a"}
    for version in (time.time_ns(), 2**63 - 1, 2**63 - 1):
        rows.write.format("rmq").options(**options, txnVersion=str(version)).mode("append").save()
    with Store.open(path, read_only=True) as store:
        assert sum(limits.max_offset for limits in store.queue_ranges("T").values()) == 4
