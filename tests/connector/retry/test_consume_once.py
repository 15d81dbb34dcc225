"""`consume(..., idempotency=...)` in a task: what the handler sees, what is committed, and what comes back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.serializers import CPickleSerializer

from helpers import servers
from pyspark_rmq import DLQ, RECONSUME_LATER, SUCCESS, SparkIdempotency
from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.retry.handler_runner import HandlerRunner
from pyspark_rmq.retry.idempotency import TaskIdempotency
from rmq_store import UsageError
from rmq_store.errors import SchemaMismatchError
from rmq_store.reliable import Tables, open_engine

LADDER_MS = (10_000, 30_000)


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    tables = Tables()
    # Without a key: an effect that happens twice is there twice.
    sa.Table("effects", tables.metadata, sa.Column("body", sa.String(50)))
    made = open_engine(database_url)
    tables.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def task(engine: sa.Engine, tmp_path: Path, database_url: str) -> TaskIdempotency:
    """What the tasks of a batch have; the database by reference."""
    (tmp_path / "url").write_text(database_url)
    settings = SparkIdempotency(database=f"file:{tmp_path / 'url'}", busy_wait_ms=0)
    return TaskIdempotency(settings, "cg", LADDER_MS, 16, "query/0")


on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


def batch(*numbers: int, has_id: Callable[[int], bool] = lambda number: True) -> pa.RecordBatch:
    """Rows of messages by their number; the same number is the same message at another place."""
    count = len(numbers)
    properties = [[("UNIQ_KEY", f"id-{number}")] if has_id(number) else [] for number in numbers]
    return pa.record_batch(
        {
            "brokerName": ["broker"] * count,
            "topic": ["Orders"] * count,
            "queueId": pa.array([0] * count, pa.int32()),
            "queueOffset": pa.array(range(count), pa.int64()),
            "commitLogOffset": pa.array(range(count), pa.int64()),
            "msgId": [f"id-{number}" for number in numbers],
            "reconsumeTimes": pa.array([0] * count, pa.int32()),
            "body": [str(number) for number in numbers],
            "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
        }
    )


def handled(task: TaskIdempotency, handler: Callable[..., Any], rows: pa.RecordBatch, mode: Any = "arrow") -> list[Any]:
    runner = HandlerRunner(handler, mode, StoreDirectory("/no/store"), ("body",), 16, task)
    return [row for answer in runner(iter([rows])) for row in answer.to_pylist()]


def results(*given: Any, **more: Any) -> list[tuple[str, int | None]]:
    return [(row["result"], row["delayLevel"]) for row in handled(*given, **more)]


OK, LATER = ("SUCCESS", None), ("RECONSUME_LATER", 0)


def write(connection: sa.Connection, rows: Any) -> None:
    bodies = [rows.body] if hasattr(rows, "body") and isinstance(rows.body, str) else rows["body"]
    listed = bodies.to_pylist() if isinstance(bodies, pa.Array) else list(bodies)
    connection.execute(sa.text("INSERT INTO effects VALUES (:body)"), [{"body": body} for body in listed])


def effects(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(sa.text("SELECT body FROM effects")).scalars())


@pytest.mark.statement("H01")
@pytest.mark.parametrize("mode", ["row", "arrow", "pandas"])
def test_a_task_that_runs_again_has_its_effect_once(engine: sa.Engine, task: TaskIdempotency, mode: str) -> None:
    seen: list[str] = []

    def handler(connection: sa.Connection, rows: Any) -> Any:
        write(connection, rows)
        seen.append(mode)
        return SUCCESS if mode == "row" else None

    assert results(task, handler, batch(1, 2, 3, 2), mode=mode) == [OK] * 4
    calls = len(seen)
    assert calls == (3 if mode == "row" else 1)
    assert results(task, handler, batch(1, 2, 3, 2), mode=mode) == [OK] * 4
    assert len(seen) == calls  # nothing was left for it
    assert results(task, handler, batch(3, 4, 5), mode=mode) == [OK] * 3
    assert effects(engine) == ["1", "2", "3", "4", "5"]


@on_sqlite
def test_a_handler_for_batches_sees_only_rows_that_are_not_done(engine: sa.Engine, task: TaskIdempotency) -> None:
    seen: list[list[str]] = []

    def handler(connection: sa.Connection, rows: pa.RecordBatch) -> None:
        seen.append(rows.column("body").to_pylist())

    handled(task, handler, batch(1, 2))
    handled(task, handler, batch(2, 3, 3, 1, 4))
    assert seen == [["1", "2"], ["3", "4"]]


def test_rows_that_fail_by_their_answer_are_rolled_back_and_the_others_are_committed(
    engine: sa.Engine, task: TaskIdempotency
) -> None:
    seen: list[list[str]] = []
    answers = {"2": RECONSUME_LATER, "3": DLQ, "5": 4, "6": None}

    def handler(connection: sa.Connection, rows: pa.RecordBatch) -> list[Any]:
        write(connection, rows)
        seen.append(rows.column("body").to_pylist())
        return [answers.get(body, SUCCESS) for body in seen[-1]]

    found = handled(task, handler, batch(1, 2, 3, 4, 5, 6))
    levels = [(row["result"], row["delayLevel"]) for row in found]
    assert levels == [OK, LATER, ("DLQ", -1), OK, ("RECONSUME_LATER", 4), LATER]
    assert [row["errorClass"] for row in found] == [None, "RECONSUME_LATER", "DLQ", None, "RECONSUME_LATER", "NoResult"]
    assert seen == [["1", "2", "3", "4", "5", "6"], ["1", "4"]]
    assert effects(engine) == ["1", "4"]
    answers.clear()
    assert results(task, handler, batch(2, 3, 4, 5, 6)) == [OK] * 5  # when they come back
    assert effects(engine) == ["1", "2", "3", "4", "5", "6"]


def test_an_exception_fails_the_guilty_rows_only_and_each_half_commits_for_itself(
    engine: sa.Engine, task: TaskIdempotency
) -> None:
    def handler(connection: sa.Connection, rows: pa.RecordBatch) -> None:
        write(connection, rows)
        if set(rows.column("body").to_pylist()) & {"3", "6"}:
            raise LookupError("no such customer")

    found = handled(task, handler, batch(*range(8)))
    failed = {row["body"]: row for row in found if row["result"] != "SUCCESS"}
    assert failed.keys() == {"3", "6"}
    assert {(row["errorClass"], row["errorMessage"]) for row in failed.values()} == {
        ("LookupError", "no such customer")
    }
    assert effects(engine) == ["0", "1", "2", "4", "5", "7"]


@on_sqlite
def test_the_row_of_an_exception_comes_back_with_its_reason(engine: sa.Engine, task: TaskIdempotency) -> None:
    def handler(connection: sa.Connection, row: Any) -> Any:
        write(connection, row)
        if row.body == "2":
            raise LookupError("no such customer")
        return {"3": DLQ}.get(row.body, SUCCESS)

    found = handled(task, handler, batch(1, 2, 3, 4), mode="row")
    assert [row["result"] for row in found] == ["SUCCESS", "RECONSUME_LATER", "DLQ", "SUCCESS"]
    assert [row["errorMessage"] for row in found] == [None, "no such customer", "returned by the handler", None]
    assert effects(engine) == ["1", "4"]


@on_sqlite
@pytest.mark.parametrize("mode", ["row", "arrow"])
def test_an_answer_that_is_no_result_fails_the_query_and_nothing_is_done(
    engine: sa.Engine, task: TaskIdempotency, mode: str
) -> None:
    def handler(connection: sa.Connection, rows: Any) -> str:
        write(connection, rows)
        return "ok"

    with pytest.raises(UsageError, match="the handler answered 'ok'"):
        handled(task, handler, batch(1, 2), mode=mode)
    assert effects(engine) == []


@on_sqlite
@pytest.mark.parametrize("mode", ["row", "arrow"])
def test_a_message_without_an_id_comes_back_and_says_why(engine: sa.Engine, task: TaskIdempotency, mode: str) -> None:
    def handler(connection: sa.Connection, rows: Any) -> str:
        write(connection, rows)
        return SUCCESS

    first, second = handled(task, handler, batch(1, 2, has_id=lambda number: number == 1), mode=mode)
    assert first["result"] == "SUCCESS"
    assert (second["result"], second["errorClass"]) == ("RECONSUME_LATER", "rmq_store.errors.NoMessageIdError")
    assert second["errorMessage"].startswith("the message Orders, queue 0, offset 1, id-2 has neither OUTBOX_ID")
    assert effects(engine) == ["1"]


@on_sqlite
def test_a_handler_that_commits_is_refused(engine: sa.Engine, task: TaskIdempotency) -> None:
    def handler(connection: sa.Connection, row: Any) -> str:
        write(connection, row)
        connection.commit()
        return SUCCESS

    (found,) = handled(task, handler, batch(1), mode="row")
    assert (found["result"], found["errorClass"]) == ("RECONSUME_LATER", "rmq_store.errors.HandlerTransactionError")
    assert effects(engine) == []


def test_a_message_that_another_worker_has_comes_back_but_tasks_of_one_batch_do_not_wait(
    engine: sa.Engine, task: TaskIdempotency
) -> None:
    """A speculative task: whoever commits first has had the effect, and both answer success."""
    speculative: list[Any] = []
    other = TaskIdempotency(task.settings, "cg", LADDER_MS, 16, "query/1")

    def later(connection: sa.Connection, rows: Any) -> str:
        write(connection, rows)
        return SUCCESS

    def handler(connection: sa.Connection, rows: Any) -> str:
        def run() -> None:
            speculative.append(results(task, later, batch(1)))

        if engine.dialect.name != "sqlite":  # there the second one waits for the first from its first statement on
            (busy,) = handled(other, later, batch(1))
            assert (busy["result"], busy["errorClass"]) == ("RECONSUME_LATER", "NotDone")
        threads.append(threading.Thread(target=run))
        threads[0].start()
        write(connection, rows)
        return SUCCESS

    threads: list[threading.Thread] = []
    assert results(task, handler, batch(1)) == [OK]
    threads[0].join(60)
    assert speculative == [[OK]]
    assert effects(engine) == ["1"]


@on_sqlite
def test_effects_elsewhere_are_done_once_unless_something_dies(engine: sa.Engine, task: TaskIdempotency) -> None:
    seen: list[str] = []
    settings = SparkIdempotency(database=task.settings.database, outside=True)
    outside = TaskIdempotency(settings, "cg", LADDER_MS, 16, "query/0")

    def handler(row: Any) -> Any:
        seen.append(row.body)
        return {"2": RECONSUME_LATER, "3": None}.get(row.body, SUCCESS)

    assert results(outside, handler, batch(1, 2, 1, 3), mode="row") == [OK, LATER, OK, LATER]
    assert seen == ["1", "2", "3"]
    assert results(outside, handler, batch(1, 2), mode="row") == [OK, LATER]
    assert seen == ["1", "2", "3", "2"]


def test_no_secret_is_pickled(task: TaskIdempotency, database_url: str, engine: sa.Engine) -> None:
    runner = HandlerRunner(write, "arrow", StoreDirectory("/no/store"), ("body",), 16, task)
    task.in_this_process()
    pickled = CPickleSerializer().dumps(runner)
    assert task.settings.database.encode() in pickled
    assert database_url.encode() not in pickled and servers.PASSWORD.encode() not in pickled


@on_sqlite
def test_a_forked_child_makes_its_own(task: TaskIdempotency) -> None:
    parent = id(task.in_this_process())
    assert id(task.in_this_process()) == parent
    child = os.fork()
    if not child:
        os._exit(id(task.in_this_process()) == parent)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@on_sqlite
def test_a_database_without_the_tables_fails_the_task_and_no_message(engine: sa.Engine, task: TaskIdempotency) -> None:
    """Each message would fail, sixteen times, and become a dead letter."""
    Tables().inbox.drop(engine)
    with pytest.raises(SchemaMismatchError, match="rmq_inbox"):
        handled(task, write, batch(1))


def test_settings_take_references_only(engine: sa.Engine) -> None:
    for given, message in (
        ({"database": engine}, "database of SparkIdempotency is a Engine: env:NAME"),
        ({"database": "env:X", "redis": 5}, "redis of SparkIdempotency is a int"),
        ({"database": "env:X", "outside": "yes"}, "outside='yes' of SparkIdempotency is neither"),
    ):
        with pytest.raises(UsageError, match=message):
            SparkIdempotency(**given)  # type: ignore[arg-type]
