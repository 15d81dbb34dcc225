"""The decision about one message, step by step: C1 to E2 of docs/reliable-design.md, without Redis."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from helpers import servers
from helpers.consuming import (
    KINDS,
    QUEUE,
    RETRY_QUEUE,
    Consumer,
    Databases,
    Worker,
    effects,
    is_waiting,
    message,
    put_stub,
    statements_of,
    stub_status,
    write_effect,
)
from rmq_store.backoff import Backoff
from rmq_store.client import ConsumeConcurrentlyContext, MessageExt
from rmq_store.errors import UsageError
from rmq_store.reliable import ConsumeCounts, Idempotency, Tables, open_engine
from rmq_store.reliable.inbox import delivery_log, effect, exactly_once, inbox, worker_wait


@pytest.fixture
def tables(databases: Databases) -> Tables:
    return databases.tables


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, databases: Databases) -> sa.Engine:
    return databases.empty(request.param)


@pytest.fixture
def cg(engine: sa.Engine, tables: Tables) -> Iterator[Consumer]:
    consumer = Consumer(engine, tables)
    with consumer.once:
        yield consumer


def boom(*_: object) -> None:
    raise RuntimeError("boom")


@pytest.mark.statement("H07")
def test_success_writes_effect_and_inbox_confirms_the_stub_and_deletes_the_log(cg: Consumer) -> None:
    cg.put_stub()
    assert cg.consume(message()) == 1
    assert cg.effects() == ["1"]
    assert cg.done() == {"M1"}
    assert cg.log() == []
    assert stub_status(cg.engine, cg.tables) == "confirmed"
    assert cg.once.counts() == ConsumeCounts(done=1)


@pytest.mark.statement("H01")
def test_a_message_that_comes_twice_has_one_effect(cg: Consumer) -> None:
    assert cg.consume(message(offset=1)) == 1
    assert cg.consume(message(offset=7), message(offset=8)) == 2
    assert cg.effects() == ["1"]
    assert cg.log() == []
    assert cg.once.counts() == ConsumeCounts(done=1, duplicates_by_inbox=2)


@pytest.mark.statement("H07")
def test_a_stub_is_confirmed_when_the_last_of_its_groups_is_done(cg: Consumer) -> None:
    """Deviation: the document has one consumer; here "done" for a group is its inbox row, never the stub's status."""
    cg.put_stub(groups=("cg", "other"))
    assert cg.consume(message()) == 1
    assert stub_status(cg.engine, cg.tables) == "unconfirmed"
    other = Consumer(cg.engine, cg.tables)
    other.once.close()
    with Idempotency("other", cg.engine, cg.tables) as other.once:
        assert other.consume(message()) == 1
    assert cg.effects() == ["1", "1"], "each group has its effect"
    assert stub_status(cg.engine, cg.tables) == "confirmed"


