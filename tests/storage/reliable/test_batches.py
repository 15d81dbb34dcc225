"""A micro-batch and its marks in one transaction: `rmq_store.reliable.inbox.batches`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from helpers import servers
from helpers.consuming import KINDS, Worker, is_waiting, new_engine
from rmq_store.client import Message
from rmq_store.errors import HandlerTransactionError
from rmq_store.reliable import Tables
from rmq_store.reliable.database.inserting import insert_rows
from rmq_store.reliable.database.tables import CONFIRMED, UNCONFIRMED
from rmq_store.reliable.inbox import delivery_log, inbox
from rmq_store.reliable.inbox.batches import BATCHES_KEPT, Batch, BatchResult, BatchWriter, Chunk
from rmq_store.reliable.inbox.deliveries import Delivery
from rmq_store.reliable.outbox import stub

TABLES = Tables()
# Without a key: a row that is written twice is there twice.
ORDERS = sa.Table("orders", TABLES.metadata, sa.Column("message_id", sa.String(50)))
DONE_BEFORE = BatchResult(written_before=True)


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    with new_engine(request.param, tmp_path, TABLES) as made:
        yield made


def insert(connection: sa.Connection, rows: pa.RecordBatch) -> None:
    insert_rows(connection, ORDERS, rows.to_pylist())


def chunks_of(ids: Iterable[str], chunk_rows: int = 1_000) -> Callable[[], Iterable[Chunk]]:
    listed = list(ids)
    parts = [listed[start : start + chunk_rows] for start in range(0, len(listed), chunk_rows)]
    return lambda: [(part, pa.record_batch({"message_id": part})) for part in parts]


def batch_of(ids: Iterable[str], batch_id: int = 0, query_id: str = "Q") -> Batch:
    return Batch(query_id, batch_id).with_ids(list(ids))


def written(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(sa.select(ORDERS.c.message_id)).scalars())


def marks(engine: sa.Engine) -> tuple[int, int]:
    """Rows of the inbox, and of batches."""
    with engine.connect() as connection:
        counts = [connection.scalar(sa.select(sa.func.count()).select_from(t)) for t in (TABLES.inbox, TABLES.batch)]
    return counts[0], counts[1]


def test_a_batch_is_written_once_however_often_it_is_given(engine: sa.Engine) -> None:
    writer = BatchWriter(engine, TABLES, "G", insert)
    ids = [f"M{number}" for number in range(2_500)]
    assert writer.write(batch_of(ids), chunks_of(ids)) == BatchResult(False, 2_500)
    assert writer.write(batch_of(ids), chunks_of(ids)) == DONE_BEFORE
    # The order of the rows, and how they are cut, may be another one.
    assert writer.write(batch_of(ids[::-1]), chunks_of(ids[::-1], 7)) == DONE_BEFORE
    assert written(engine) == sorted(ids)
    assert writer.write(batch_of(["N"], 1), chunks_of(["N"])) == BatchResult(False, 1)
    assert marks(engine) == (2_501, 2)


def test_a_message_that_is_there_several_times_is_written_once(engine: sa.Engine) -> None:
    """In one chunk, in two chunks, in two batches, and in two queries of the group; another group has its own."""
    writer = BatchWriter(engine, TABLES, "G", insert)
    ids = ["A", "B", "A", "A", "C", "B", "D"]
    assert writer.write(batch_of(ids), chunks_of(ids, 4)) == BatchResult(False, 4, 3)
    assert writer.write(batch_of(["D", "E"], 1), chunks_of(["D", "E"])) == BatchResult(False, 1, 1)
    other_query = batch_of(["E", "F"], 0, "other topic")
    assert writer.write(other_query, chunks_of(["E", "F"])) == BatchResult(False, 1, 1)
    assert written(engine) == ["A", "B", "C", "D", "E", "F"]
    other_group = BatchWriter(engine, TABLES, "G2", insert)
    assert other_group.write(batch_of(["A"], 0, "Q2"), chunks_of(["A"])) == BatchResult(False, 1)


def test_one_batch_is_written_for_each_of_two_groups_and_recognised_for_each(engine: sa.Engine) -> None:
    writers = [BatchWriter(engine, TABLES, group, insert, target="orders") for group in ("G1", "G2")]
    writers.append(BatchWriter(engine, TABLES, "G3", insert, target="elsewhere"))
    for writer in writers:
        assert writer.write(batch_of("AB"), chunks_of("AB")) == BatchResult(False, 2)
    for group in ("G1", "G2", "G3"):
        inbox.purge(engine, TABLES, group, 1 << 60)
    for writer in writers:
        assert writer.write(batch_of("AB"), chunks_of("AB")) == DONE_BEFORE


def test_only_rows_that_are_to_be_written_reach_the_function(engine: sa.Engine) -> None:
    seen: list[pa.RecordBatch] = []
    writer = BatchWriter(engine, TABLES, "G", lambda connection, rows: seen.append(rows))
    writer.write(batch_of(["A", "B"]), chunks_of(["A", "B"]))
    writer.write(batch_of(["B", "C", "A", "D"], 1), chunks_of(["B", "C", "A", "D"], 2))
    writer.write(batch_of(["A"], 2), chunks_of(["A"]))
    assert [rows.column("message_id").to_pylist() for rows in seen] == [["A", "B"], ["C"], ["D"]]


def test_a_chunk_that_fails_rolls_the_whole_batch_back(engine: sa.Engine) -> None:
    def fail_at_last(connection: sa.Connection, rows: pa.RecordBatch) -> None:
        insert(connection, rows)
        if "C" in rows.column("message_id").to_pylist():
            raise LookupError("no such customer")

    with pytest.raises(LookupError):
        BatchWriter(engine, TABLES, "G", fail_at_last).write(batch_of("ABC"), chunks_of("ABC", 1))
    assert (written(engine), marks(engine)) == ([], (0, 0))
    assert BatchWriter(engine, TABLES, "G", insert).write(batch_of("ABC"), chunks_of("ABC", 1)).written == 3
    assert written(engine) == ["A", "B", "C"]


def test_a_batch_is_recognised_when_its_inbox_rows_are_purged(engine: sa.Engine) -> None:
    writer = BatchWriter(engine, TABLES, "G", insert)
    writer.write(batch_of("AB"), chunks_of("AB"))
    assert inbox.purge(engine, TABLES, "G", 1 << 60) == 2
    assert writer.write(batch_of("AB"), chunks_of("AB")) == DONE_BEFORE
    assert written(engine) == ["A", "B"]


def test_a_checkpoint_that_was_set_back_loses_nothing_and_repeats_nothing(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Its batch 0 is planned anew, and has messages that the batch 0 in the database had not."""
    writer = BatchWriter(engine, TABLES, "G", insert)
    writer.write(batch_of("AB"), chunks_of("AB"))
    with caplog.at_level(logging.WARNING):
        assert writer.write(batch_of("ABCD"), chunks_of("ABCD")) == BatchResult(False, 2, 2)
    assert "batch 0 of query Q was written before with other messages" in caplog.text
    assert writer.write(batch_of("ABCD"), chunks_of("ABCD")) == DONE_BEFORE
    assert written(engine) == ["A", "B", "C", "D"]


