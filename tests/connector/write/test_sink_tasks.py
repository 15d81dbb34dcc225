"""Tasks and commits of the sink called directly, in the orders that Spark shows only by accident."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_rmq.schema.schema import READABLE
from pyspark_rmq.source import DefaultSource
from pyspark_rmq.write import store_sink
from rmq_store import (
    MarkerError,
    NotAStoreError,
    StagingError,
    Store,
    StoreConfig,
    StoreFailedError,
    StoreFullError,
    StoreLockedError,
    UnknownTopicError,
    UsageError,
    failure,
)
from rmq_store.files import durable
from rmq_store.files.locks.state_page import StatePage
from rmq_store.log.recovery import opening

Make = Callable[..., Any]
VALUE = StructType([StructField("value", StringType())])


@pytest.fixture
def task() -> Iterator[Callable[..., None]]:
    """Make this process the task `task(partition, attempt, batch, run)` of query q1."""

    def become(partition: int, attempt: int, batch: int = 0, run: str = "run-1") -> None:
        context = TaskContext._getOrCreate()
        context._partitionId = partition
        context._taskAttemptId = attempt
        context._localProperties = {
            "sql.streaming.queryId": "q1",
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": run,
        }

    yield become
    TaskContext._setTaskContext(None)


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array(values, pa.string())})


def writer(path: Path, kind: str = "stream write", **options: str) -> Any:
    source = DefaultSource({"path": str(path), "topic": "T"} | options)
    return (source.streamWriter if kind == "stream write" else source.writer)(VALUE, False)


def test_a_zombie_attempt_changes_nothing_before_or_after_the_commit(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    path = make_store()
    task(0, 1)
    zombie = writer(path).write(rows("a", "b"))
    task(0, 2)
    second = writer(path).write(rows("a", "b"))
    writer(path).commit([second], 0)
    assert bodies(path, "T") == ["a", "b"]
    assert zombie != second
    # it goes on after the commit, and even its whole driver commits once more
    task(0, 1)
    late = writer(path).write(rows("a", "b"))
    writer(path).commit([late], 0)
    assert bodies(path, "T") == ["a", "b"]
    assert not list((path / "pyrmq" / "staging").rglob("*.arrow"))


def test_a_repeated_batch_with_other_rows_is_an_error_unless_the_query_says_so(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    path = make_store()
    task(0, 1)
    writer(path).commit([writer(path).write(rows("a"))], 0)
    with pytest.raises(MarkerError, match=r"other rows .*repeatable=false"):
        writer(path).commit([writer(path).write(rows("b"))], 0)
    writer(path).commit([writer(path, repeatable="false").write(rows("b"))], 1)
    writer(path, repeatable="false").commit([writer(path).write(rows("c"))], 1)
    assert bodies(path, "T") == ["a", "b"]


def test_a_transaction_belongs_to_the_topic_that_is_written_to(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    path = make_store()
    task(0, 1)

    def write(value: str, **options: str) -> None:
        planned = writer(path, "batch write", txnAppId="nightly", txnVersion="3", **options)
        planned.commit([planned.write(rows(value))])

    write("a", topic="Left")
    write("b", topic="Right")
    write("b", topic="Right")
    assert (bodies(path, "Left"), bodies(path, "Right")) == (["a"], ["b"])
    with pytest.raises(MarkerError, match=r"other rows .*repeatable=false"):
        write("c", topic="Right")
    write("c", topic="Right", repeatable="false")
    assert bodies(path, "Right") == ["b"]


def test_an_older_batch_is_an_error(make_store: Make, task: Callable[..., None], bodies: Make) -> None:
    path = make_store()
    for batch in (0, 1):
        task(0, batch, batch)
        writer(path).commit([writer(path).write(rows(str(batch)))], batch)
    task(0, 5, 0)
    with pytest.raises(MarkerError, match="rewound or copied") as raised:
        writer(path).commit([writer(path).write(rows("0"))], 0)
    assert "repeatable" not in str(raised.value)
    assert bodies(path, "T") == ["0", "1"]


def test_a_commit_with_a_missing_file_writes_nothing(make_store: Make, task: Callable[..., None], bodies: Make) -> None:
    path = make_store()
    reports = []
    for partition in range(3):
        task(partition, partition)
        reports.append(writer(path).write(rows(f"p{partition}")))
    (path / "pyrmq" / "staging" / reports[1].result.name).unlink()
    with pytest.raises(StagingError):
        writer(path).commit(reports, 0)
    assert bodies(path, "T") == []


def test_a_commit_without_the_report_of_a_task_writes_nothing(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    path = make_store()
    task(0, 1)
    report = writer(path).write(rows("a"))
    with pytest.raises(StagingError, match="1 of 2 tasks"):
        writer(path).commit([report, None], 0)
    with pytest.raises(StagingError, match="1 of 2 tasks"):
        writer(path, "batch write").commit([None, report])
    assert bodies(path, "T") == []


def test_a_task_without_rows_stages_nothing_and_a_batch_without_rows_writes_nothing(
    make_store: Make, task: Callable[..., None]
) -> None:
    path = make_store()
    with Store.open(path, read_only=True) as store:
        before = store.log_range()
    task(0, 1)
    empty = writer(path).write(iter([pa.record_batch({"value": pa.array([], pa.string())})]))
    assert empty.result is None
    writer(path).commit([empty], 0)
    with Store.open(path, read_only=True) as store:
        assert store.log_range() == before


def test_a_task_that_fails_leaves_nothing_behind(make_store: Make, task: Callable[..., None]) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows("a")
        raise RuntimeError("the query fails here")

    path = make_store()
    task(0, 1)
    with pytest.raises(RuntimeError):
        writer(path).write(broken())
    assert not list((path / "pyrmq" / "staging").rglob("*.arrow"))


def test_bodies_are_compressed_from_the_given_size_on(make_store: Make, task: Callable[..., None]) -> None:
    path = make_store()
    task(0, 1)
    planned = writer(path, "batch write", compressMsgBodyOverHowmuch="4096")
    planned.commit([planned.write(rows("a" * 4095, "b" * 4096))])
    with Store.open(path, read_only=True) as store:
        stored = [
            row
            for queue_id, limits in store.queue_ranges("T").items()
            for batch in store.read("T", queue_id, *limits, columns=["body", "sysFlag"], raw_body=True)
            for row in batch.to_pylist()
        ]
    kept, compressed = sorted(stored, key=lambda row: row["sysFlag"] & 1)
    assert kept["body"] == b"a" * 4095
    assert compressed["sysFlag"] & 1 == 1 and len(compressed["body"]) < 1000


def test_without_auto_creation_an_unknown_topic_is_refused(
    tmp_path: Path, task: Callable[..., None], bodies: Make
) -> None:
    path = tmp_path / "strict"
    with Store.open(path, create=True, config=StoreConfig(auto_create_topic_enable=False)) as store:
        store.create_topic("Known", 2)
    task(0, 1)
    known = writer(path, "batch write", topic="Known")
    known.commit([known.write(rows("a"))])
    assert bodies(path, "Known") == ["a"]
    unknown = writer(path, "batch write", topic="Unknown")
    with pytest.raises(UnknownTopicError, match=r"no topic 'Unknown'.*autoCreateTopicEnable is false"):
        unknown.commit([unknown.write(rows("a"))])
    assert bodies(path, "Unknown") == []


def test_an_aborted_write_is_swept_and_the_one_beside_it_is_not(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    path = make_store()
    task(0, 1, run="run-1")
    old = writer(path).write(rows("a"))
    task(0, 1, run="run-2")
    new = writer(path).write(rows("a"))
    writer(path).abort([old, None], 0)
    writer(path).commit([new], 0)
    assert bodies(path, "T") == ["a"]
    batch = writer(path, "batch write")
    batch.write(rows("b"))
    batch.abort([None])
    assert not list((path / "pyrmq" / "staging").rglob("*.arrow"))


def test_a_task_on_a_host_without_the_store_says_so(
    make_store: Make, task: Callable[..., None], tmp_path: Path
) -> None:
    planned = writer(make_store())
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    task(0, 1)
    with pytest.raises(NotAStoreError, match="run the tasks where it is"):
        planned.write(rows("a"))


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_a_stream_does_not_go_on_into_a_new_store_when_its_own_is_gone(
    make_store: Make, task: Callable[..., None], bodies: Make, tmp_path: Path, is_mount_point: bool
) -> None:
    """Its batches were committed to an empty store that was made for them, and lost when the disk was mounted again."""
    path = make_store()
    task(0, 1)
    writer(path).commit([writer(path).write(rows("a"))], 0)
    path.rename(tmp_path / "unmounted")
    if is_mount_point:
        path.mkdir()
    task(0, 2, batch=1)
    with pytest.raises(NotAStoreError, match=r"the store is gone: this is batch 1 .* Mount it.* new checkpoint"):
        writer(path).write(rows("b"))
    assert path.exists() == is_mount_point and not list(tmp_path.glob("store/*"))
    if is_mount_point:
        path.rmdir()
    (tmp_path / "unmounted").rename(path)
    writer(path).commit([writer(path).write(rows("b"))], 1)
    assert bodies(path, "T") == ["a", "b"]
    # as the error says: it is made by hand
    path.rename(tmp_path / "unmounted")
    Store.open(path, create=True).close()
    task(0, 3, batch=2)
    writer(path).commit([writer(path).write(rows("c"))], 2)
    assert bodies(path, "T") == ["c"]


def test_the_store_of_a_stream_that_is_lost_between_tasks_and_commit_is_not_made_again(
    make_store: Make, task: Callable[..., None], tmp_path: Path
) -> None:
    path = make_store()
    task(0, 1)
    planned = writer(path)
    report = planned.write(rows("a"))
    path.rename(tmp_path / "unmounted")
    with pytest.raises(NotAStoreError):
        planned.commit([report], 0)
    assert not path.exists()


@pytest.mark.parametrize("values", [(), ("a",)])
def test_the_first_batch_of_a_stream_makes_a_missing_store_with_and_without_rows(
    task: Callable[..., None], bodies: Make, tmp_path: Path, values: tuple[str, ...]
) -> None:
    path = tmp_path / "mnt" / "new"
    planned = writer(path)
    assert not path.exists()
    task(0, 1)
    reports = [planned.write(rows(*values))]
    task(1, 2)
    reports.append(planned.write(iter([])))
    planned.commit(reports, 0)
    task(0, 3, batch=1)
    writer(path).commit([writer(path).write(rows("b"))], 1)
    assert bodies(path, "T") == [*values, "b"]


def test_tasks_of_a_first_batch_make_one_store_between_them(tmp_path: Path) -> None:
    """Spark runs them in several processes at once."""
    path = tmp_path / "new"
    program = f"""
