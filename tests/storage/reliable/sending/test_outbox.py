"""Promising messages in transactions, and sending them behind the commit: T1 to F3 of the design."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from helpers.patient import PATIENT
from rmq_store import Message, UsageError
from rmq_store.client import MessageIllegalError, Producer, RemotingConnectError, RemotingTimeoutError
from rmq_store.reliable.database.trouble import duplicate_key
from rmq_store.reliable.outbox.sending import Claimed, NotSent, Sent, send_claimed

from .cluster import START_MS, World

pytestmark = pytest.mark.long


def order(world: World, connection: sa.Connection, number: int) -> None:
    connection.execute(world.tables.metadata.tables["orders"].insert(), {"id": number, "what": "tea"})


def orders(world: World) -> int:
    with world.engine.connect() as connection:
        counted = sa.select(sa.func.count()).select_from(world.tables.metadata.tables["orders"])
        return connection.scalar(counted) or 0


def test_a_message_is_sent_when_its_transaction_has_been_committed(world: World) -> None:
    outbox = world.outbox()
    with outbox.begin() as connection:
        order(world, connection, 1)
        stub = outbox.add(connection, Message("Orders", b"tea", tags="A"))
        assert world.bodies() == []
    assert world.bodies() == [b"tea"]
    outbox.close()
    row = world.stub(stub.message_id)
    assert (row.status, row.pending_groups, row.send_count, row.sent_ms) == ("unconfirmed", 1, 1, START_MS)
    assert (row.broker_name, row.queue_offset, row.claim_token) == ("rmq-embedded", 0, None)
    assert row.resend_ms == START_MS + 15 * 60_000


def test_the_id_is_in_the_message_under_both_names(world: World) -> None:
    outbox = world.outbox()
    with outbox.begin() as connection:
        stub = outbox.add(connection, Message("Orders", b"tea"), message_id="ORDER-1")
    assert stub.message_id == "ORDER-1"
    (stored,) = world.stored()
    assert stored["msgId"] == dict(stored["properties"])["OUTBOX_ID"] == "ORDER-1"


def test_a_message_that_forwards_all_properties_is_sent_without_the_marks_of_a_mirror(world: World) -> None:
    forwarded = {"a": "1", "MIRROR_TO": "Orders X 0 00000000", "MIRROR_FROM": "k t 0 0", "KAFKA_TOMBSTONE": "1"}
    outbox = world.outbox()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"tea", properties=forwarded))
    (stored,) = world.stored()
    assert dict(stored["properties"]).keys() == {"UNIQ_KEY", "OUTBOX_ID", "a"}


def test_nothing_is_sent_of_a_transaction_that_is_rolled_back(world: World) -> None:
    outbox = world.outbox()
    with pytest.raises(RuntimeError, match="no tea"), outbox.begin() as connection:
        order(world, connection, 1)
        outbox.add(connection, Message("Orders", b"tea"))
        raise RuntimeError("no tea")
    assert (world.bodies(), world.stubs(), orders(world)) == ([], [], 0)


def test_nothing_is_sent_of_a_savepoint_that_is_rolled_back(world: World) -> None:
    outbox = world.outbox()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"kept"))
        with pytest.raises(RuntimeError), connection.begin_nested():
            outbox.add(connection, Message("Orders", b"lost"))
            raise RuntimeError
        with connection.begin_nested():
            outbox.add(connection, Message("Orders", b"nested"))
    assert sorted(world.bodies()) == [b"kept", b"nested"]


def test_stubs_that_are_not_committed_yet_are_not_sent(world: World) -> None:
    outbox = world.outbox()
    with world.engine.connect() as connection:
        stub = outbox.add(connection, Message("Orders", b"tea"))
        if world.engine.dialect.name != "sqlite":
            assert "not there" in outbox.flush_after_commit(stub).left[stub.message_id]
        connection.rollback()
    assert "not there" in outbox.flush_after_commit(stub).left[stub.message_id]
    assert world.bodies() == []


def test_a_commit_whose_answer_was_lost_is_looked_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = world.outbox()
    commit = world.engine.dialect.do_commit

    def commit_and_lose(connection: Any) -> None:
        commit(connection)
        monkeypatch.undo()
        raise sa.exc.OperationalError("COMMIT", {}, OSError("gone"), connection_invalidated=True)

    with pytest.raises(sa.exc.OperationalError), outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"tea"))
        monkeypatch.setattr(world.engine.dialect, "do_commit", commit_and_lose)
    assert world.bodies() == [b"tea"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_failed_send_does_not_look_like_a_failed_commit(
    world: World, is_stored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = world.outbox()
    world.broker.fail(RemotingTimeoutError("no answer"), is_stored=is_stored)
    with caplog.at_level(logging.WARNING), outbox.begin() as connection:
        order(world, connection, 1)
        stub = outbox.add(connection, Message("Orders", b"tea"))
    assert "left to the relay" in caplog.text
    assert orders(world) == 1
    outbox.close()
    assert world.stub(stub.message_id).sent_ms is None
    world.clock.advance(1_000)
    assert world.relay().run_once().sent == 1
    assert world.bodies() == [b"tea"] * (1 + is_stored)


def test_flush_tells_what_it_has_sent_and_why_it_has_left_the_rest(world: World) -> None:
    outbox = world.outbox()
    with world.engine.begin() as connection:
        first = outbox.add(connection, Message("Orders", b"1"))
        later = outbox.add(connection, Message("Orders", b"2"), send_now=False)
    flushed = outbox.flush_after_commit(first, later)
    assert [flushed.sent[first.message_id].broker_name] == ["rmq-embedded"]
    assert flushed.left == {later.message_id: "a relay sends it"}
    assert outbox.flush_after_commit().sent == {}


def test_a_database_that_cannot_be_asked_leaves_the_message_to_the_relay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = world.outbox()
    with world.engine.begin() as connection:
        stub = outbox.add(connection, Message("Orders", b"1"))

    def fail(*arguments: Any, **options: Any) -> None:
        raise sa.exc.OperationalError("SELECT", {}, OSError("gone"))

    monkeypatch.setattr("rmq_store.reliable.outbox.outbox.look", fail)
    assert outbox.flush_after_commit(stub).left == {stub.message_id: "the database cannot be asked"}
    assert world.bodies() == []


# -- sharding keys -----------------------------------------------------------------------------------------------------


def test_a_key_that_has_an_older_unsent_message_waits_for_it(world: World) -> None:
    outbox = world.outbox()
    world.add(Message("Orders", b"1", sharding_key="K"))
    with world.engine.begin() as connection:
        second = outbox.add(connection, Message("Orders", b"2", sharding_key="K"))
        other = outbox.add(connection, Message("Orders", b"other", sharding_key="L"))
    flushed = outbox.flush_after_commit(second, other)
    assert flushed.sent.keys() == {other.message_id}
    assert "older" in flushed.left[second.message_id]
    outbox.close()
    # Its claim was given back, and nothing was counted: the relay need not wait for the lease.
    assert (world.stub(second.message_id).claim_token, world.stub(second.message_id).send_count) == (None, 0)
    assert world.relay().run_once().sent == 2
    assert [body for body in world.bodies() if body != b"other"] == [b"1", b"2"]


def test_a_key_waits_for_what_this_process_could_not_send_also_when_that_is_written(world: World) -> None:
    outbox = world.outbox()
    world.broker.fail(RemotingTimeoutError("no answer"))
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"1", sharding_key="K"))
    outbox._marks.write()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"2", sharding_key="K"))
    assert world.bodies() == []
    outbox.close()
    world.clock.advance(10_000)
    assert world.relay().run_once().sent == 2
    assert world.bodies() == [b"1", b"2"]


def test_a_key_stops_at_a_message_whose_claim_is_over(world: World) -> None:
    claimed = [
        Claimed(number, f"id{number}", Message("Orders", b"%d" % number, sharding_key="K"), 1, "token", until_ms)
        for number, until_ms in ((1, world.clock()), (2, world.clock() + 1))
    ]
    outcomes = [each for some in send_claimed(world.producer, claimed, world.clock) for each in some]
    assert [type(each) for each in outcomes] == [NotSent, NotSent]
    assert world.bodies() == []


def test_what_this_process_has_sent_and_not_yet_marked_counts_as_sent(world: World) -> None:
    outbox = world.outbox()
    for body in (b"1", b"2", b"3"):
        with outbox.begin() as connection:
            outbox.add(connection, Message("Orders", body, sharding_key="K"))
    assert world.bodies() == [b"1", b"2", b"3"]
    assert [row.sent_ms for row in world.stubs()] == [None] * 3
    outbox.close()
    assert [row.sent_ms for row in world.stubs()] == [START_MS] * 3


def test_messages_of_a_key_in_one_transaction_go_in_the_order_of_their_adding(world: World) -> None:
    outbox = world.outbox()
    with outbox.begin() as connection:
        for number in range(5):
            delay = {"delay_level": 1} if number == 2 else {}
            outbox.add(connection, Message("Orders", b"%d" % number, sharding_key="K", **delay))
    assert world.broker.requests == [[b"0", b"1"], [b"2"], [b"3", b"4"]]


def test_a_message_on_the_manual_list_holds_up_its_key(world: World) -> None:
    (first,) = world.add(Message("Orders", b"1", sharding_key="K"))
    world.update(first, is_manual=True)
    outbox = world.outbox()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"2", sharding_key="K"))
    assert world.bodies() == []
    world.update(first, status="void")
    outbox.close()
    assert world.relay().run_once().sent == 1
    assert world.bodies() == [b"2"]


# -- claims ------------------------------------------------------------------------------------------------------------


def test_a_transaction_that_has_outlived_its_claim_renews_it(world: World) -> None:
    outbox = world.outbox()
    with world.engine.begin() as connection:
        stub = outbox.add(connection, Message("Orders", b"tea"))
        world.clock.advance(60_000)
    assert outbox.flush_after_commit(stub).sent.keys() == {stub.message_id}
    assert world.stubs()[0].claim_until_ms == START_MS + 90_000


def test_what_a_relay_has_claimed_since_is_not_sent_here(world: World) -> None:
    outbox = world.outbox()
    with world.engine.begin() as connection:
        stub = outbox.add(connection, Message("Orders", b"tea"))
    world.clock.advance(60_000)
    world.update(claim_token="another", claim_until_ms=world.clock() + 30_000)
    assert "somebody else" in outbox.flush_after_commit(stub).left[stub.message_id]
    assert world.bodies() == []


def test_a_stub_of_a_process_that_died_is_sent_by_the_relay_when_its_claim_is_over(world: World) -> None:
    outbox = world.outbox()
    with world.engine.begin() as connection:
        outbox.add(connection, Message("Orders", b"tea"))
    assert world.relay().run_once().sent == 0
    world.clock.advance(30_000)
    assert world.relay().run_once().sent == 1
    assert world.stubs()[0].send_count == 2


# -- marks -------------------------------------------------------------------------------------------------------------


def test_marks_are_written_in_batches_a_moment_late(world: World) -> None:
    writes: list[str] = []

    @sa.event.listens_for(world.engine, "before_cursor_execute")
    def _seen(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("UPDATE"):
            writes.append(statement)

    outbox = world.outbox(mark_delay_ms=1_000)  # ten messages take less, also on a slow disk
    for number in range(10):
        with outbox.begin() as connection:
            outbox.add(connection, Message("Orders", b"%d" % number))
    deadline = time.monotonic() + 30
    while any(row.sent_ms is None for row in world.stubs()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(writes) < 10


def test_marks_that_the_database_does_not_take_are_written_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = world.outbox()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"tea", sharding_key="K"))

    def fail(*arguments: Any, **options: Any) -> None:
        raise sa.exc.OperationalError("UPDATE", {}, OSError("gone"))

    with monkeypatch.context() as patch:
        patch.setattr("rmq_store.reliable.outbox.sent_marks.transact", fail)
        outbox._marks.write()
    # It still counts as sent for the next one of its key.
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"more", sharding_key="K"))
    outbox.close()
    assert [row.sent_ms for row in world.stubs()] == [START_MS] * 2
    assert world.bodies() == [b"tea", b"more"]


def test_marks_whose_claim_is_over_are_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = world.outbox()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"tea"))

    def fail(*arguments: Any, **options: Any) -> None:
        raise sa.exc.OperationalError("UPDATE", {}, OSError("gone"))

    world.clock.advance(30_000)
    with monkeypatch.context() as patch:
        patch.setattr("rmq_store.reliable.outbox.sent_marks.transact", fail)
        outbox._marks.write()
    outbox.close()
    assert world.stubs()[0].sent_ms is None
    assert world.relay().run_once().sent == 1


def test_a_mark_does_not_touch_what_somebody_else_has_claimed(world: World) -> None:
    outbox = world.outbox()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"tea"))
    world.update(claim_token="another", claim_until_ms=START_MS + 90_000)
    outbox.close()
    assert (world.stubs()[0].claim_token, world.stubs()[0].sent_ms) == ("another", None)


# -- who may add, and what ---------------------------------------------------------------------------------------------


def test_a_session_of_the_orm_is_as_good_as_a_connection(world: World) -> None:
    outbox = world.outbox()
    with Session(world.engine) as session:
        with session.begin_nested():
            stub = outbox.add(session, Message("Orders", b"tea"))
        session.commit()
    assert outbox.flush_after_commit(stub).sent.keys() == {stub.message_id}
    with outbox.begin() as connection, Session(connection) as session:
        outbox.add(session, Message("Orders", b"more"))
        session.commit()
    assert sorted(world.bodies()) == [b"more", b"tea"]


def test_stubs_of_code_that_runs_in_a_transaction_of_others_are_collected(world: World) -> None:
    outbox = world.outbox()
    with world.engine.begin() as connection, outbox.collecting(connection) as outer:
        outbox.add(connection, Message("Orders", b"1"))
        with outbox.collecting(connection) as inner:
            outbox.add(connection, Message("Orders", b"2"))
    assert [stub.message.body for stub in inner] == [b"2"]
    assert outbox.flush_after_commit(*outer).sent.keys() == {stub.message_id for stub in outer}
    assert len(outer) == 2


UNSENDABLE = {
    "an empty body": Message("Orders", b""),
    "a topic that is none": Message("a b", b"x"),
    "a topic of the broker": Message("TBW102", b"x"),
    "a body that is too large": Message("Orders", bytes((4 << 20) + 1)),
    "a property with a separator": Message("Orders", b"x", properties={"a": "\x01"}),
    "a half message": Message("Orders", b"x", properties={"TRAN_MSG": "true"}),
    "a property that is no text": Message("Orders", b"x", properties={"a": "\udfff"}),
    "a sharding key that is no text": Message("Orders", b"x", sharding_key="\ud800"),
    "a long sharding key": Message("Orders", b"x", sharding_key="k" * 256),
    "a sharding key with NUL": Message("Orders", b"x", sharding_key="a\0b"),
    "a flag that is too large": Message("Orders", b"x", flag=2**31),
    "no message": b"x",
}


@pytest.mark.parametrize("case", UNSENDABLE)
def test_what_can_never_be_sent_is_not_promised(world: World, case: str) -> None:
    outbox = world.outbox()
    with outbox.begin() as connection:
        with pytest.raises(UsageError):
            outbox.add(connection, UNSENDABLE[case])  # type: ignore[arg-type]
        order(world, connection, 1)
    assert (world.stubs(), orders(world)) == ([], 1)


@pytest.mark.parametrize("groups", [(), "stock", ("",), ("a b",), ("g" * 129,), (7,)])
def test_groups_that_cannot_confirm_are_refused(world: World, groups: Any) -> None:
    with world.engine.begin() as connection, pytest.raises(UsageError, match="group"):
        world.outbox().add(connection, Message("Orders", b"x"), groups=groups)
    with world.engine.begin() as connection, pytest.raises(UsageError, match="group"):
        world.outbox(groups=()).add(connection, Message("Orders", b"x"))


def test_a_group_that_is_named_twice_confirms_once(world: World) -> None:
    with world.engine.begin() as connection:
        stub = world.outbox().add(connection, Message("Orders", b"x"), groups=("a", "b", "a"))
    assert (stub.groups, world.stubs()[0].pending_groups) == (("a", "b"), 2)


def test_a_connection_that_commits_each_statement_is_refused(world: World) -> None:
    outbox = world.outbox()
    with world.engine.connect() as connection:
        if world.engine.dialect.name == "sqlite":
            connection.exec_driver_sql("ROLLBACK")  # What an application may do behind SQLAlchemy's back.
        else:
            connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(UsageError, match="AUTOCOMMIT"):
            outbox.add(connection, Message("Orders", b"tea"))
    assert world.stubs() == []
    with pytest.raises(UsageError, match="run_sync"):
        outbox.add(object(), Message("Orders", b"tea"))  # type: ignore[arg-type]


@pytest.mark.parametrize("message_id", ["", "A B", "A\n", "A" * 256, 7])
def test_an_id_that_no_table_can_hold_is_refused(world: World, message_id: Any) -> None:
    with world.engine.begin() as connection, pytest.raises(UsageError, match="message id"):
        world.outbox().add(connection, Message("Orders", b"x"), message_id=message_id)


def test_messages_that_are_made_of_a_sent_one_have_ids_of_their_own(world: World) -> None:
    """A handler hands the properties of its order on. An outbox gives each bill an id, and sends it with that id."""
    outbox = world.outbox()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"order", properties={"traceparent": "00-abc"}))
    (order,) = world.stored()
    received = dict(order["properties"]) | {"MIN_OFFSET": "0", "CONSUME_START_TIME": "1", "MIRROR_TO": "x"}
    with outbox.begin() as connection:
        stubs = [outbox.add(connection, Message("Orders", item, properties=received)) for item in (b"tea", b"milk")]
    bills = [dict(row["properties"]) for row in world.stored() if row["body"] != b"order"]
    assert [bill["OUTBOX_ID"] for bill in bills] == [bill["UNIQ_KEY"] for bill in bills]
    assert {bill["OUTBOX_ID"] for bill in bills} == {stub.message_id for stub in stubs}
    assert len({received["OUTBOX_ID"], *(stub.message_id for stub in stubs)}) == 3
    assert all(bill.keys() == {"UNIQ_KEY", "OUTBOX_ID", "traceparent"} for bill in bills)


def test_an_id_is_promised_once(world: World) -> None:
    outbox = world.outbox()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"tea"), message_id="A")
    with pytest.raises(UsageError, match="has a stub already"), outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"more"), message_id="A")
    assert world.bodies() == [b"tea"]


@pytest.mark.parametrize("message_id", [None, "B"])
def test_a_sequence_behind_its_table_is_no_duplicate_message(world: World, message_id: str | None) -> None:
    """As after a restore of rows without the sequence: the next row gets the seq of one that is there."""
    outbox = world.outbox()
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"tea"), message_id="A", send_now=False)
    with world.engine.begin() as connection:
        connection.execute(sa.update(world.tables.stub).values(seq=world.tables.stub.c.seq + 1))
    if world.engine.dialect.name != "postgresql":  # the next number of the others is behind all rows
        with outbox.begin() as connection:
            outbox.add(connection, Message("Orders", b"milk"), message_id=message_id, send_now=False)
        return
    with pytest.raises(UsageError, match=r"The sequence is behind its table.* max\(seq\)"):
        with outbox.begin() as connection:
            outbox.add(connection, Message("Orders", b"milk"), message_id=message_id, send_now=False)
    with world.engine.begin() as connection:
        name = world.tables.stub.name
        step = f"SELECT setval(pg_get_serial_sequence('{name}', 'seq'), (SELECT max(seq) FROM {name}))"
        connection.exec_driver_sql(step)
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"milk"), message_id=message_id, send_now=False)
    with pytest.raises(UsageError, match="'A' has a stub already"), outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"again"), message_id="A")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Duplicate entry '7' for key 'PRIMARY'", "PRIMARY"),
        ("Duplicate entry '7' for key 'rmq_stub.PRIMARY'", "PRIMARY"),
        ("Duplicate entry 'x' for key 'PRIMARY'' for key 'message_id'", "message_id"),
        ("(1062, \"Duplicate entry '7' for key 'PRIMARY'\")", "PRIMARY"),
        ("UNIQUE constraint failed: rmq_stub.message_id", "message_id"),
        ("llave duplicada\nDETAIL:  Ya existe la llave (seq)=(7).", "seq"),
        ("doppelt\nDETAIL:  Key (message_id)=((seq)=(7) already exists.", "message_id"),
        ("duplicate key value violates a constraint", ""),
    ],
)
def test_drivers_name_the_key_that_is_there(text: str, key: str) -> None:
    assert duplicate_key(sa.exc.IntegrityError("INSERT", {}, Exception(text))) == key


def test_a_producer_that_is_not_started_checks_and_leaves_the_sending_to_others(world: World) -> None:
    outbox = world.outbox()
    outbox._producer = Producer("pg_web", world.cluster, PATIENT)
    with pytest.raises(MessageIllegalError), outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b""))
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"tea"))
    outbox.close()
    assert world.stubs()[0].send_count == 0
    world.clock.advance(1_000)
    assert world.relay().run_once().sent == 1


def test_a_forked_child_is_told_to_make_its_own(world: World) -> None:
    outbox = world.outbox()
    child = os.fork()
    if child == 0:
        try:
            outbox.flush_after_commit()
        except UsageError as error:
            os._exit(7 if "forked child" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_many_threads_promise_and_send_at_one_time(world: World) -> None:
    outbox = world.outbox(mark_delay_ms=5, clock=lambda: time.time_ns() // 1_000_000)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for step in range(6):
                with outbox.begin() as connection:
                    outbox.add(connection, Message("Orders", b"%d-%d" % (number, step), sharding_key=f"K{number}"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    outbox.close()
    world.clock.now_ms = time.time_ns() // 1_000_000
    world.relay().run_once()
    found = world.bodies()
    assert len(found) == 36
    for number in range(6):
        of_key = [body for body in found if body.startswith(b"%d-" % number)]
        assert of_key == [b"%d-%d" % (number, step) for step in range(6)]


def test_the_marks_of_others_are_not_lost_when_a_send_is_interrupted(world: World) -> None:
    outbox = world.outbox()
    world.broker.fail(None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"1"))
        outbox.add(connection, Message("Others", b"2"))
    assert [each.claimed.message.body for each in outbox._marks._waiting if isinstance(each, Sent)] == [b"1"]


def test_an_error_that_says_nothing_was_sent_is_not_counted(world: World) -> None:
    outbox = world.outbox()
    world.broker.fail(RemotingConnectError("refused"))
    with outbox.begin() as connection:
        outbox.add(connection, Message("Orders", b"1"))
    outbox.close()
    assert (world.stubs()[0].send_count, world.stubs()[0].resend_ms) == (0, START_MS + 1_000)
