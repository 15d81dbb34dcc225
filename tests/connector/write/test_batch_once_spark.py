"""`write_once`: the rows of a stream into a database, exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

import pyspark_rmq
from rmq_store import Store, StoreConfig, UsageError
from rmq_store.reliable import Tables, open_engine

from ..conftest import CONNECT_TIMEOUT, connect_port
from ..spark_lacks import run_in_batches

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.timeout(400),  # each has several queries, or a Spark of its own
]

Make = Callable[..., Any]


@pytest.fixture
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with the kit's tables and one of the application; its reference."""
    engine = open_engine(database_url)
    tables = Tables()
    # Without a key: what is written twice is there twice.
    sa.Table("orders", tables.metadata, sa.Column("body", sa.LargeBinary(50)), sa.Column("keys", sa.String(50)))
    tables.metadata.create_all(engine)
    engine.dispose()
    monkeypatch.setenv("ORDERS_DB", database_url)
    return "env:ORDERS_DB"


on_servers = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("postgresql", "mariadb")]
on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


def stream(spark: Any, path: Path, **options: str) -> Any:
    chosen = {"path": str(path), "subscribe": "Orders", "group": "cg"} | options
    return spark.readStream.format("rmq").options(**chosen).load()


def run_now(query: Any, checkpoint: Path) -> Any:
    return run_in_batches(query.option("checkpointLocation", str(checkpoint)))


def rows_of(url: str, statement: str) -> list[Any]:
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(statement))]
    finally:
        engine.dispose()


def orders_in(url: str) -> list[str]:
    return sorted(bytes(row[0]).decode() for row in rows_of(url, "SELECT body FROM orders"))


def expected(count: int, topic: str = "Orders") -> list[str]:
    return sorted(f"{topic}-{number}" for number in range(count))