@pytest.mark.statement("H03")
def test_the_log_is_written_before_the_work_in_a_transaction_of_its_own(cg: Consumer) -> None:
    seen: list[dict[str, Any]] = []

    def look(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        with cg.engine.connect() as other:
            query = sa.select(cg.tables.log)
            if cg.engine.dialect.name == "sqlite":  # a second transaction would wait for this one
                seen.extend(dict(row) for row in connection.execute(query).mappings())
            else:
                seen.extend(dict(row) for row in other.execute(query).mappings())

    assert cg.consume(message(offset=5), handler=look) == 1
    (row,) = seen
    assert (row["message_id"], row["topic"], row["queue_id"], row["queue_offset"]) == ("M1", "Orders", 0, 5)
    assert row["received_ms"] > 1
    assert row["lease_until_ms"] == row["received_ms"] + 60_000
    assert cg.log() == []


@pytest.mark.statement("H06")
def test_done_before_deletes_the_log_and_answers_success(cg: Consumer) -> None:
    """Deviation: "done" is the inbox row of the group, where the document asks for the status of the stub."""
    cg.put_done("M1")
    cg.put_log()
    assert cg.consume(message(), handler=boom) == 1
    assert cg.log() == []


@pytest.mark.statement("H06")
def test_a_stub_that_another_group_has_confirmed_is_not_done_for_this_one(cg: Consumer) -> None:
    """Deviation: by the stub's status, as in the document, group B would lose what group A confirmed."""
    cg.put_stub(status="confirmed", groups=("other",))
    assert cg.consume(message()) == 1
    assert cg.effects() == ["1"]


def test_a_void_stub_has_no_effect_and_is_counted(cg: Consumer) -> None:
    cg.put_stub(status="void")
    cg.put_log(lease_token=None, lease_until_ms=0)
    assert cg.consume(message(), handler=boom) == 1
    assert (cg.effects(), cg.done(), cg.log()) == ([], set(), [])
    assert cg.once.counts() == ConsumeCounts(void=1)


def test_a_stub_that_is_voided_while_the_handler_runs_rolls_its_effect_back(cg: Consumer) -> None:
    cg.put_stub()

    def void_meanwhile(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        # In its own transaction where one can be, else in this one: what counts is what C5 sees.
        stub = sa.update(cg.tables.stub).values(status="void")
        if cg.engine.dialect.name == "sqlite":
            connection.execute(stub)
        else:
            with cg.engine.begin() as other:
                other.execute(stub)

    if cg.engine.dialect.name == "sqlite":
        # Rolling back takes the status with it; the message is known to be void all the same.
        attempts: list[int] = []

        def void_for_good(connection: sa.Connection, one: MessageExt) -> None:
            attempts.append(1)
            void_meanwhile(connection, one)

        assert cg.consume(message(), handler=void_for_good) == 1
        assert len(attempts) == 1
    else:
        assert cg.consume(message(), handler=void_meanwhile) == 1
    assert (cg.effects(), cg.done(), cg.log()) == ([], set(), [])
    assert cg.once.counts() == ConsumeCounts(void=1)


@pytest.mark.statement("H05")
def test_a_live_lease_of_another_worker_is_later_and_never_success(cg: Consumer) -> None:
    """Deviation: the document answers success, and loses the message when that worker dies."""
    cg.put_log()
    assert cg.consume(message(), handler=boom) == 0
    assert [row["lease_token"] for row in cg.log()] == ["other"]
    assert cg.once.counts() == ConsumeCounts(later=1)


@pytest.mark.parametrize("until_ms", [-1, 25 * 3_600_000], ids=["over", "of a clock that has jumped"])
def test_a_lease_that_is_not_live_is_taken_over(cg: Consumer, until_ms: int) -> None:
    cg.put_log(lease_until_ms=cg.clock() + until_ms)
    assert cg.consume(message()) == 1
    assert (cg.effects(), cg.log()) == (["1"], [])
    assert cg.manual() == set(), "an effect in the transaction is never in doubt"


@pytest.mark.statement("H08")
def test_failure_rolls_back_asks_for_a_retry_and_blocks_the_resend_until_then(cg: Consumer) -> None:
    def write_and_fail(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        raise RuntimeError("boom")

    before_ms = cg.clock()
    assert cg.consume(message(reconsume_times=1), handler=write_and_fail, queue=RETRY_QUEUE) == 0
    (row,) = cg.log()
    assert (cg.effects(), cg.done(), cg.manual()) == ([], set(), set())
    assert (row["lease_token"], row["lease_until_ms"], row["is_dead"]) == (None, 0, False)
    assert before_ms + 90_000 <= row["blocks_until_ms"] <= cg.clock() + 90_000, "30 s of the ladder, 60 s of slack"
    assert cg.once.counts() == ConsumeCounts(failed=1)
    assert cg.consume(message(reconsume_times=2), queue=RETRY_QUEUE) == 1, "the retry does not wait for a lease"
    assert (cg.effects(), cg.log()) == (["1"], [])


@pytest.mark.statement("H08")
def test_the_last_failure_is_dead_and_on_the_manual_list(cg: Consumer) -> None:
    assert cg.consume(message(reconsume_times=15), handler=boom) == 0
    assert cg.manual() == set()
    assert cg.consume(message(reconsume_times=16), handler=boom) == 0
    assert [row["is_dead"] for row in cg.log()] == [True]
    assert cg.manual() == {("M1", "dead_letter")}
    assert "RuntimeError: boom" in cg.rows(cg.tables.manual)[0]["detail"]


def test_a_dead_message_that_people_send_again_is_dead_no_more(cg: Consumer) -> None:
    cg.put_log(lease_token=None, lease_until_ms=0, is_dead=True)
    seen: list[bool] = []
    assert cg.consume(message(), handler=lambda one: seen.append(cg.log()[0]["is_dead"]), outside=True) == 1
    assert seen == [False]


@pytest.mark.statement("H08")
def test_a_dead_letter_that_another_worker_has_done_is_not_on_the_manual_list(cg: Consumer) -> None:
    if cg.engine.dialect.name == "sqlite":
        # Nobody else can write while the handler's transaction is open: the other worker was before its C3.
        def handler(one: MessageExt) -> None:
            cg.put_done("M1")
            raise RuntimeError("boom")

        assert cg.consume(message(reconsume_times=16), handler=handler, outside=True) == 1
    else:

        def elsewhere(one: MessageExt) -> None:
            cg.put_done("M1")
            raise RuntimeError("boom")

        assert cg.consume(message(reconsume_times=16), handler=elsewhere, outside=True) == 1
    assert (cg.manual(), cg.log()) == (set(), [])


def test_all_messages_of_a_batch_are_tried_and_the_done_prefix_is_acknowledged(cg: Consumer) -> None:
    def fail_on_2(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        if one.body == b"2":
            raise RuntimeError("boom")

    batch = [message(f"M{number}", body=str(number).encode(), offset=number) for number in range(5)]
    assert cg.consume(*batch, handler=fail_on_2) == 2
    assert cg.effects() == ["0", "1", "3", "4"]
    assert cg.consume(*batch[2:]) == 3, "later successes come again, and are recognised"
    assert sorted(cg.effects()) == ["0", "1", "2", "3", "4"]


def test_a_message_without_an_id_is_refused_and_logged_once(cg: Consumer, caplog: pytest.LogCaptureFixture) -> None:
    assert cg.consume(message(None), message("M2")) == 0
    assert cg.consume(message(None)) == 0
    assert cg.effects() == ["1"], "the others are done"
    assert len([line for line in caplog.messages if "neither OUTBOX_ID nor UNIQ_KEY" in line]) == 1
    assert cg.once.counts() == ConsumeCounts(done=1, refused=2)


def test_the_id_is_the_outbox_id_and_else_the_unique_key(cg: Consumer) -> None:
    assert cg.consume(message(None, properties={"UNIQ_KEY": "U1"})) == 1
    assert cg.consume(message("M1", properties={"UNIQ_KEY": "M1"})) == 1
    assert cg.consume(message("M2")) == 1
    assert cg.done() == {"U1", "M1", "M2"}


# -- high-water marks -------------------------------------------------------------------------------------------------


def marks(cg: Consumer) -> dict[tuple[str, int], int]:
    return {(row["topic"], row["queue_id"]): row["queue_offset"] for row in cg.rows(cg.tables.high_water)}


def test_first_deliveries_raise_the_mark_of_their_queue(cg: Consumer) -> None:
    cg.consume(message("A", offset=5))
    cg.consume(message("B", offset=3))
    cg.consume(message("C", offset=9), handler=boom)
    assert marks(cg) == {("Orders", 0): 9}
    second = Consumer(cg.engine, cg.tables)
    with second.once:
        second.consume(message("D", offset=4))
    assert marks(cg) == {("Orders", 0): 9}, "a process that has not seen the mark does not lower it"


def test_retries_do_not_raise_the_mark(cg: Consumer) -> None:
    cg.consume(message("A", offset=50), queue=RETRY_QUEUE)
    cg.consume(message("B", offset=60, reconsume_times=1))
    assert marks(cg) == {}


def test_the_mark_of_a_message_that_fails_stays(cg: Consumer) -> None:
    cg.consume(message("A", offset=5), handler=boom)
    assert marks(cg) == {("Orders", 0): 5}


def test_a_mark_that_is_known_costs_no_statement(cg: Consumer) -> None:
    cg.consume(message("A", offset=5))
    with statements_of(cg.engine) as seen:
        cg.consume(message("B", offset=4))
        assert not [statement for statement in seen if "high_water" in statement]
        cg.consume(message("C", offset=6))
        assert [statement for statement in seen if "high_water" in statement]


# -- two workers ------------------------------------------------------------------------------------------------------


def expired(cg: Consumer) -> Consumer:
    """Another worker of the group, whose clock is behind the lease of the first."""
    other = Consumer(cg.engine, cg.tables)
    other.clock.ahead_ms = 61_000
    return other


@pytest.mark.parametrize("first_commits", [True, False], ids=["commits", "fails"])
def test_lease_expiry_with_the_first_worker_alive_leaves_one_effect(cg: Consumer, first_commits: bool) -> None:
    """The second worker waits on the key of the inbox, and then finds it, or does the work."""
    seconds: list[Worker] = []
    other = expired(cg)

    def second(connection: sa.Connection, one: MessageExt) -> None:
        connection.execute(sa.insert(effects).values(body="2"))

    def slow(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        seconds.append(Worker(lambda: other.consume(message(), handler=second)))
        assert is_waiting(cg.engine, seconds[0])
        if not first_commits:
            raise RuntimeError("boom")

    with other.once:
        acknowledged = cg.consume(message(), handler=slow)
        assert seconds[0].outcome() == 1
    # A worker that fails finds the message done if the other one has committed before the failure is written (E1).
    assert acknowledged == 1 or not first_commits
    assert cg.once.counts().failed == 1 - acknowledged
    assert cg.effects() == (["1"] if first_commits else ["2"])
    assert cg.log() == []


def test_many_workers_at_the_same_messages_leave_one_effect_each(cg: Consumer) -> None:
    batch = [message(f"M{number}", body=str(number).encode(), offset=number) for number in range(10)]
    workers = [Worker(lambda: cg.consume(*batch)) for _ in range(4)]
    for worker in workers:
        worker.outcome()
    assert sorted(cg.effects()) == [str(number) for number in range(10)]
    assert cg.once.counts().failed == 0
    assert cg.consume(*batch) == 10


# -- crash points: what is in the database when a worker dies, and what happens then ----------------------------------


class Killed(BaseException):
    """Ends a worker at a named point: nothing behind it runs, the database rolls back what is open."""


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize(
    ("point", "log_rows", "effects_then"),
    [
        ("before C2", 0, 0),
        ("in C3", 1, 0),
        ("in C4", 1, 0),
        ("in C5", 1, 0),
        ("in C6", 1, 0),
        ("after C6", 0, 1),
    ],
)
def test_a_worker_that_dies_at_any_point_leaves_work_that_is_done_once(
    cg: Consumer, monkeypatch: pytest.MonkeyPatch, point: str, log_rows: int, effects_then: int
) -> None:
    cg.put_stub()
    handler: Any = write_effect
    where, name = {
        "before C2": (delivery_log, "receive"),
        "in C3": (inbox, "insert_set"),
        "in C4": (None, ""),
        "in C5": (effect, "confirm"),
        "in C6": (delivery_log, "delete"),
        "after C6": (exactly_once.ExactlyOnce, "_confirm_elsewhere"),
    }[point]
    if point == "in C4":

        def handler(connection: sa.Connection, one: MessageExt) -> None:
            write_effect(connection, one)
            raise Killed

    elif point == "in C6":
        real = delivery_log.delete

        def delete(connection: sa.Connection, tables: Tables, group: str, ids: set[str]) -> None:
            real(connection, tables, group, ids)
            if ids:
                raise Killed

        monkeypatch.setattr(delivery_log, "delete", delete)
    else:
        monkeypatch.setattr(where, name, die)
    with pytest.raises(Killed):
        cg.consume(message(), handler=handler)
    monkeypatch.undo()
    assert len(cg.effects()) == effects_then
    assert len(cg.log()) == log_rows
    assert stub_status(cg.engine, cg.tables) == ("confirmed" if effects_then else "unconfirmed")
    if log_rows:
        assert cg.consume(message()) == 0, "later, until the lease is over"
        cg.clock.ahead_ms = 61_000
    assert cg.consume(message()) == 1
    assert (cg.effects(), cg.log(), cg.done()) == (["1"], [], {"M1"})
    assert stub_status(cg.engine, cg.tables) == "confirmed"
    assert cg.manual() == set()


def test_a_commit_whose_answer_is_lost_is_found_to_be_done(cg: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first transaction of the effect commits, and its worker only sees a lost connection."""
    lost: list[int] = []

    def lose(connection: sa.Connection) -> None:
        if not lost and effects_of(connection):
            lost.append(1)
            connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]
            raise sa.exc.OperationalError("COMMIT", {}, OSError("gone"), connection_invalidated=True)

    def effects_of(connection: sa.Connection) -> int:
        return int(connection.scalar(sa.select(sa.func.count()).select_from(effects)) or 0)

    sa.event.listen(cg.engine, "commit", lose)
    try:
        assert cg.consume(message()) == 1
    finally:
        sa.event.remove(cg.engine, "commit", lose)
    assert lost
    assert (cg.effects(), cg.log(), cg.manual()) == (["1"], [], set())


@pytest.mark.parametrize("engine", KINDS[1:], indirect=True)
@pytest.mark.parametrize("where", ["in the handler", "at the commit"])
def test_a_connection_that_the_server_ends_is_no_failure(cg: Consumer, where: str) -> None:
    ended: list[int] = []

    def end(connection: sa.Connection) -> None:
        ended.append(1)
        with cg.engine.connect() as other:
            if cg.engine.dialect.name == "postgresql":
                pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
                other.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
            else:
                other.execute(sa.text(f"KILL {int(connection.scalar(sa.text('SELECT CONNECTION_ID()')) or 0)}"))

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        if where == "in the handler" and not ended:
            end(connection)
            write_effect(connection, one)

    def on_commit(connection: sa.Connection) -> None:
        if (
            where == "at the commit"
            and not ended
            and connection.scalar(sa.select(sa.func.count()).select_from(effects))
        ):
            end(connection)

    sa.event.listen(cg.engine, "commit", on_commit)
    try:
        assert cg.consume(message(), handler=handler) == 1
    finally:
        sa.event.remove(cg.engine, "commit", on_commit)
    assert ended
    assert (cg.effects(), cg.log(), cg.manual()) == (["1"], [], set())
    assert cg.once.counts() == ConsumeCounts(done=1)


@pytest.mark.parametrize("engine", KINDS[1:], indirect=True)
def test_a_server_that_is_killed_and_started_again_is_no_failure(cg: Consumer) -> None:
    server = servers.postgresql() if cg.engine.dialect.name == "postgresql" else servers.mariadb()
    restarts: list[int] = []

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        if not restarts:
            restarts.append(1)
            server.restart()
            write_effect(connection, one)

    assert cg.consume(message(), message("M2", body=b"2"), handler=handler) == 2
    assert (cg.effects(), cg.log(), cg.manual()) == (["1", "2"], [], set())


def test_a_transaction_that_the_database_gives_up_is_tried_again(cg: Consumer) -> None:
    tries: list[int] = []

    def deadlock(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        tries.append(1)
        if len(tries) < 3:
            code = type("Deadlock", (Exception,), {"sqlstate": "40P01"})
            raise sa.exc.OperationalError("UPDATE", {}, code())

    assert cg.consume(message(), handler=deadlock) == 1
    assert (len(tries), cg.effects()) == (3, ["1"])


def test_a_failure_that_cannot_be_written_leaves_the_lease_and_answers_later(
    cg: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("UPDATE", {}, OSError("gone"))

    monkeypatch.setattr(delivery_log, "fail", away)
    assert cg.consume(message(), handler=boom) == 0
    (row,) = cg.log()
    assert row["lease_until_ms"] > cg.clock()
    assert "its lease blocks a resend" in caplog.text


def test_a_database_that_is_away_fails_the_message_and_nothing_else(
    cg: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("SELECT", {}, OSError("gone"))

    monkeypatch.setattr(delivery_log, "receive", away)
    assert cg.consume(message()) == 0
    assert cg.effects() == []
    monkeypatch.undo()
    assert cg.consume(message(reconsume_times=1)) == 1


# -- effects elsewhere ------------------------------------------------------------------------------------------------


def test_an_effect_elsewhere_happens_under_the_lease_and_is_recorded_behind_it(cg: Consumer) -> None:
    seen: list[object] = []

    def call(one: MessageExt) -> None:
        (row,) = cg.log()
        seen.append((one.body, row["lease_token"] is not None, cg.done()))

    cg.put_stub()
    assert cg.consume(message(), handler=call, outside=True) == 1
    assert seen == [(b"1", True, set())]
    assert (cg.done(), cg.log(), cg.manual()) == ({"M1"}, [], set())
    assert stub_status(cg.engine, cg.tables) == "confirmed"
    assert cg.consume(message(), handler=boom, outside=True) == 1
    assert cg.once.counts() == ConsumeCounts(done=1, duplicates_by_inbox=1)


def test_a_worker_that_died_in_an_effect_elsewhere_leaves_it_in_doubt(cg: Consumer) -> None:
    with pytest.raises(Killed):
        cg.consume(message(), handler=die, outside=True)
    assert cg.manual() == set()
    cg.clock.ahead_ms = 61_000
    assert cg.consume(message(), handler=lambda one: None, outside=True) == 1
    assert cg.manual() == {("M1", "in_doubt")}
    assert cg.done() == {"M1"}
    assert cg.once.counts() == ConsumeCounts(done=1, in_doubt=1)


def test_a_handler_elsewhere_that_failed_is_not_in_doubt(cg: Consumer) -> None:
    assert cg.consume(message(), handler=boom, outside=True) == 0
    assert cg.consume(message(reconsume_times=1), handler=lambda one: None, outside=True) == 1
    assert cg.manual() == set()


def test_an_effect_elsewhere_without_its_record_is_in_doubt(cg: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("INSERT", {}, OSError("gone"))

    monkeypatch.setattr(inbox, "insert", away)
    assert cg.consume(message(), handler=lambda one: None, outside=True) == 0
    assert cg.manual() == {("M1", "in_doubt")}


def test_an_effect_elsewhere_of_two_workers_is_in_doubt(cg: Consumer) -> None:
    def other_is_faster(one: MessageExt) -> None:
        cg.put_done("M1")

    assert cg.consume(message(), handler=other_is_faster, outside=True) == 1
    assert cg.manual() == {("M1", "in_doubt")}


def test_an_effect_elsewhere_of_a_stub_that_is_voided_meanwhile_is_in_doubt(cg: Consumer) -> None:
    cg.put_stub()

    def void(one: MessageExt) -> None:
        with cg.engine.begin() as connection:
            connection.execute(sa.update(cg.tables.stub).values(status="void"))

    assert cg.consume(message(), handler=void, outside=True) == 1
    assert cg.manual() == {("M1", "in_doubt")}


# -- order ------------------------------------------------------------------------------------------------------------


def test_an_ordered_batch_ends_at_the_first_that_is_not_done(cg: Consumer) -> None:
    def fail_on_1(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        if one.body == b"1":
            raise RuntimeError("boom")

    batch = [message(f"M{number}", body=str(number).encode(), offset=number) for number in range(3)]
    assert cg.order(*batch, handler=fail_on_1) == 1000
    assert cg.effects() == ["0"]
    (row,) = cg.log()
    assert row["blocks_until_ms"] <= cg.clock() + 61_000, "1 s of suspension, 60 s of slack"
    assert cg.order(*batch) is None
    assert cg.effects() == ["0", "1", "2"]


@pytest.mark.statement("H05")
def test_an_ordered_queue_waits_for_the_lease_of_another_worker(cg: Consumer) -> None:
    """Deviation: the document answers success."""
    cg.put_log(lease_until_ms=cg.clock() + 20_000)
    pause_ms = cg.order(message(), handler=boom)
    assert pause_ms is not None and 15_000 < pause_ms <= 20_000
    cg.clock.ahead_ms = -30_000
    assert cg.order(message(), handler=boom) == 30_000, "RocketMQ's longest"


def test_an_ordered_message_dies_only_if_its_consumer_gives_it_up(cg: Consumer) -> None:
    assert cg.order(message(reconsume_times=100), handler=boom) == 1000
    assert cg.manual() == set()
    assert cg.order(message(reconsume_times=3), handler=boom, max_reconsume_times=3) == 1000
    assert cg.manual() == {("M1", "dead_letter")}


# -- waiting in place -------------------------------------------------------------------------------------------------


@pytest.fixture
def patient(engine: sa.Engine, tables: Tables) -> Iterator[Consumer]:
    consumer = Consumer(engine, tables, busy_wait_ms=30_000)
    with consumer.once:
        yield consumer


@pytest.mark.parametrize("finishes", [True, False], ids=["is done", "gives up"])
def test_a_message_that_another_worker_has_is_waited_for(patient: Consumer, finishes: bool) -> None:
    patient.put_log()
    waiting = Worker(lambda: patient.consume(message()))
    assert is_waiting(patient.engine, waiting)
    if finishes:
        patient.put_done("M1")
    with patient.engine.begin() as connection:
        connection.execute(sa.delete(patient.tables.log))
    assert waiting.outcome() == 1
    assert patient.effects() == ([] if finishes else ["1"])


def test_at_the_last_delivery_it_is_waited_for_without_bound(cg: Consumer) -> None:
    """Later would make it a dead letter that nobody has tried."""
    cg.put_log()
    waiting = Worker(lambda: cg.consume(message(reconsume_times=16)))
    assert is_waiting(cg.engine, waiting)
    cg.clock.ahead_ms = 61_000
    assert waiting.outcome() == 1
    assert cg.effects() == ["1"]


def test_the_end_of_the_consumer_ends_the_wait(cg: Consumer) -> None:
    cg.put_log()
    waiting = Worker(lambda: cg.consume(message(reconsume_times=16)))
    assert is_waiting(cg.engine, waiting)
    cg.once.close()
    assert waiting.outcome() == 0


def test_later_asks_for_a_delay_that_is_not_shorter_than_the_lease(cg: Consumer) -> None:
    cg.put_log()
    context = ConsumeConcurrentlyContext(QUEUE)
    cg.once.concurrently(write_effect).consume_message([message()], context)
    assert context.delay_level_when_next_consume == 5, "1 m; the lease has 50 s left, and level 4 has 30 s"
    context = ConsumeConcurrentlyContext(QUEUE)
    cg.once.concurrently(boom).consume_message([message(), message("M2")], context)
    assert context.delay_level_when_next_consume == 0, "for what failed, the broker chooses"


def test_messages_are_held_while_the_database_is_away(
    cg: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = worker_wait.begin
    calls: list[int] = []

    def away_twice(*given: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise sa.exc.TimeoutError("no connection")
        return real(*given)

    monkeypatch.setattr(worker_wait, "begin", away_twice)
    monkeypatch.setattr(worker_wait, "AWAY_PAUSES", Backoff(first_ms=10, max_ms=50))
    assert cg.consume(message()) == 1, "not later: that would cost a retry"
    assert [line.partition(" (")[0] for line in caplog.messages] == [
        "group cg: the database is away", "group cg: the database is back",
    ]  # fmt: skip
    assert cg.once.counts() == ConsumeCounts(done=1, database_outages=1)


def test_a_hold_ends_with_the_consumer(cg: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise sa.exc.TimeoutError("no connection")

    monkeypatch.setattr(worker_wait, "begin", away)
    held = Worker(lambda: cg.consume(message()))
    assert is_waiting(cg.engine, held)
    cg.once.close()
    assert held.outcome() == 0
    assert cg.once.counts() == ConsumeCounts(later=1, database_outages=1), "nobody has failed"


def test_a_message_that_is_done_between_two_statements_of_the_log_is_not_begun(
    cg: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other worker deletes its log row with its commit: who reads the inbox first, and then finds the log free,
    would call a handler for effects elsewhere a second time.
    """
    real = delivery_log.inserted_ids

    def other_commits_first(connection: sa.Connection, *given: Any) -> Any:
        # On this connection, because in SQLite there is only one that writes.
        inbox.insert(connection, cg.tables, "cg", "M1", 1)
        return real(connection, *given)

    monkeypatch.setattr(delivery_log, "inserted_ids", other_commits_first)
    calls: list[MessageExt] = []
    assert cg.consume(message(), handler=calls.append, outside=True) == 1
    assert calls == []
    assert cg.once.counts() == ConsumeCounts(duplicates_by_inbox=1)


@pytest.mark.parametrize("engine", KINDS[1:], indirect=True)
def test_who_takes_over_waits_a_moment_only_for_a_worker_that_hangs(
    cg: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effect, "LOCK_TIMEOUT_S", 1)
    cg.put_log(lease_until_ms=cg.clock() - 1)
    with cg.engine.connect() as hanging, hanging.begin():
        inbox.insert(hanging, cg.tables, "cg", "M1", 1)
        assert cg.consume(message(), handler=boom) == 0
        assert cg.once.counts() == ConsumeCounts(later=1)
    with cg.engine.connect() as connection:  # from the pool, as it was
        if cg.engine.dialect.name == "postgresql":
            assert connection.scalar(sa.text("SELECT current_setting('lock_timeout')")) == "0"
        else:
            assert connection.scalar(sa.text("SELECT @@innodb_lock_wait_timeout")) == 50
    cg.clock.ahead_ms = 61_000
    assert cg.consume(message()) == 1


# -- stubs in another database ----------------------------------------------------------------------------------------


@pytest.fixture
def stubs(request: pytest.FixtureRequest, databases: Databases, engine: sa.Engine) -> sa.Engine:
    kind = {"mysql": "mariadb"}.get(engine.dialect.name, engine.dialect.name)
    return databases.empty(kind, "stubs")


@pytest.fixture
def apart(engine: sa.Engine, stubs: sa.Engine, tables: Tables) -> Iterator[Consumer]:
    """A consumer whose stubs lie in another database."""
    consumer = Consumer(engine, tables, stubs=stubs)
    with consumer.once:
        yield consumer


def test_a_stub_of_another_database_is_confirmed_behind_the_commit(apart: Consumer, stubs: sa.Engine) -> None:
    put_stub(stubs, apart.tables, "M1")
    assert apart.consume(message()) == 1
    assert (apart.effects(), stub_status(stubs, apart.tables)) == (["1"], "confirmed")


def test_a_void_stub_of_another_database_has_no_effect(apart: Consumer, stubs: sa.Engine) -> None:
    put_stub(stubs, apart.tables, "M1", status="void")
    assert apart.consume(message(), handler=boom) == 1
    assert (apart.effects(), apart.log()) == ([], [])


def away(*_: object, **__: object) -> Any:
    raise sa.exc.OperationalError("UPDATE", {}, OSError("gone"))


def test_a_lost_confirmation_is_made_up_for_when_the_message_comes_again(
    apart: Consumer, stubs: sa.Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_stub(stubs, apart.tables, "M1")
    monkeypatch.setattr(exactly_once, "confirm", away)
    assert apart.consume(message()) == 1, "it is done; only a resend is not spared"
    assert "1 stubs are not confirmed" in caplog.text
    assert stub_status(stubs, apart.tables) == "unconfirmed"
    monkeypatch.undo()
    assert apart.consume(message()) == 1
    assert (apart.effects(), stub_status(stubs, apart.tables)) == (["1"], "confirmed")


def test_a_database_of_stubs_that_is_away_does_not_stop_the_work(
    apart: Consumer, stubs: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_stub(stubs, apart.tables, "M1")
    monkeypatch.setattr(exactly_once.stub, "status_of", away)
    assert apart.consume(message()) == 1
    assert apart.effects() == ["1"]


def test_an_effect_whose_stub_was_voided_meanwhile_in_another_database_is_in_doubt(
    apart: Consumer, stubs: sa.Engine
) -> None:
    put_stub(stubs, apart.tables, "M1")

    def void_meanwhile(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        with stubs.begin() as other:
            other.execute(sa.update(apart.tables.stub).values(status="void"))

    assert apart.consume(message(), handler=void_meanwhile) == 1
    assert (apart.effects(), apart.manual()) == (["1"], {("M1", "in_doubt")})


# -- messages without an id, in order ---------------------------------------------------------------------------------


def test_an_ordered_message_without_an_id_goes_to_the_manual_list_and_the_queue_goes_on(cg: Consumer) -> None:
    assert cg.order(message(None), message("M2", body=b"2")) is None
    assert cg.effects() == ["2"]
    assert cg.manual() == {("offset", "no_id")}


# -- purge ------------------------------------------------------------------------------------------------------------

DAY_MS = 24 * 3_600_000


def test_purge_forgets_what_is_older_than_any_duplicate_may_be(cg: Consumer) -> None:
    now_ms = cg.clock()
    with cg.engine.begin() as connection:
        inbox.insert(connection, cg.tables, "cg", "old", now_ms - 30 * DAY_MS - 1000)
        inbox.insert(connection, cg.tables, "cg", "young", now_ms - 30 * DAY_MS + 60_000)
        inbox.insert(connection, cg.tables, "cg", "new", now_ms)
    cg.put_log("old")
    assert cg.once.purge() == 1
    assert cg.done() == {"young", "new"}
    assert len(cg.log()) == 1


def test_purge_by_a_clock_that_has_jumped_forgets_nothing(cg: Consumer) -> None:
    cg.put_done("M1")
    cg.clock.ahead_ms = 365 * DAY_MS
    assert cg.once.purge() == 0
    cg.put_done("M2")
    assert cg.once.purge() == 0, "nor when messages were done by it"


def test_purge_keeps_at_least_what_store_and_ladder_may_bring_again(engine: sa.Engine, tables: Tables) -> None:
    cg = Consumer(engine, tables, inbox_retention=timedelta(seconds=1))
    with cg.once, engine.begin() as connection:
        inbox.insert(connection, tables, "cg", "M1", cg.clock() - 3 * DAY_MS)
        inbox.insert(connection, tables, "cg", "new", cg.clock())
    assert cg.once.purge() == 0


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_ms": 0}, {"lease_ms": "60"}, {"retry_slack_ms": -1}, {"retry_ladder_ms": ()},
        {"retry_ladder_ms": (-1,)}, {"max_reconsume_times": True}, {"inbox_retention": 30}, {"busy_wait_ms": -1},
        {"redis": "env:NOT_SET"}, {"redis": "http://:secret@x"}, {"stubs": "nonsense"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
def test_wrong_settings_are_refused_without_a_secret(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        Idempotency("cg", f"sqlite:///{tmp_path}/a.db", **wrong)
    assert "secret" not in str(refused.value)


def test_engines_of_references_are_closed(tmp_path: Path, tables: Tables) -> None:
    with open_engine_of(tmp_path) as engine:
        tables.metadata.create_all(engine)
        effects.metadata.create_all(engine)
    once_ = Idempotency("cg", f"sqlite:///{tmp_path}/a.db", tables)
    context = ConsumeConcurrentlyContext(QUEUE)
    once_.concurrently(write_effect).consume_message([message()], context)
    assert context.ack_index == 0
    assert any(thread.name == "LeaseKeeper_cg" for thread in threading.enumerate())
    once_.close()
    assert not any(thread.name == "LeaseKeeper_cg" for thread in threading.enumerate())
    once_.close()


@contextlib.contextmanager
def open_engine_of(directory: Path) -> Iterator[sa.Engine]:
    engine = open_engine(f"sqlite:///{directory}/a.db")
    yield engine
    engine.dispose()
