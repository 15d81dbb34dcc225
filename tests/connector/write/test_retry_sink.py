"""Sending rows back: what tasks stage, what the driver commits, and what refuses to be sent back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import IntegerType, StructField, StructType

from pyspark_rmq.schema.schema import READABLE
from pyspark_rmq.source import DefaultSource
from pyspark_rmq.write.send_back_rows import send_back_rows
from rmq_store import (
    ClockFile,
    MarkerError,
    NotAStoreError,
    ResponseError,
    Store,
    StoreConfig,
    SubscriptionGroup,
    UsageError,
    failure,
)

Make = Callable[..., Any]
NOW_MS = 1_700_000_000_000
SMALL = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=500,
    max_index_num=2000,
)
PLACE = ("commitLogOffset", "msgId")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that stands at NOW_MS: topic Orders, one queue, bodies 0 to 9."""
    path = tmp_path / "store"
    with Store.open(path, create=True, config=SMALL) as store:
        store.create_topic("Orders", 1)
    ClockFile.create(path / "pyrmq" / "clock", NOW_MS)
    with Store.open(path) as store:
        store.append(pa.record_batch({"body": [str(n).encode() for n in range(10)]}), "Orders")
    return path


@pytest.fixture
def task() -> Iterator[Callable[..., None]]:
    """Make this process the task `task(partition, attempt, batch)` of query q1; without a batch, of no query."""

    def become(partition: int = 0, attempt: int = 0, batch: int | None = 0) -> None:
        context = TaskContext._getOrCreate()
        context._partitionId = partition
        context._taskAttemptId = attempt
        query = {"sql.streaming.queryId": "q1", "streaming.sql.batchId": str(batch), "spark.jobGroup.id": "run-1"}
        context._localProperties = query if batch is not None else {}

    become()
    yield become
    TaskContext._setTaskContext(None)


def messages(path: Path, topic: str) -> list[dict[str, Any]]:
    with Store.open(path, read_only=True) as store:
        if topic not in store.topics():
            return []
        queues = store.queue_ranges(topic).items()
        return [row for queue, ends in queues for part in store.read(topic, queue, *ends) for row in part.to_pylist()]


def bodies(path: Path, topic: str) -> list[str]:
    return sorted(row["body"].decode() for row in messages(path, topic))


def deliver(path: Path, ms: int) -> None:
    ClockFile(path / "pyrmq" / "clock").advance(ms)
    with Store.open(path) as store:
        store.schedule.deliver_due()


def failed(path: Path, *numbers: int, topic: str = "Orders", **more: Any) -> pa.RecordBatch:
    """Rows of the sink that name the messages with these bodies."""
    found = {int(row["body"]): row for row in messages(path, topic)}
    columns = {name: pa.array([found[n][name] for n in numbers]) for name in PLACE}
    return pa.record_batch(columns | more)


def writer(path: Path, rows: pa.RecordBatch, kind: str = "stream write", **options: str) -> Any:
    source = DefaultSource({"path": str(path), "sendBack": "cg"} | options)
    level = StructField("delayLevel", IntegerType())
    schema = StructType([level if name == "delayLevel" else READABLE[name] for name in rows.schema.names])
    return (source.streamWriter if kind == "stream write" else source.writer)(schema, False)


def send(path: Path, rows: pa.RecordBatch, batch: int = 0, **options: str) -> None:
    planned = writer(path, rows, **options)
    planned.commit([planned.write(iter([rows]))], batch)


@pytest.mark.statement("B14", "C04", "C06", "C11", "D01")
def test_rows_come_back_after_their_delay_or_are_dead(path: Path, task: Make) -> None:
    levels = pa.array([None, 0, 1, -1], pa.int32())
    send(path, failed(path, 1, 2, 3, 4, delayLevel=levels))
    assert bodies(path, "%DLQ%cg") == ["4"]
    deliver(path, 1_000)
    assert bodies(path, "%RETRY%cg") == ["3"]
    deliver(path, 9_000)
    assert bodies(path, "%RETRY%cg") == ["1", "2", "3"]
    assert bodies(path, "Orders") == [str(n) for n in range(10)]  # each retry is a new message
    (dead,) = messages(path, "%DLQ%cg")
    assert not [name for name, _ in dead["properties"] if name.startswith("PYRMQ")]  # nobody said why