def forget_commit(checkpoint: Path, number: int = 0) -> None:
    """As if the driver had died before Spark noted a batch."""
    (checkpoint / "commits" / str(number)).unlink()
    (checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("database_kind", ["sqlite", *on_servers], indirect=True)
def test_a_batch_that_spark_repeats_is_written_once(
    spark: Any, make_store: Make, add_messages: Make, database: str, database_url: str, tmp_path: Path
) -> None:
    path = make_store(Orders=40)
    writer = pyspark_rmq.write_once(stream(spark, path), database, group="cg", table="orders")
    first = run_now(writer, tmp_path / "c")
    assert orders_in(database_url) == expected(40)
    forget_commit(tmp_path / "c")
    add_messages(path, "Orders", 40, 50)
    run_now(pyspark_rmq.write_once(stream(spark, path), database, group="cg", table="orders"), tmp_path / "c")
    assert orders_in(database_url) == expected(50)
    batches = rows_of(database_url, "SELECT query_id, group_name, target, batch_id, row_count FROM rmq_batch")
    assert sorted(batches) == [(str(first.id), "cg", "orders", 0, 40), (str(first.id), "cg", "orders", 1, 10)]
    # A new checkpoint reads everything again; the marks of the rows are there.
    again = stream(spark, path, group="cg_other", startingOffsets="earliest")
    run_now(pyspark_rmq.write_once(again, database, group="cg", table="orders"), tmp_path / "new")
    assert orders_in(database_url) == expected(50)


@on_sqlite
@pytest.mark.parametrize("mode", ["rows", pytest.param("arrow", marks=pytest.mark.slow)])
def test_a_function_gets_chunks_of_what_is_not_done(
    spark: Any, make_store: Make, database: str, database_url: str, tmp_path: Path, mode: Any
) -> None:
    path = make_store(Orders=40)
    seen: list[Any] = []

    def write(connection: sa.Connection, rows: Any) -> None:
        seen.append(rows)
        given = rows.to_pylist(maps_as_pydicts="strict") if mode == "arrow" else rows
        connection.execute(sa.text("INSERT INTO orders VALUES (:body, :keys)"), given)

    some = stream(spark, path).where("tags = 'TagA'").selectExpr("body", "keys", "properties", "1 AS one")
    run_now(pyspark_rmq.write_once(some, database, group="cg", write=write, mode=mode, chunk_rows=8), tmp_path / "c")
    assert [len(rows) if mode == "rows" else rows.num_rows for rows in seen] == [8, 8, 4]
    assert all(isinstance(rows, list if mode == "rows" else pa.RecordBatch) for rows in seen)
    if mode == "rows":
        assert seen[0][0]["one"] == 1 and seen[0][0]["properties"]["TAGS"] == "TagA"
    assert len(orders_in(database_url)) == 20
    (target,) = rows_of(database_url, "SELECT target FROM rmq_batch")[0]
    assert target.endswith("write") and len(target) <= 64


@on_sqlite
def test_a_chunk_that_fails_leaves_nothing_of_its_batch(
    spark: Any, make_store: Make, database: str, database_url: str, tmp_path: Path
) -> None:
    path = make_store(Orders=40)

    def write(connection: sa.Connection, rows: Any) -> None:
        connection.execute(sa.text("INSERT INTO orders VALUES (:body, :keys)"), rows)
        if any(row["keys"] == "K39" for row in rows):
            raise LookupError("no such customer")

    failing = pyspark_rmq.write_once(stream(spark, path), database, group="cg", write=write, chunk_rows=10)
    with pytest.raises(Exception, match=r"LookupError.*no such customer"):
        run_now(failing, tmp_path / "c")
    assert (orders_in(database_url), rows_of(database_url, "SELECT * FROM rmq_inbox")) == ([], [])
    assert rows_of(database_url, "SELECT * FROM rmq_batch") == []
    run_now(pyspark_rmq.write_once(stream(spark, path), database, group="cg", table="orders"), tmp_path / "c")
    assert orders_in(database_url) == expected(40)


@on_sqlite
@pytest.mark.slow
def test_two_queries_of_one_group_write_what_each_of_them_reads(
    spark: Any, make_store: Make, database: str, database_url: str, tmp_path: Path
) -> None:
    path = make_store(Orders=12, Returns=8)
    running = []
    for topic, more in (("Orders", {}), ("Returns", {"retryTopic": "false"})):
        read = stream(spark, path, subscribe=topic, **more)
        query = pyspark_rmq.write_once(read, database, group="cg", table="orders")
        query = query.option("checkpointLocation", str(tmp_path / topic)).trigger(availableNow=True)
        running.append(query.start())
    for query in running:
        query.awaitTermination()
    assert orders_in(database_url) == sorted(expected(12) + expected(8, "Returns"))


@on_sqlite
@pytest.mark.slow
def test_a_checkpoint_that_was_set_back_loses_nothing_and_repeats_nothing(
    spark: Any, make_store: Make, add_messages: Make, database: str, database_url: str, tmp_path: Path
) -> None:
    """Its batch 0 has other messages than that in the database: the number alone would skip the new ones."""
    path = make_store(Orders=20)

    def run() -> None:
        read = stream(spark, path, group="cg_read", startingOffsets="earliest")
        run_now(pyspark_rmq.write_once(read, database, group="cg", table="orders"), tmp_path / "c")

    run()
    for log in ("offsets", "commits"):
        for name in ("0", ".0.crc"):
            (tmp_path / "c" / log / name).unlink()
    add_messages(path, "Orders", 20, 30)
    with Store.open(path) as store:
        store.commit_offsets("cg_read", {("Orders", queue): 0 for queue in range(4)})
    run()
    assert orders_in(database_url) == expected(30)


@on_sqlite
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_killed_around_the_commit_of_the_database_writes_everything_once(
    spark: Any, make_store: Make, database: str, database_url: str, tmp_path: Path, run_until_killed: Make, when: str
) -> None:
    path = make_store(Orders=40)
    run_until_killed("killed_writer.py", path, tmp_path / "c", when)
    assert not (tmp_path / "c" / "commits" / "0").exists()  # Spark does not know
    assert orders_in(database_url) == (expected(40) if when == "after" else [])
    run_now(pyspark_rmq.write_once(stream(spark, path), database, group="cg", table="orders"), tmp_path / "c")
    assert (tmp_path / "c" / "commits" / "0").exists()
    assert orders_in(database_url) == expected(40)


@on_sqlite
def test_a_message_without_an_id_is_refused_and_named(
    spark: Any, make_store: Make, database: str, database_url: str, tmp_path: Path
) -> None:
    path = make_store(Orders=3)
    read = stream(spark, path).selectExpr(
        "topic", "queueId", "queueOffset", "body", "map_filter(properties, (name, value) -> name = 'TAGS') properties"
    )
    query = pyspark_rmq.write_once(read, database, group="cg", table="orders")
    wanted = r"NoMessageIdError: the message Orders, queue \d, offset 0 has neither OUTBOX_ID nor UNIQ_KEY"
    with pytest.raises(Exception, match=wanted):
        run_now(query, tmp_path / "c")
    assert orders_in(database_url) == []


@on_sqlite
@pytest.mark.slow
def test_a_table_that_does_not_fit_fails_the_query(spark: Any, make_store: Make, database: str, tmp_path: Path) -> None:
    path = make_store(Orders=3)
    read = stream(spark, path)
    for number, (frame, table, message) in enumerate(
        (
            (read, "nothing", "the database has no table 'nothing'"),
            (read.selectExpr("properties", "body", "1 AS amount"), "orders", "'orders' has no column 'amount'; it has"),
            (read.select("properties"), "orders", "no column of the stream is one of the table 'orders'"),
        )
    ):
        query = pyspark_rmq.write_once(frame, database, group="cg", table=table)
        with pytest.raises(Exception, match=f"UsageError: write_once: .*{message}"):
            run_now(query, tmp_path / str(number))


@on_sqlite
def test_write_once_says_what_it_cannot_use(spark: Any, make_store: Make, database: str) -> None:
    path = make_store(Orders=1)
    read = stream(spark, path)
    batch = spark.read.format("rmq").options(path=str(path), subscribe="Orders").load()
    for frame, given, message in (
        (batch, {}, "needs a stream"),
        (read.drop("properties"), {}, "needs the column properties map<string,string> as it was read"),
        (read, {"write": print}, "needs either write="),
        (read, {"table": None}, "needs either write="),
        (read, {"table": None, "write": 5}, "write=5 of write_once cannot be called"),
        (read, {"mode": "row"}, "none of rows, arrow"),
        (read, {"chunk_rows": 0}, "chunk_rows=0 of write_once is no integer of at least 1"),
        (read, {"database": open_engine("sqlite://")}, "An engine is not taken"),
        (read, {"database": "env:NOT_SET"}, "environment variable 'NOT_SET' is not set"),
        (read, {"stub_database": "env:NOT_SET"}, "environment variable 'NOT_SET' is not set"),
        (read, {"prefix": "x;"}, "prefix='x;'"),
        (read, {"group": "%RETRY%cg"}, "'%RETRY%cg' is a topic"),
    ):
        with pytest.raises(UsageError, match=message):
            pyspark_rmq.write_once(frame, **{"database": database, "group": "cg", "table": "orders"} | given)


MEMORY = """
import os, resource, sys
from pyspark.sql import SparkSession
import pyspark_rmq
path, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = spark.getOrCreate()
rows = 0

def write(connection, batch):
    global rows
    rows += batch.num_rows

def run(topic):
    options = {"path": path, "subscribe": topic, "startingOffsets": "earliest", "minPartitions": "16"}
    read = spark.readStream.format("rmq").options(**options).load()
    query = pyspark_rmq.write_once(read, "env:ORDERS_DB", group="cg", write=write, mode="arrow")
    query = query.option("checkpointLocation", checkpoint + topic).trigger(availableNow=True)
    query.start().awaitTermination()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

before = run("Small")
after = run("Large")
print(rows, after - before)
spark.stop()
"""


@on_sqlite
@pytest.mark.slow
def test_the_memory_of_the_driver_does_not_grow_with_the_batch(
    database: str, tmp_path: Path, run_program: Callable[..., str]
) -> None:
    """A batch of 256 MiB; the driver's Python process may take what a few chunks of 8 MiB need, and the file's 16."""
    path = tmp_path / "store"
    config = StoreConfig(mapped_file_size_commit_log=64 << 20, max_hash_slot_num=16, max_index_num=64)
    with Store.open(path, create=True, config=config) as store:
        for topic, count in (("Small", 10), ("Large", 1_024)):
            store.create_topic(topic, 4)
            bodies = pa.array([os.urandom(1 << 15) * 8] * 64)
            for _ in range(0, count, 64):
                store.append(pa.record_batch({"body": bodies}), topic)
    rows, grown_mib = map(int, run_program(MEMORY, path, tmp_path / "c").split()[-2:])
    assert rows == 64 + 1_024
    assert grown_mib < 100


CONNECT = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from pyspark.sql import SparkSession
import sqlalchemy as sa
import pyspark_rmq
path, scratch = sys.argv[1:]
spark = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = spark.remote("local[2]").getOrCreate()

def write(connection, rows):
    connection.execute(sa.text("INSERT INTO orders VALUES (:body, :keys)"), rows)

def start(group, **given):
    read = spark.readStream.format("rmq").options(path=path, subscribe="Orders", group=group).load()
    query = pyspark_rmq.write_once(read, "env:ORDERS_DB", group=group, chunk_rows=3, **given)
    return query.option("checkpointLocation", scratch + "/" + group).trigger(availableNow=True).start()

ids = []
orders = sa.Table("orders", sa.MetaData(), sa.Column("body", sa.LargeBinary), sa.Column("keys", sa.String(50)))
# Two at once, so that each batch has to find its own query.
queries = [start("function", write=write), start("table", table=orders)]
for query in queries:
    query.awaitTermination()
    ids.append(query.id)
for group in ("function", "table"):
    (commit,) = Path(scratch, group, "commits").glob("[0-9]*")
    commit.unlink()
    Path(scratch, group, "commits", f".{commit.name}.crc").unlink(missing_ok=True)
start("function", write=write).awaitTermination()
start("table", table="orders").awaitTermination()
spark.stop()
print(json.dumps(ids))
"""


@on_sqlite
@pytest.mark.slow
@CONNECT_TIMEOUT
def test_write_once_works_on_spark_connect(
    make_store: Make, database: str, database_url: str, tmp_path: Path, run_program: Callable[..., str]
) -> None:
    import json

    path = make_store(Orders=10)
    with connect_port():
        ids = json.loads(run_program(CONNECT, path, tmp_path).splitlines()[-1])
    assert orders_in(database_url) == sorted(expected(10) * 2)
    batches = rows_of(database_url, "SELECT query_id, group_name, target, row_count FROM rmq_batch ORDER BY group_name")
    assert batches == [(ids[0], "function", "write", 10), (ids[1], "table", "orders", 10)]
