"""Send-backs to a cluster: tasks of the sink called directly, and batches of `consume`, against simulated brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.retries import SCHEDULE, SimulatedRetries
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.retry.consumed_from import consumed_from
from pyspark_rmq.retry.handler_runner import HandlerRunner
from pyspark_rmq.source import DefaultSource
from rmq_store.cluster import SendBackReport
from rmq_store.errors import UsageError

FAILED = StructType(
    [
        StructField("brokerName", StringType()), StructField("commitLogOffset", LongType()),
        StructField("msgId", StringType()), StructField("delayLevel", IntegerType()),
        StructField("errorClass", StringType()),
    ]
)  # fmt: skip


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as brokers:
        yield brokers
        cluster_pool.close_unused()


@pytest.fixture
def retries(brokers: SimulatedCluster) -> list[SimulatedRetries]:
    return [SimulatedRetries(broker) for broker in brokers.brokers.values()]


@pytest.fixture
def task() -> Iterator[Callable[[int, int], None]]:
    """Make this process a task: `task(partition, batch)`."""

    def become(partition: int, batch: int) -> None:
        context = TaskContext._getOrCreate()
        context._partitionId = partition
        context._localProperties = {"sql.streaming.queryId": "q1", "streaming.sql.batchId": str(batch)}

    yield become
    TaskContext._setTaskContext(None)


def options(brokers: SimulatedCluster, tmp_path: Path, **given: str) -> dict[str, str]:
    return {
        "nameServer": brokers.name_server, "sendBack": "g", "settleTime": "0", "markerPath": str(tmp_path)
    } | given  # fmt: skip


def rows(retries: list[SimulatedRetries], error: str | None = "ValueError") -> pa.RecordBatch:
    """A message of each broker, both at the same commit-log offset."""
    found = [one.store("Orders", 0, b"bill", {"UNIQ_KEY": "A" * 32}) for one in retries]
    assert len({message.commit_log_offset for message in found}) == 1
    return pa.RecordBatch.from_pylist(
        [
            {
                "brokerName": one.broker.name, "commitLogOffset": message.commit_log_offset, "msgId": message.msg_id,
                "delayLevel": None, "errorClass": error,
            }
            for one, message in zip(retries, found, strict=True)
        ],
        pa.schema(
            [("brokerName", pa.string()), ("commitLogOffset", pa.int64()), ("msgId", pa.string()),
             ("delayLevel", pa.int32()), ("errorClass", pa.string())]
        ),
    )  # fmt: skip


def stream_writer(brokers: SimulatedCluster, tmp_path: Path, **given: str) -> Any:
    return DefaultSource(options(brokers, tmp_path, **given)).streamWriter(FAILED, overwrite=False)


def test_a_task_that_runs_again_sends_nothing_back_twice(
    brokers: SimulatedCluster, retries: list[SimulatedRetries], task: Any, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    failed = rows(retries)
    writer = stream_writer(brokers, tmp_path)
    task(0, 7)
    assert writer.write(iter([failed])).result == SendBackReport(2, 0, 0, {})  # type: ignore[attr-defined]
    again = writer.write(iter([failed]))
    assert again.result == SendBackReport(0, 2, 0, {})  # type: ignore[attr-defined]
    with caplog.at_level("INFO"):
        writer.commit([again, None], 7)
    assert "2 messages of g were sent back by an earlier try" in caplog.text
    task(0, 8)
    assert writer.write(iter([failed])).result.rows == 2, "another batch"  # type: ignore[attr-defined]
    (copy, _) = retries[0].messages(SCHEDULE)
    assert copy.properties["PYRMQ_ERROR_CLASS"] == "ValueError"
    assert (copy.properties["PYRMQ_QUERY_ID"], copy.properties["PYRMQ_BATCH_ID"]) == ("q1", "7")


def test_a_batch_write_with_txn_options_is_checked_and_one_without_is_not(
    brokers: SimulatedCluster, retries: list[SimulatedRetries], task: Any, tmp_path: Path
) -> None:
    failed = rows(retries, None)
    task(0, 0)
    given = options(brokers, tmp_path, txnAppId="job", txnVersion="1")
    for expected in (2, 0):
        writer = DefaultSource(given).writer(FAILED, overwrite=False)
        assert writer.write(iter([failed])).result.rows == expected  # type: ignore[attr-defined]
    del given["txnAppId"], given["txnVersion"], given["settleTime"], given["markerPath"]
    writer = DefaultSource(given).writer(FAILED, overwrite=False)
    assert writer.write(iter([failed])).result.rows == 2  # type: ignore[attr-defined]
    assert len(retries[0].messages(SCHEDULE)) == 2


def test_options_reach_the_engine(brokers: SimulatedCluster, tmp_path: Path) -> None:
    given = options(brokers, tmp_path, maxReconsumeTimes="3", sendTimeout="5s")
    settings = DefaultSource(given).streamWriter(FAILED, overwrite=False).sink.settings()  # type: ignore[attr-defined]
    assert (settings.group, settings.max_reconsume_times, settings.settle_ms) == ("g", 3, 0)
    assert (settings.send_timeout_ms, settings.record_path, settings.replay_check) == (5_000, str(tmp_path), True)


@pytest.mark.parametrize(("given", "expected_ms"), [({}, 180_000), ({"brokerAwayTimeout": "90s"}, 90_000)])
def test_one_bound_for_brokers_that_are_away_reaches_the_engine(
    brokers: SimulatedCluster, tmp_path: Path, given: dict[str, str], expected_ms: int
) -> None:
    """Longer than a restart, and not the time of a send."""
    send_backs = DefaultSource(options(brokers, tmp_path, **given)).streamWriter(FAILED, overwrite=False)
    assert send_backs.sink.settings().patience_ms == expected_ms  # type: ignore[attr-defined]
    rows_options = {"nameServer": brokers.name_server, "topic": "Orders", **given}
    schema = StructType([StructField("body", BinaryType())])
    settings = DefaultSource(rows_options).streamWriter(schema, overwrite=False).sink.settings()  # type: ignore[attr-defined]
    assert (settings.patience_ms, settings.pipeline.away_timeout_ms) == (expected_ms, expected_ms)
    assert settings.pipeline.send_timeout_ms == 60_000


def test_rows_without_the_name_of_their_broker_are_refused(brokers: SimulatedCluster, tmp_path: Path) -> None:
    source = DefaultSource(options(brokers, tmp_path))
    with pytest.raises(UsageError, match="sendBack needs the column brokerName as it was read"):
        source.streamWriter(StructType(FAILED.fields[1:]), overwrite=False)
    with pytest.raises(UsageError, match="use mode append"):
        source.streamWriter(FAILED, overwrite=True)


# -- consume ----------------------------------------------------------------------------------------------------------


def test_messages_of_two_brokers_at_one_commit_log_offset_are_two_messages(
    brokers: SimulatedCluster, retries: list[SimulatedRetries]
) -> None:
    place = consumed_from(None, {"nameServer": brokers.name_server}, "consume")
    batch = rows(retries).append_column("reconsumeTimes", pa.array([0, 0], pa.int32()))
    runner = HandlerRunner(lambda row: "DLQ", "row", place.location, (*place.columns, "reconsumeTimes"), 16)
    (answer,) = runner(iter([batch]))
    assert answer.column("result").to_pylist() == ["DLQ", "DLQ"]
    twice = pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()[0]
    with pytest.raises(UsageError, match="2 rows have the commitLogOffset"):
        list(runner(iter([twice])))


def test_consume_takes_a_store_or_a_cluster(tmp_path: Path) -> None:
    assert consumed_from(str(tmp_path), None, "consume").sink_options == {"path": str(tmp_path), "repeatable": "false"}
    place = consumed_from(None, {"nameServer": "ns:9876", "settleTime": "1s"}, "consume")
    assert place.sink_options == {"nameServer": "ns:9876", "settleTime": "1s"}
    assert list(place.columns) == ["brokerName", "commitLogOffset", "msgId"]
    for path, given, complaint in (
        (None, None, "consume needs path=, the directory of a store, or options= with the option nameServer"),
        ("/s", {"nameServer": "ns:9876"}, "path and options of consume exclude each other"),
        (None, {"settleTime": "1s"}, "options of consume must have the option nameServer"),
        (None, {"nameServer": "ns:9876", "topic": "T"}, "option topic is not possible with sendBack"),
    ):
        with pytest.raises(UsageError, match=complaint):
            consumed_from(path, given, "consume")