import sys
from pyspark_rmq.access.store_writer import prepare_batch
from pyspark_rmq.options.options import sink_options
from rmq_store import Store
print("ready", flush=True)
sys.stdin.readline()
prepare_batch(sink_options({{"path": {str(path)!r}}}, "stream write"), 0)
with Store.open({str(path)!r}, read_only=True) as store:
    print(store.identity, flush=True)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    with contextlib.ExitStack() as stack:
        tasks = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
            )
            for _ in range(3)
        ]
        for process in tasks:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in tasks:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        identities = {process.communicate(timeout=60)[0] for process in tasks}
    assert [process.returncode for process in tasks] == [0, 0, 0]
    assert len(identities) == 1 and len(identities.pop()) > 10


def test_a_stream_is_refused_where_something_else_is_before_any_task_runs(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text("1,2")
    with pytest.raises(NotAStoreError):
        writer(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.csv"]


@pytest.mark.parametrize(
    ("properties", "is_table"),
    [
        ({"spark.sql.execution.id": "2", "spark.sql.execution.root.id": "1"}, True),
        ({"spark.sql.execution.id": "1", "spark.sql.execution.root.id": "1"}, False),
        ({"spark.sql.execution.id": "1"}, False),
        # foreachBatch
        ({"spark.sql.execution.id": "2", "spark.sql.execution.root.id": "1", "sql.streaming.queryId": "q1"}, False),
    ],
)
def test_a_write_that_is_part_of_making_a_table_is_refused_in_its_tasks(
    make_store: Make, task: Callable[..., None], properties: dict[str, str], is_table: bool
) -> None:
    path = make_store()
    task(0, 1)
    TaskContext._getOrCreate()._localProperties = properties
    planned = writer(path, "batch write")
    if not is_table:
        assert planned.write(rows("a")).result is not None
        return
    with pytest.raises(UsageError, match="saveAsTable and the like write nothing"):
        planned.write(rows("a"))
    assert not list(path.glob("pyrmq/staging/*"))


def test_reports_of_two_queries_are_never_mixed(make_store: Make, task: Callable[..., None]) -> None:
    path = make_store()
    task(0, 1)
    first = writer(path).write(rows("a"))
    TaskContext._getOrCreate()._localProperties["sql.streaming.queryId"] = "q2"
    second = writer(path).write(rows("b"))
    with pytest.raises(ValueError, match="more than one query"):
        writer(path).commit([first, second], 0)


def test_batches_of_two_queries_are_told_apart_though_their_numbers_are_one(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    path = make_store()
    task(0, 1)
    writer(path).commit([writer(path).write(rows("a"))], 0)
    TaskContext._getOrCreate()._localProperties["sql.streaming.queryId"] = "q2"
    writer(path).commit([writer(path).write(rows("b"))], 0)
    assert sorted(bodies(path, "T")) == ["a", "b"]


def test_the_reports_and_the_batch_writer_travel_between_processes(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    from pyspark import cloudpickle

    path = make_store()
    planned = writer(path, "batch write", txnAppId="a", txnVersion="1")
    in_task = cloudpickle.loads(cloudpickle.dumps(planned))
    task(0, 1)
    report = cloudpickle.loads(cloudpickle.dumps(in_task.write(rows("a"))))
    cloudpickle.loads(cloudpickle.dumps(planned)).commit([report])
    assert bodies(path, "T") == ["a"]


def staged(path: Path) -> list[str]:
    """The staging directories that have files."""
    return sorted({file.parent.name for file in (path / "pyrmq" / "staging").rglob("*.arrow")})


def test_what_a_killed_driver_staged_is_swept_by_the_next_commit_of_its_query_only(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    path = make_store()
    task(0, 1, batch=0, run="run-1")
    writer(path).write(rows("a"))  # and the driver dies before its commit
    task(0, 1, batch=1, run="run-9")
    writer(path).write(rows("later"))
    TaskContext._getOrCreate()._localProperties["sql.streaming.queryId"] = "q2"
    writer(path).write(rows("of another query"))
    assert staged(path) == ["q1-0-run-1", "q1-1-run-9", "q2-1-run-9"]
    task(0, 2, batch=0, run="run-2")
    writer(path).commit([writer(path).write(rows("a"))], 0)
    assert staged(path) == ["q1-1-run-9", "q2-1-run-9"]
    assert bodies(path, "T") == ["a"]


def test_the_files_of_a_live_attempt_are_not_swept_however_old_they_are(make_store: Make, task: Make) -> None:
    """Another process is in the middle of its rows; when it is dead, its files can go."""
    path = make_store()
    program = f"""
import os, sys, pyarrow as pa
from rmq_store import StagingArea
area = StagingArea.for_task({str(path)!r}, "batch-of-another", 0, 1, topic="T")
area.write(pa.record_batch({{"body": pa.array([b"x"])}}))
print("here", flush=True)
sys.stdin.read()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"here\n"
        directory = path / "pyrmq" / "staging" / "batch-of-another"
        for entry in [*directory.iterdir(), directory]:
            os.utime(entry, (1000, 1000))
        task(0, 1)
        writer(path).commit([writer(path).write(rows("a"))], 0)
        assert staged(path) == ["batch-of-another"]
        process.kill()
        process.wait()
        task(0, 2, batch=1)
        writer(path).commit([writer(path).write(rows("b"))], 1)
        assert staged(path) == []


def test_a_disk_that_is_full_at_any_moment_of_a_commit_leaves_nothing_and_the_batch_can_be_repeated(
    make_store: Make, task: Callable[..., None], bodies: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC at the k-th operation of the file layer, for every k until the commit passes."""
    path = make_store()
    seen = 0

    def full(operation: str, where: str) -> None:
        nonlocal seen
        if operation in ("write", "mkdir", "rename", "allocate") and "staging" not in where:
            seen += 1
            if seen == failing:
                raise OSError(28, "No space left on device")

    for failing in itertools.count(1):
        batch, value, seen = failing, f"value {failing}", 0
        task(0, 1, batch=batch)
        report = writer(path).write(rows(value))
        before = bodies(path, "T")
        monkeypatch.setattr(durable, "hook", full)
        try:
            writer(path).commit([report], batch)
            passed = True
        except (StoreFullError, StoreFailedError):
            passed = False
        monkeypatch.setattr(durable, "hook", None)
        if seen < failing:
            break
        found = bodies(path, "T")
        assert found in (before, sorted([*before, value]))  # all or nothing
        assert not passed or found != before
        task(0, 2, batch=batch)
        writer(path).commit([writer(path).write(rows(value))], batch)
        assert bodies(path, "T") == sorted([*before, value])
    assert failing > 3, failing


def no_room_for_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(operation: str, where: str) -> None:
        if where.endswith("/checkpoint"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "hook", full)


def no_append_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process appends when this one closes, and for long."""

    def locked(log: Any) -> None:
        raise StoreLockedError("append.lock: not free within 60000 ms, held by process 1", 1)

    monkeypatch.setattr(opening, "append_lock", locked)


@pytest.mark.parametrize("hinder", [no_room_for_the_checkpoint, no_append_lock])
@pytest.mark.parametrize("kind", ["batch write", "stream write"])
def test_a_store_that_cannot_be_closed_after_a_commit_does_not_fail_it(
    make_store: Make, task: Callable[..., None], bodies: Make, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, hinder: Callable[[pytest.MonkeyPatch], None], kind: str,
) -> None:  # fmt: skip
    """The closer said "nothing was written, try again" of a batch that was stored, and all of it was stored twice."""
    path = make_store()
    task(0, 1)
    planned = writer(path, kind)
    report = planned.write(rows("a", "b"))
    with monkeypatch.context() as hindered:
        hinder(hindered)
        planned.commit([report], *([0] if kind == "stream write" else []))
    assert f"{path} could not be closed" in caplog.text
    page = StatePage(path / "pyrmq" / "state", writable=False)
    assert page.flushed_end == page.appended_end > 0
    assert bodies(path, "T") == ["a", "b"]
    assert not list((path / "pyrmq" / "staging").rglob("*.arrow"))
    Store.open(path).close()
    assert not (path / "abort").exists()


@pytest.mark.parametrize("error", [StoreLockedError("flush.lock", 1), StoreFailedError("fsync")])
def test_a_batch_of_which_nobody_knows_whether_it_is_on_disk_is_not_said_to_be_unwritten(
    make_store: Make, task: Callable[..., None], bodies: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = make_store()
    task(0, 1)
    planned = writer(path, "batch write")
    report = planned.write(rows("a"))

    def fails(store: Store) -> None:
        raise error

    monkeypatch.setattr(Store, "flush", fails)
    with pytest.raises(StoreFailedError) as raised:
        planned.commit([report])
    assert not raised.value.retryable
    assert bodies(path, "T") == ["a"]


def test_what_cannot_be_swept_does_not_fail_the_commit_either(
    make_store: Make, task: Callable[..., None], bodies: Make, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = make_store()
    task(0, 1)
    planned = writer(path, "batch write")
    report = planned.write(rows("a"))

    def fails(*wanted: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(store_sink, "sweep_staged", fails)
    planned.commit([report])
    assert "could not be swept" in caplog.text
    assert bodies(path, "T") == ["a"]


def test_a_repeated_batch_may_be_cut_into_other_partitions(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    path = make_store()
    for cuts in ([["a", "b", "c"]], [["c"], ["b", "a"]], [["a"], ["b"], ["c"]]):
        reports = []
        for partition, values in enumerate(cuts):
            task(partition, partition, run=f"run-{len(cuts)}")
            reports.append(writer(path).write(rows(*values)))
        writer(path).commit(reports, 0)
        assert bodies(path, "T") == ["a", "b", "c"]


def test_a_marker_outlives_the_segment_that_it_was_written_to(
    make_store: Make, task: Callable[..., None], bodies: Make
) -> None:
    path = make_store()
    task(0, 1)
    writer(path).commit([writer(path).write(rows("a"))], 0)
    with Store.open(path) as store:
        for _ in range(4):
            store.append(pa.record_batch({"body": pa.array([bytes(4000)] * 200)}), "Other")
        assert store.retention.run(manual=True, file_reserved_time=0).removed
    (path / "pyrmq" / "units.json").unlink(missing_ok=True)
    task(0, 2, run="run-2")
    writer(path).commit([writer(path).write(rows("a"))], 0)
    assert bodies(path, "T") == []  # it was added once, and is gone by now
    with pytest.raises(MarkerError, match="other rows"):
        writer(path).commit([writer(path).write(rows("b"))], 0)


def test_what_a_retried_message_became_did_not_fail_itself(make_store: Make, task: Callable[..., None]) -> None:
    """Else its consumers would be told the place and the failures of the message that it was made of."""
    path = make_store()
    text_map = pa.map_(pa.string(), pa.string())
    retried = {"own": "1", failure.ORIGIN_TOPIC: "Orders", failure.ORIGIN_QUEUE_OFFSET: "7", failure.ERROR_CLASS: "E"}
    batch = pa.record_batch({"body": [b"x"], "properties": pa.array([list(retried.items())], text_map)})
    task(0, 1)
    schema = StructType([READABLE["body"], READABLE["properties"]])
    planned = DefaultSource({"path": str(path), "topic": "T"}).streamWriter(schema, False)
    planned.commit([planned.write(iter([batch]))], 0)
    with Store.open(path, read_only=True) as store:
        ends = store.queue_ranges("T").items()
        (row,) = [row for queue, limits in ends for part in store.read("T", queue, *limits) for row in part.to_pylist()]
    assert [name for name, _ in row["properties"]] == ["UNIQ_KEY", "own"]


@pytest.mark.parametrize("kept", [False, True])
def test_what_is_made_of_a_message_is_a_message_of_its_own_unless_it_is_a_copy(
    make_store: Make, task: Callable[..., None], kept: bool
) -> None:
    """Two bills of one order (`explode`), with the order's column `properties`."""
    path = make_store()
    order = {"UNIQ_KEY": "X", "OUTBOX_ID": "X", "traceparent": "00-abc", "MIN_OFFSET": "0", "MIRROR_TO": "T X 0 0"}
    order |= {"DELAY": "3", failure.REPLAYS: "1", failure.DEAD_LETTER: "0:7"}
    text_map = pa.map_(pa.string(), pa.string())
    bills = pa.record_batch({"body": [b"tea", b"milk"], "properties": pa.array([list(order.items())] * 2, text_map)})
    task(0, 1)
    schema = StructType([READABLE["body"], READABLE["properties"]])
    given = {"path": str(path), "topic": "T", "keepUniqKey": str(kept).lower()}
    planned = DefaultSource(given).streamWriter(schema, False)
    planned.commit([planned.write(iter([bills]))], 0)
    with Store.open(path, read_only=True) as store:
        ends = store.queue_ranges("T").items()
        rows = [row for queue, limits in ends for part in store.read("T", queue, *limits) for row in part.to_pylist()]
    found = [dict(row["properties"]) for row in rows]
    if kept:
        copy = {"UNIQ_KEY": "X", "OUTBOX_ID": "X", "traceparent": "00-abc", failure.REPLAYS: "1"}
        assert found == [copy | {failure.DEAD_LETTER: "0:7"}] * 2
    else:
        assert len({one.pop("UNIQ_KEY") for one in found} | {"X"}) == 3
        assert found == [{"traceparent": "00-abc"}] * 2
