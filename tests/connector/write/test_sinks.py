"""The four sinks behind the two writers of Spark: which one a write gets, and what all of them promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_rmq.access import cluster_pool
from pyspark_rmq.source import DefaultSource
from pyspark_rmq.write.cluster_sink import ClusterRows, ClusterSendBacks
from pyspark_rmq.write.sink import BatchWrite, MicroBatch, TaskReport
from pyspark_rmq.write.store_sink import StoreRows, StoreSendBacks, _write_id
from rmq_store import Store
from rmq_store.server.broker_server import BrokerServer

Make = Callable[..., Any]

VALUE = StructType([StructField("value", StringType())])
FAILED = StructType(
    [StructField("brokerName", StringType()), StructField("commitLogOffset", LongType()),
     StructField("msgId", StringType())]
)  # fmt: skip
NOWHERE = {"nameServer": "127.0.0.1:1"}
QUERY = "0c0e8e2e-1df1-4f43-a5c5-6a1d7a1c1a11"


@pytest.fixture
def task() -> Iterator[Callable[..., None]]:
    def become(batch: int, attempt: int = 1) -> None:
        context = TaskContext._getOrCreate()
        context._partitionId, context._taskAttemptId = 0, attempt
        context._localProperties = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": str(batch)}

    yield become
    TaskContext._setTaskContext(None)


@pytest.fixture(params=["store", "cluster"])
def place(request: pytest.FixtureRequest, make_store: Make) -> Iterator[tuple[Path, dict[str, str]]]:
    """A store with the queues of topic T, and the options that lead there: its path, or its broker."""
    path = make_store(T=0)
    if request.param == "store":
        yield path, {"path": str(path)}
        return
    with BrokerServer(path) as server:
        yield path, {"nameServer": server.address}
        cluster_pool.close_unused()


def checked(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a write whose repetitions are found, without the wait for what brokers may still get."""
    return dict(given) if "path" in given else {**given, "settleTime": "0"}


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array(values, pa.string())})


def bodies(path: Path) -> list[bytes]:
    with Store.open(path, read_only=True) as store:
        ranges = store.queue_ranges("T").items()
        return sorted(
            body for queue_id, limits in ranges for batch in store.read("T", queue_id, *limits, columns=["body"])
            for body in batch.column(0).to_pylist()
        )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "schema", "expected"),
    [
        ({"path": None, "topic": "T"}, VALUE, StoreRows),
        ({"path": None, "sendBack": "cg"}, FAILED, StoreSendBacks),
        (NOWHERE | {"topic": "T"}, VALUE, ClusterRows),
        (NOWHERE | {"sendBack": "cg"}, FAILED, ClusterSendBacks),
    ],
)
def test_options_choose_the_sink_of_a_batch_and_of_a_stream(
    make_store: Make, given: Mapping[str, str | None], schema: StructType, expected: type
) -> None:
    source = DefaultSource({name: str(make_store()) if value is None else value for name, value in given.items()})
    for make in (source.writer, source.streamWriter):
        assert type(make(schema, overwrite=False).sink) is expected  # type: ignore[attr-defined]


def test_a_batch_that_spark_repeats_is_stored_once(
    place: tuple[Path, dict[str, str]], task: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    path, given = place
    caplog.set_level("INFO")
    for attempt in (1, 2):
        writer = DefaultSource(checked(given) | {"topic": "T"}).streamWriter(VALUE, overwrite=False)
        task(7, attempt)
        in_task = cloudpickle.loads(cloudpickle.dumps(writer))
        report = cloudpickle.loads(cloudpickle.dumps(in_task.write(rows("a", "b"))))
        cloudpickle.loads(cloudpickle.dumps(writer)).commit([report], 7)
    assert bodies(path) == [b"a", b"b"]
    assert "stored by an earlier try" in caplog.text or "was committed before" in caplog.text


def test_a_batch_write_with_a_transaction_is_stored_once_and_one_without_each_time(
    place: tuple[Path, dict[str, str]], task: Callable[..., None]
) -> None:
    path, given = place
    once = checked(given) | {"txnAppId": "app", "txnVersion": "3"}
    for value, options in (("a", once), ("a", once), ("b", given), ("b", given)):
        task(0)
        writer = DefaultSource(options | {"topic": "T"}).writer(VALUE, overwrite=False)
        writer.commit([writer.write(rows(value))])  # type: ignore[arg-type]
    assert bodies(path) == [b"a", b"b", b"b"]


def test_an_aborted_write_to_a_store_leaves_nothing_and_one_to_a_cluster_what_it_sent(
    place: tuple[Path, dict[str, str]], task: Callable[..., None]
) -> None:
    path, given = place
    task(0)
    source = DefaultSource(given | {"topic": "T"})
    batch = source.writer(VALUE, overwrite=False)
    batch.write(rows("a"))  # type: ignore[arg-type]
    batch.abort([])  # a task that was killed has not reported
    stream = DefaultSource(checked(given) | {"topic": "T"}).streamWriter(VALUE, overwrite=False)
    stream.abort([stream.write(rows("b")), None], 0)  # type: ignore[arg-type]
    assert bodies(path) == ([] if "path" in given else [b"a", b"b"])
    assert not list((path / "pyrmq" / "staging").rglob("*.arrow"))


def test_names_under_which_batches_are_known_are_those_of_older_versions(make_store: Make) -> None:
    """In a store's units, in names of staged files, in records at brokers: a batch may be repeated after an update."""
    stream, batch = MicroBatch(QUERY, 7, "run-1"), BatchWrite("a1")
    transaction = {"txnAppId": "app", "txnVersion": "3"}

    def sink(given: Mapping[str, str], schema: StructType) -> Any:
        return DefaultSource(dict(given)).writer(schema, overwrite=False).sink  # type: ignore[attr-defined]

    at_brokers = {
        ("topic", "T"): (f"query/{QUERY}", "write/a1", "txn/T/app"),
        ("sendBack", "cg"): (f"back/cg/{QUERY}", "back/cg/a1", "back/cg/app"),
    }
    for (option, value), (of_query, of_write, of_transaction) in at_brokers.items():
        schema = VALUE if option == "topic" else FAILED
        plain, once = (sink(NOWHERE | {option: value} | more, schema) for more in ({}, transaction))
        assert (plain._write_of(stream), plain._write_of(batch)) == ((of_query, 7), (of_write, 0))
        assert once._write_of(batch) == (of_transaction, 3)

    assert (_write_id(stream), _write_id(batch)) == (f"{QUERY}-7-run-1", "batch-a1")
    path = str(make_store())
    in_store = {
        ("topic", "T"): (("sink", QUERY, 7), ("txn", "T/app", 3)),
        ("sendBack", "cg"): (("sendback", f"cg/{QUERY}", 7), ("sendback", "cg/app", 3)),
    }
    for (option, value), (of_query_unit, of_transaction_unit) in in_store.items():
        schema = VALUE if option == "topic" else FAILED
        plain, once = (sink({"path": path, option: value} | more, schema) for more in ({}, transaction))
        of_stream, of_batch = TaskReport(stream, None), TaskReport(batch, None)
        found = [plain._marker_of([of_stream], 7)[0], once._marker_of([of_batch], None)[0]]
        assert [(marker.purpose, marker.key, marker.value) for marker in found] == [of_query_unit, of_transaction_unit]
        assert plain._marker_of([of_batch], None)[0] is None
