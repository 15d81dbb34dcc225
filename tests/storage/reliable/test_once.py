"""The decision about one message, step by step: C1 to E2 of docs/reliable-design.md, without Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from consuming import (
    KINDS,
    RETRY_QUEUE,
    Consumer,
    Databases,
    Worker,
    effects,
    is_waiting,
    message,
    statements_of,
    stub_status,
    write_effect,
)
from rmq_store.client import MessageExt
from rmq_store.reliable import ConsumeCounts, Tables, inbox, once, receipts


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables()


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory, tables: Tables) -> Iterator[Databases]:
    made = Databases(tmp_path_factory.mktemp("databases"), tables)
    yield made
    made.close()


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
    from rmq_store.reliable import Idempotency

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
    assert cg.consume(message("M1", properties={"UNIQ_KEY": "U2"})) == 1
    assert cg.done() == {"U1", "M1"}


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

    def slow(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        seconds.append(Worker(lambda: other.consume(message(body=b"2"))))
        assert is_waiting(cg.engine, seconds[0])
        if not first_commits:
            raise RuntimeError("boom")

    with other.once:
        assert cg.consume(message(), handler=slow) == (1 if first_commits else 0)
        assert seconds[0].outcome() == 1
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
        "before C2": (receipts, "receive"),
        "in C3": (inbox, "insert_set"),
        "in C4": (None, ""),
        "in C5": (once, "_confirm"),
        "in C6": (receipts, "delete"),
        "after C6": (once.Once, "_confirm_elsewhere"),
    }[point]
    if point == "in C4":

        def handler(connection: sa.Connection, one: MessageExt) -> None:
            write_effect(connection, one)
            raise Killed

    elif point == "in C6":
        real = receipts.delete

        def delete(connection: sa.Connection, tables: Tables, group: str, ids: set[str]) -> None:
            real(connection, tables, group, ids)
            if ids:
                raise Killed

        monkeypatch.setattr(receipts, "delete", delete)
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

    monkeypatch.setattr(receipts, "fail", away)
    assert cg.consume(message(), handler=boom) == 0
    (row,) = cg.log()
    assert row["lease_until_ms"] > cg.clock()
    assert "its lease blocks a resend" in caplog.text


def test_a_database_that_is_away_fails_the_message_and_nothing_else(
    cg: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("SELECT", {}, OSError("gone"))

    monkeypatch.setattr(receipts, "receive", away)
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