def test_two_runs_of_one_query_wait_for_each_other_and_write_once(engine: sa.Engine) -> None:
    """A driver that everybody takes for dead is still at work when the next one repeats its batch."""
    late: list[Worker] = []

    def write(connection: sa.Connection, rows: pa.RecordBatch) -> None:
        insert(connection, rows)
        second = BatchWriter(engine, TABLES, "G", insert)
        late.append(Worker(lambda: second.write(batch_of("AB"), chunks_of("AB"))))
        assert is_waiting(engine, late[0])

    assert BatchWriter(engine, TABLES, "G", write).write(batch_of("AB"), chunks_of("AB")) == BatchResult(False, 2)
    assert late[0].outcome() == DONE_BEFORE
    assert written(engine) == ["A", "B"]


def test_a_transient_error_repeats_the_whole_transaction(engine: sa.Engine) -> None:
    tries: list[str] = []

    def deadlock_once(connection: sa.Connection, rows: pa.RecordBatch) -> None:
        insert(connection, rows)
        tries.extend(rows.column("message_id").to_pylist())
        if tries == ["A", "B"]:
            raise sa.exc.DBAPIError("INSERT", {}, Exception("gone"), connection_invalidated=True)

    writer = BatchWriter(engine, TABLES, "G", deadlock_once)
    assert writer.write(batch_of("ABC"), chunks_of("ABC", 1)) == BatchResult(False, 3)
    assert tries == ["A", "B", "A", "B", "C"]
    assert written(engine) == ["A", "B", "C"]


