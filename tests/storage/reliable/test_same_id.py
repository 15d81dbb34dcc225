"""Messages with the id of another one: somebody made them of it and copied the properties. None is acknowledged unseen.

Tables of version 1 and workers of version 1 are here too: they know ids only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from helpers.consuming import KINDS, QUEUE, Consumer, Databases, Worker, effects, message, new_engine, write_effect
from rmq_store.client import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, MessageExt
from rmq_store.reliable import Batch, BatchWriter, ConsumeCounts, Tables, id_properties, message_id_of, migrate
from rmq_store.reliable.database import schema
from rmq_store.reliable.database.inserting import insert_rows
from rmq_store.reliable.inbox import inbox

ORDER = message("X", body=b"order", properties={"UNIQ_KEY": "X"})


def made_of_it(body: bytes, unique_key: str = "X", offset: int = 1, **more: str) -> MessageExt:
    """A message whose maker has handed on the properties of ORDER. With "X" it kept the UNIQ_KEY too."""
    return message("X", body=body, offset=offset, properties={"UNIQ_KEY": unique_key, **more})


BILLS = [made_of_it(b"tea"), made_of_it(b"milk", offset=2), made_of_it(b"rum", offset=3)]
KEYED_BILLS = [made_of_it(b"tea", "B1"), made_of_it(b"tea", "B2", 2), made_of_it(b"milk", "B3", 3)]


@pytest.fixture
def tables(databases: Databases) -> Tables:
    return databases.tables


@pytest.fixture(params=KINDS)
def cg(request: pytest.FixtureRequest, databases: Databases, tables: Tables) -> Iterator[Consumer]:
    consumer = Consumer(databases.empty(request.param), tables)
    with consumer.once:
        yield consumer


def rows_of(*messages: MessageExt) -> pa.RecordBatch:
    """The same as a listener of rows gets them."""
    text_map = pa.map_(pa.string(), pa.string())
    found = [
        {
            "topic": "Orders", "queueId": 0, "queueOffset": one.queue_offset, "body": one.body,
            "properties": list(one.properties.items()), "reconsumeTimes": 0, "brokerName": "broker-a",
        }
        for one in messages
    ]  # fmt: skip
    fields = {
        "topic": pa.string(), "queueId": pa.int32(), "queueOffset": pa.int64(), "body": pa.binary(),
        "properties": text_map, "reconsumeTimes": pa.int32(), "brokerName": pa.string(),
    }  # fmt: skip
    return pa.RecordBatch.from_pylist(found, schema=pa.schema(fields))


def write_rows(connection: sa.Connection, batch: pa.RecordBatch) -> None:
    insert_rows(connection, effects, [{"body": body.decode()} for body in batch.column("body").to_pylist()])


def one_by_one(cg: Consumer, *messages: MessageExt) -> int:
    return sum(cg.consume(one) for one in messages)


def in_order(cg: Consumer, *messages: MessageExt) -> int:
    assert cg.order(*messages) is None
    return len(messages)


def as_rows(cg: Consumer, *messages: MessageExt) -> int:
    context = ConsumeConcurrentlyContext(QUEUE)
    status = cg.once.arrow(write_rows).consume_message(rows_of(*messages), context)
    assert status is ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    return context.ack_index + 1


def outside(cg: Consumer, *messages: MessageExt) -> int:
    def effect(one: MessageExt) -> None:
        with cg.engine.begin() as connection:
            write_effect(connection, one)

    return cg.consume(*messages, handler=effect, outside=True)


Way = Callable[..., int]
WAYS: list[Way] = [one_by_one, Consumer.consume, in_order, as_rows, outside]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bills", [BILLS, KEYED_BILLS], ids=["the same key", "keys of their own"])
def test_each_message_that_was_made_of_another_one_is_done_once(
    cg: Consumer, way: Way, bills: list[MessageExt]
) -> None:
    given = [ORDER, *bills]
    cg.put_stub("X")
    for _ in range(3):
        assert way(cg, *given) == 4
    assert sorted(cg.effects()) == sorted(one.body.decode() for one in given)
    counts = cg.once.counts()
    assert (counts.done, counts.duplicates_by_inbox) == (4, 8)
    assert (cg.log(), cg.manual()) == ([], set())


@pytest.mark.parametrize("way", WAYS)
def test_in_whatever_order_they_come(cg: Consumer, way: Way) -> None:
    given = [*BILLS, ORDER, *KEYED_BILLS]
    assert way(cg, *given[::-1]) == 7
    assert way(cg, *given) == 7
    assert sorted(cg.effects()) == sorted(one.body.decode() for one in given)


def test_copies_of_one_message_count_as_one(cg: Consumer) -> None:
    """A resend, a retry, a redrive, and a message that a mirror has brought back from Kafka under a new UNIQ_KEY."""
    marks = {"MIRROR_TO": "Orders K 1 0", "MIRROR_PATH": json.dumps([["R", "Orders"], ["K", "Orders"]])}
    copies = [
        ORDER,
        message("X", body=b"order", offset=9, properties={"UNIQ_KEY": "X"}),
        message("X", body=b"order", offset=5, reconsume_times=2, properties={"UNIQ_KEY": "X", "RETRY_TOPIC": "Orders"}),
        message("X", body=b"order", offset=6, properties={"UNIQ_KEY": "K", **marks}),
        message("X", body=b"order", offset=7),
    ]
    assert cg.consume(*copies) == 5
    assert cg.effects() == ["order"]
    assert cg.done() == {"X"}


def test_a_mirrored_record_that_was_made_in_kafka_is_a_message_of_its_own(cg: Consumer) -> None:
    path = json.dumps([["K", "Bills"]])
    bills = [
        made_of_it(b"tea", key, MIRROR_TO=f"Bills {key} 1 0", MIRROR_PATH=path) for key in ("K1", "K2")
    ]
    assert cg.consume(ORDER, *bills) == 3
    assert sorted(cg.effects()) == ["order", "tea", "tea"]


def test_a_message_made_of_one_that_fails_does_not_take_its_place(cg: Consumer) -> None:
    def fail_on_order(connection: sa.Connection, one: MessageExt) -> None:
        write_effect(connection, one)
        if one.body == b"order":
            raise RuntimeError("boom")

    assert cg.consume(ORDER, handler=fail_on_order) == 0
    assert cg.consume(*BILLS) == 3
    assert cg.consume(ORDER) == 1, "its retry is no duplicate of a bill"
    assert sorted(cg.effects()) == ["milk", "order", "rum", "tea"]


def test_a_bill_that_fails_while_another_worker_does_the_order_is_not_acknowledged(cg: Consumer) -> None:
    """E1 finds the id done, by another message."""

    def order_meanwhile(connection: sa.Connection, one: MessageExt) -> None:
        raise RuntimeError("boom")

    original = cg.once._handling._once._effect.run

    def run(*args: Any, **options: Any) -> Any:
        try:
            return original(*args, **options)
        finally:
            with cg.engine.begin() as connection:
                inbox.insert(connection, cg.tables, "cg", "X", 1, "b" + "0" * 32)

    cg.once._handling._once._effect.run = run  # type: ignore[method-assign]
    assert cg.consume(BILLS[0], handler=order_meanwhile) == 0
    del cg.once._handling._once._effect.run
    assert cg.consume(BILLS[0]) == 1
    assert cg.effects() == ["tea"]


def test_many_workers_at_messages_with_one_id_leave_one_effect_each(cg: Consumer) -> None:
    workers = [Worker(lambda: one_by_one(cg, ORDER, *BILLS)) for _ in range(4)]
    for worker in workers:
        worker.outcome()
    while cg.consume(ORDER, *BILLS) < 4:
        pass
    assert sorted(cg.effects()) == ["milk", "order", "rum", "tea"]


def test_an_id_as_long_as_an_id_may_be_still_gets_one_of_its_own(cg: Consumer) -> None:
    long = "L" * 255
    given = [message(long, body=body, properties={"UNIQ_KEY": long}) for body in (b"order", b"tea", b"milk")]
    for _ in range(2):
        assert cg.consume(*given) == 3
    assert sorted(cg.effects()) == ["milk", "order", "tea"]


# -- rows of Spark, whose bodies a query may have changed --------------------------------------------------------------


def test_rows_with_the_id_of_another_message_are_on_the_manual_list(cg: Consumer) -> None:
    for _ in range(2):
        assert cg.once.apply(rows_of(ORDER, *BILLS), "Orders", write_rows) == [True] * 4
    assert cg.effects() == ["order"]
    listed = {message_id for message_id, reason in cg.manual() if reason == "same_id"}
    assert len(listed) == 3
    assert all(each.startswith("X#r") for each in listed)
    assert cg.once.counts().listed == 6
    assert cg.once.apply(rows_of(*KEYED_BILLS), "Orders", write_rows) == [True] * 3
    assert sorted(cg.effects()) == ["milk", "order", "tea", "tea"]


def test_a_row_with_an_effect_elsewhere_is_listed_too(cg: Consumer) -> None:
    seen: list[bytes] = []
    for one in (ORDER, BILLS[0], ORDER, BILLS[0]):
        assert cg.once.apply_outside(rows_of(one), "Orders", lambda one=one: seen.append(one.body))
    assert seen == [b"order"]
    assert len(cg.manual()) == 1


def test_rows_and_messages_of_one_group_are_not_compared(cg: Consumer) -> None:
    """A query may have changed the body of a message that is done: that is no other message."""
    assert cg.consume(ORDER) == 1
    assert cg.once.apply(rows_of(made_of_it(b"ORDER")), "Orders", write_rows) == [True]
    assert (cg.effects(), cg.manual()) == (["order"], set())


def write_batch(cg: Consumer, number: int, *messages: MessageExt) -> Any:
    writer = BatchWriter(cg.engine, cg.tables, "cg", write_rows)
    rows = rows_of(*messages)
    ids = [message_id_of(each, "") for each in id_properties(rows.column("properties"))]
    try:
        return writer.write(Batch("Q", number).with_ids(ids), lambda: [(ids, rows)])
    finally:
        writer.close()


def test_a_batch_lists_what_it_leaves_out(cg: Consumer) -> None:
    assert write_batch(cg, 0, ORDER, BILLS[0], *KEYED_BILLS).written == 4
    assert write_batch(cg, 1, ORDER, *BILLS).written == 0
    assert sorted(cg.effects()) == ["milk", "order", "tea", "tea"]
    assert {reason for _, reason in cg.manual()} == {"same_id"}
    assert len(cg.manual()) == 3


# -- tables and workers of version 1 -----------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Consumer]:
    """A group whose tables are of version 1."""
    tables = Tables()
    effects.to_metadata(tables.metadata)
    with new_engine(request.param, tmp_path, tables) as engine:
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE rmq_inbox DROP COLUMN fingerprint")
            connection.execute(tables.schema_version.insert().values(version=1, applied_ms=1))
        consumer = Consumer(engine, tables)
        with consumer.once:
            yield consumer


def done_by_version_1(cg: Consumer, message_id: str, body: str) -> None:
    """What a worker of version 1 commits: it knows no fingerprint, and takes a copied OUTBOX_ID for the id."""
    with cg.engine.begin() as connection:
        connection.execute(sa.insert(effects).values(body=body))
        connection.exec_driver_sql(
            "INSERT INTO rmq_inbox (group_name, message_id, done_ms, token) "
            f"VALUES ('cg', '{message_id}', {cg.clock()}, 'version 1')"
        )


def test_what_version_1_has_done_is_not_done_again(cg: Consumer) -> None:
    done_by_version_1(cg, "X", "order")
    for way in WAYS:
        assert way(cg, ORDER) == 1
    assert write_batch(cg, 0, ORDER).written == 0
    assert (cg.effects(), cg.manual()) == (["order"], set())


@pytest.mark.parametrize("way", WAYS)
def test_what_version_1_may_have_done_under_a_copied_id_is_listed(cg: Consumer, way: Way) -> None:
    """It did one of the bills, under the OUTBOX_ID of the order; nobody knows which. None is done twice, and none is
    acknowledged unseen.
    """
    done_by_version_1(cg, "X", "tea")
    for _ in range(2):
        assert way(cg, *KEYED_BILLS) == 3
    assert cg.effects() == ["tea"]
    assert cg.manual() == {("B1", "same_id"), ("B2", "same_id"), ("B3", "same_id")}
    assert cg.log() == []


def test_a_batch_lists_what_version_1_may_have_done(cg: Consumer) -> None:
    done_by_version_1(cg, "X", "tea")
    assert write_batch(cg, 0, *KEYED_BILLS).written == 0
    assert cg.manual() == {("B1", "same_id"), ("B2", "same_id"), ("B3", "same_id")}


def test_a_message_that_version_1_works_on_under_a_copied_id_is_waited_for(cg: Consumer) -> None:
    cg.put_log("X")
    assert cg.consume(KEYED_BILLS[0]) == 0
    assert cg.effects() == []
    cg.clock.ahead_ms = 60_000
    assert cg.consume(KEYED_BILLS[0]) == 1
    assert cg.effects() == ["tea"]


def test_a_worker_of_version_1_finds_what_this_one_has_done(cg: Consumer) -> None:
    assert cg.consume(ORDER) == 1
    with pytest.raises(sa.exc.IntegrityError):
        done_by_version_1(cg, "X", "order")
    assert cg.effects() == ["order"]


def test_tables_of_version_1_work_until_they_are_migrated_and_then_tell_messages_apart(
    old: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rmq_store.reliable.inbox.inbox"):
        for _ in range(2):
            assert old.consume(ORDER) == 1
    assert [line for line in caplog.messages if "of version 1" in line], caplog.messages
    assert len([line for line in caplog.messages if "of version 1" in line]) == 1
    assert old.consume(KEYED_BILLS[0]) == 1
    assert (old.effects(), old.manual()) == (["order"], {("B1", "same_id")})
    done_by_version_1(old, "OLD", "old")
    assert migrate(old.engine, old.tables) == [schema.of_tables.SCHEMA_VERSION]
    monkeypatch.setattr(inbox, "ASK_AGAIN_S", 0.0)
    inbox._lacking.clear()
    assert old.consume(ORDER, message("OLD", body=b"old", properties={"UNIQ_KEY": "OLD"})) == 2
    for _ in range(2):
        assert old.consume(message("Y", body=b"Y", properties={"UNIQ_KEY": "Y"})) == 1
        assert old.consume(message("Y", body=b"made of Y", properties={"UNIQ_KEY": "Y"})) == 1
    done_by_version_1(old, "LATE", "late")  # a worker that was not stopped
    assert old.consume(message("LATE", body=b"late", properties={"UNIQ_KEY": "LATE"})) == 1
    assert sorted(old.effects()) == ["Y", "late", "made of Y", "old", "order"]
    assert old.once.counts() == ConsumeCounts(done=3, duplicates_by_inbox=6, listed=1)