def test_a_repeated_batch_adds_nothing_and_an_older_one_is_an_error(path: Path, task: Make) -> None:
    for batch in (0, 0, 1, 1):
        task(0, batch * 10, batch)
        send(path, failed(path, batch), batch)
    deliver(path, 10_000)
    assert bodies(path, "%RETRY%cg") == ["0", "1"]
    with pytest.raises(MarkerError, match="other rows"):
        send(path, failed(path, 1, 2), 1)
    send(path, failed(path, 1, 2), 1, repeatable="false")
    with pytest.raises(MarkerError, match="rewound or copied"):
        send(path, failed(path, 0), 0)
    send(path, failed(path, 5), 0, sendBack="cg_other")  # another group's failures are its own
    deliver(path, 10_000)
    assert (bodies(path, "%RETRY%cg"), bodies(path, "%RETRY%cg_other")) == (["0", "1"], ["5"])
    assert not list((path / "pyrmq" / "staging").rglob("*.arrow"))


def test_a_batch_write_is_repeated_unless_it_has_a_transaction(path: Path, task: Make) -> None:
    def write(*numbers: int, **options: str) -> None:
        rows = failed(path, *numbers)
        planned = writer(path, rows, "batch write", **options)
        planned.commit([planned.write(iter([rows]))])

    write(1)
    write(1)
    for version in ("1", "1", "2"):
        write(2, txnAppId="nightly", txnVersion=version)
    with pytest.raises(MarkerError):
        write(3, txnAppId="nightly", txnVersion="1")
    deliver(path, 10_000)
    assert bodies(path, "%RETRY%cg") == ["1", "1", "2", "2"]


@pytest.mark.parametrize(("most", "dead"), [(None, []), ("1", ["2"]), ("0", ["2", "3"])])
def test_max_reconsume_times_is_the_groups_unless_given(
    path: Path, task: Make, most: str | None, dead: list[str]
) -> None:
    send(path, failed(path, 2), 0)
    deliver(path, 10_000)
    again = failed(path, 2, topic="%RETRY%cg")
    rows = pa.Table.from_batches([again, failed(path, 3)]).combine_chunks().to_batches()[0]
    send(path, rows, 1, **({} if most is None else {"maxReconsumeTimes": most}))
    assert bodies(path, "%DLQ%cg") == dead


def test_reasons_travel_and_first_ones_stay(path: Path, task: Make) -> None:
    def why(text: str | None) -> dict[str, Any]:
        return {"errorClass": pa.array([text], pa.string()), "errorMessage": pa.array([f"{text}!"])}

    def reasons(topic: str) -> dict[str, str]:
        (row,) = messages(path, topic)
        return {name: value for name, value in row["properties"] if name.startswith("PYRMQ")}

    send(path, failed(path, 7, **why("ValueError")), 0)
    deliver(path, 10_000)
    first = reasons("%RETRY%cg")
    assert first == {
        failure.ERROR_CLASS: "ValueError",
        failure.ERROR_MESSAGE: "ValueError!",
        failure.QUERY_ID: "q1",
        failure.BATCH_ID: "0",
        failure.FIRST_FAILURE_MS: str(NOW_MS),
        failure.LAST_FAILURE_MS: str(NOW_MS),
        failure.ORIGIN_TOPIC: "Orders",
        failure.ORIGIN_QUEUE_ID: "0",
        failure.ORIGIN_QUEUE_OFFSET: "7",
    }
    task(0, 1, 1)
    rows = failed(path, 7, topic="%RETRY%cg", delayLevel=pa.array([-1], pa.int32()), **why("KeyError"))
    send(path, rows, 1)
    last = {failure.ERROR_CLASS: "KeyError", failure.ERROR_MESSAGE: "KeyError!", failure.BATCH_ID: "1"}
    assert reasons("%DLQ%cg") == first | last | {failure.LAST_FAILURE_MS: str(NOW_MS + 10_000)}


def test_a_reason_too_long_for_the_properties_is_cut(path: Path, task: Make) -> None:
    # MessageExtEncoder#encode: 32767 bytes in all
    text = pa.array(["\u20ac" * 30_000])
    send(path, failed(path, 7, delayLevel=pa.array([-1], pa.int32()), errorMessage=text))
    (row,) = messages(path, "%DLQ%cg")
    kept = dict(row["properties"])
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in row["properties"])
    assert 32_000 < size <= 32_767
    assert set(kept[failure.ERROR_MESSAGE]) == {"\u20ac"}
    assert kept[failure.ORIGIN_QUEUE_OFFSET] == "7"