def test_a_commit_whose_answer_is_lost_is_not_repeated(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, lost = engine.dialect.do_commit, []

    def commit_and_lose_the_connection(connection: Any) -> None:
        commit(connection)
        if not lost:
            lost.append(1)
            raise engine.dialect.loaded_dbapi.OperationalError("server closed the connection")

    monkeypatch.setattr(engine.dialect, "do_commit", commit_and_lose_the_connection)
    monkeypatch.setattr(engine.dialect, "is_disconnect", lambda error, *_: "server closed" in str(error))
    assert BatchWriter(engine, TABLES, "G", insert).write(batch_of("AB"), chunks_of("AB")) == DONE_BEFORE
    assert lost == [1]
    assert written(engine) == ["A", "B"]


@pytest.mark.parametrize("how", ["commit", "rollback", "COMMIT"])
def test_a_function_that_ends_the_transaction_is_refused(engine: sa.Engine, how: str) -> None:
    """Half a batch would be there with its marks, and the rest never come."""

    def write(connection: sa.Connection, rows: pa.RecordBatch) -> None:
        insert(connection, rows)
        if how == "COMMIT":
            connection.exec_driver_sql(how)
        else:
            getattr(connection, how)()

    with pytest.raises(HandlerTransactionError):
        BatchWriter(engine, TABLES, "G", write).write(batch_of("AB"), chunks_of("AB", 1))
    assert (written(engine), marks(engine)) == ([], (0, 0))


def test_high_water_marks_are_kept_although_the_batch_fails_and_log_rows_go_when_it_is_written(
    engine: sa.Engine,
) -> None:
    """The mark says what has arrived. A log row is left of a consumer of the group that had failed on the message."""
    received = [Delivery(message_id, "broker", "T", 0, 7, 0, 1, False) for message_id in "AC"]
    with engine.begin() as connection:
        delivery_log.receive(connection, TABLES, "G", received, token="t", now_ms=1, lease_ms=1, marks={})

    def fail(connection: sa.Connection, rows: pa.RecordBatch) -> None:
        raise LookupError("no such customer")

    queue = ("broker", "T", 0)
    with pytest.raises(LookupError):
        BatchWriter(engine, TABLES, "G", fail).write(batch_of("AB"), chunks_of("AB"), {queue: 7})
    high_water, log = sa.select(TABLES.high_water.c.queue_offset), sa.select(TABLES.log.c.message_id)
    with engine.connect() as connection:
        assert connection.scalars(high_water).all() == [7]
        assert sorted(connection.scalars(log)) == ["A", "C"]
    BatchWriter(engine, TABLES, "G", insert).write(batch_of("AB"), chunks_of("AB"), {queue: 5})
    with engine.connect() as connection:
        assert connection.scalars(high_water).all() == [7]
        assert connection.scalars(log).all() == ["C"]


def test_old_rows_of_batches_go_and_new_ones_stay(engine: sa.Engine) -> None:
    writer = BatchWriter(engine, TABLES, "G", insert)
    writer.write(batch_of(["X"], 0, "other"), chunks_of(["X"]))
    for batch_id in (0, 1, 2, BATCHES_KEPT + 1):
        writer.write(batch_of([f"M{batch_id}"], batch_id), chunks_of([f"M{batch_id}"]))
    with engine.connect() as connection:
        found = connection.execute(sa.select(TABLES.batch.c.query_id, TABLES.batch.c.batch_id)).all()
    assert sorted(map(tuple, found)) == [("Q", 2), ("Q", BATCHES_KEPT + 1), ("other", 0)]


def add_stubs(engine: sa.Engine, *message_ids: str, groups: tuple[str, ...] = ("G",)) -> None:
    with engine.begin() as connection:
        for message_id in message_ids:
            row = stub.message_row(Message("Orders", b"x"))
            more = {"status": UNCONFIRMED, "pending_groups": len(groups), "created_ms": 1, "send_count": 1}
            due = {"resend_ms": 1, "claim_until_ms": 0, "is_manual": False}
            connection.execute(sa.insert(TABLES.stub), {"message_id": message_id, **row, **more, **due})
            for group in groups:
                connection.execute(sa.insert(TABLES.stub_group), {"message_id": message_id, "group_name": group})


def statuses(engine: sa.Engine, *message_ids: str) -> list[str]:
    with engine.connect() as connection:
        found = stub.status_of(connection, TABLES, message_ids)
    return [found[message_id] for message_id in message_ids]


def test_stubs_are_confirmed_with_the_rows_and_void_ones_have_no_effect(engine: sa.Engine) -> None:
    add_stubs(engine, "A", "B", "C")
    with engine.begin() as connection:
        stub.void(connection, TABLES, "B")

    def fail(connection: sa.Connection, rows: pa.RecordBatch) -> None:
        raise LookupError("no such customer")

    with pytest.raises(LookupError):
        BatchWriter(engine, TABLES, "G", fail).write(batch_of("ABX"), chunks_of("ABX"))
    assert statuses(engine, "A", "B", "C") == [UNCONFIRMED, "void", UNCONFIRMED]
    writer = BatchWriter(engine, TABLES, "G", insert)
    # X was sent without a stub.
    assert writer.write(batch_of("ABXA"), chunks_of("ABXA")) == BatchResult(False, 2, 1, 1)
    assert written(engine) == ["A", "X"]
    assert statuses(engine, "A", "B", "C") == [CONFIRMED, "void", UNCONFIRMED]


def test_stubs_of_another_database_are_confirmed_behind_the_commit(
    engine: sa.Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with new_engine(engine.dialect.name if engine.dialect.name in KINDS else "mariadb", tmp_path, TABLES) as senders:
        add_stubs(senders, "A", "B")
        BatchWriter(engine, TABLES, "G", insert, stub_engine=senders).write(batch_of("A"), chunks_of("A"))
        assert statuses(senders, "A", "B") == [CONFIRMED, UNCONFIRMED]
        # A lost confirmation is made up for when the batch is repeated.
        BatchWriter(engine, TABLES, "G", insert).write(batch_of("B", 1), chunks_of("B"))
        assert statuses(senders, "A", "B") == [CONFIRMED, UNCONFIRMED]
        again = BatchWriter(engine, TABLES, "G", insert, stub_engine=senders)
        assert again.write(batch_of("B", 1), chunks_of("B")) == DONE_BEFORE
        assert statuses(senders, "A", "B") == [CONFIRMED, CONFIRMED]
        TABLES.stub_group.drop(senders)
        with caplog.at_level(logging.WARNING):
            again.write(batch_of("C", 2), chunks_of("C"))
    assert "stubs of a written batch are not confirmed" in caplog.text
    assert written(engine) == ["A", "B", "C"]


def statements_seen(engine: sa.Engine, work: Callable[[], object]) -> int:
    """How many statements the database itself counts while `work` runs."""
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            seen: list[str] = []
            driver: Any = connection.connection.driver_connection
            driver.set_trace_callback(seen.append)
        work()
        return len(seen)
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            connection.exec_driver_sql("SET log_statement = 'all'")
            connection.commit()
        log = servers.postgresql().directory / "log"
        before = log.stat().st_size
        work()
        with log.open() as file:
            file.seek(before)
            return len(re.findall("LOG:  (?:execute|statement:)", file.read()))

    def questions() -> int:
        with engine.connect() as connection:
            return int(connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Questions'").one()[1])

    before = questions()
    work()
    return questions() - before


def test_statements_per_thousand_rows_are_constant(engine: sa.Engine) -> None:
    """As the server counts them: a driver that sends a row at a time shows here, and nowhere in SQLAlchemy."""
    writer = BatchWriter(engine, TABLES, "G", insert)
    writer.write(batch_of("A", 9), chunks_of("A"))  # looks at the database first
    counts = []
    for batch_id, rows in enumerate((1_000, 2_000, 5_000)):
        ids = [f"{batch_id}-{number}" for number in range(rows)]
        counts.append(statements_seen(engine, lambda b=batch_id, i=ids: writer.write(batch_of(i, b), chunks_of(i))))
    per_chunk = counts[1] - counts[0]
    assert counts[2] - counts[1] == 3 * per_chunk
    assert per_chunk <= 9
    assert counts[0] <= per_chunk + 12