def test_rows_say_what_they_say_and_no_more() -> None:
    batch = pa.record_batch(
        {
            "commitLogOffset": pa.array([1, 2, 3]),
            "msgId": pa.array(["a", "b", "c"]),
            "errorClass": pa.array(["E", None, None]),
            "stackHash": pa.array([None, None, "h"]),
            "lastFailureTime": pa.array([None, None, datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        }
    )
    rows = send_back_rows(batch, batch.schema.names, {failure.QUERY_ID: "q", failure.BATCH_ID: None}, NOW_MS)
    assert rows.schema.names == ["commitLogOffset", "msgId", "properties"]
    names = [[name for name, _ in value or ()] for value in rows.column("properties").to_pylist()]
    assert [len(set(each)) for each in names] == [len(each) for each in names], "those of a row that says nothing"
    said = [value and {n: v for n, v in value if v is not None} for value in rows.column("properties").to_pylist()]
    now, then = str(NOW_MS), str(1_767_225_600_000)
    assert said == [
        {
            failure.ERROR_CLASS: "E", failure.QUERY_ID: "q",
            failure.FIRST_FAILURE_MS: now, failure.LAST_FAILURE_MS: now,
        },
        None,  # nothing is known of it: its bytes are those of RocketMQ
        {
            failure.STACK_HASH: "h", failure.QUERY_ID: "q",
            failure.FIRST_FAILURE_MS: then, failure.LAST_FAILURE_MS: then,
        },
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        ({"msgId": ["ABCD"]}, UsageError, "row 0: the message at .* is .*, not 'ABCD'"),
        ({"msgId": pa.array([None], pa.string())}, UsageError, "row 0: column 'msgId' is null"),
        ({"commitLogOffset": pa.array([None], pa.int64())}, UsageError, "row 0: column 'commitLogOffset' is null"),
        ({"commitLogOffset": pa.array([1])}, ResponseError, "row 0: look message by offset failed, 1"),
    ],
)
def test_a_row_that_names_no_message_of_this_store_is_refused_and_nothing_is_sent_back(
    path: Path, task: Make, spoil: dict[str, Any], error: type[Exception], message: str
) -> None:
    rows = failed(path, 3)
    columns = {name: rows.column(name) for name in PLACE} | spoil
    with pytest.raises(error, match=message):
        send(path, pa.record_batch(columns))
    assert not list((path / "pyrmq" / "staging").rglob("*.arrow"))
    deliver(path, 10_000)
    assert bodies(path, "%RETRY%cg") == []


def test_there_is_nothing_to_send_back_to_where_no_store_is(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        writer(tmp_path / "elsewhere", failed(path, 1))
    assert not (tmp_path / "elsewhere").exists()


def test_output_modes_that_replace_are_refused(path: Path) -> None:
    source = DefaultSource({"path": str(path), "sendBack": "cg"})
    for make in (source.streamWriter, source.writer):
        with pytest.raises(UsageError, match="nothing is replaced"):
            make(READABLE, True)


def test_a_task_outside_of_a_query_knows_no_query(path: Path, task: Make) -> None:
    task(batch=None)
    rows = failed(path, 3, delayLevel=pa.array([-1], pa.int32()), errorClass=pa.array(["E"]))
    planned = writer(path, rows, "batch write")
    planned.commit([planned.write(iter([rows]))])
    (dead,) = messages(path, "%DLQ%cg")
    assert failure.ERROR_CLASS in dict(dead["properties"])
    assert not {failure.QUERY_ID, failure.BATCH_ID} & set(dict(dead["properties"]))


def test_a_batch_write_makes_the_dead_letter_topic_as_a_broker_does(path: Path, task: Make) -> None:
    task(batch=None)
    rows = failed(path, 3, delayLevel=pa.array([-1], pa.int32()))
    planned = writer(path, rows, "batch write")
    planned.commit([planned.write(iter([rows]))])
    with Store.open(path, read_only=True) as store:
        assert store.topics()["%DLQ%cg"].write_queue_nums == 1


@pytest.mark.parametrize("kind", ["stream write", "batch write"])
def test_a_message_that_a_join_made_two_rows_of_is_refused(path: Path, task: Make, kind: str) -> None:
    rows = [
        failed(path, *numbers, delayLevel=pa.array(levels, pa.int32()))
        for numbers, levels in (((1, 2, 3), [1, 2, 1]), ((4, 2), [1, 1]))
    ]
    planned = writer(path, rows[0], kind)
    reports = []
    for partition, part in enumerate(rows):
        task(partition, partition)
        reports.append(planned.write(iter([part.slice(n, 1) for n in range(part.num_rows)])))
    number = () if kind == "batch write" else (0,)
    with pytest.raises(UsageError, match="partition 0, row 1 and partition 1, row 1 both name the message"):
        planned.commit(reports, *number)
    deliver(path, 10_000)
    assert bodies(path, "%RETRY%cg") == []


def test_a_group_that_drops_what_is_sent_back_is_warned_of(
    path: Path, task: Make, caplog: pytest.LogCaptureFixture
) -> None:
    send(path, failed(path, 1))
    assert not caplog.records
    with Store.open(path) as store:
        store.create_group(SubscriptionGroup("none", retry_queue_nums=0))
    send(path, failed(path, 2), sendBack="none")
    assert [record.getMessage() for record in caplog.records if "'none' has retryQueueNums=0" in record.getMessage()]
    assert bodies(path, "%RETRY%none") == bodies(path, "%DLQ%none") == []
