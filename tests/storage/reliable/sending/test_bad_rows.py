"""Rows that somebody has damaged by hand: each goes to the manual list with its id, and all others go on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store import Message
from rmq_store.client import MQBrokerError, ResponseCode
from rmq_store.reliable.database.manual_list import ManualEntry, list_entries
from rmq_store.reliable.operator import manual_work
from rmq_store.reliable.operator.message_report import report_of
from rmq_store.reliable.operator.stub_status import STATES, stubs_in
from rmq_store.reliable.relay.inboxes import Inboxes

from .cluster import START_MS, World
from .test_resending import QUARTER_MS, high_water, log_row, sent

# Each database can hold these.
DAMAGED: dict[str, dict[str, Any]] = {
    "properties are no JSON": {"properties": "{"},
    "properties are empty": {"properties": ""},
    "properties are null": {"properties": "null"},
    "properties are a number": {"properties": "1"},
    "properties are a long number": {"properties": "9" * 10_000},
    "properties are a text": {"properties": '"DELAY"'},
    "properties are an object": {"properties": '{"a":"1"}'},
    "properties are nested without end": {"properties": "[" * 200_000},
    "a property is a number": {"properties": '[["DELAY",3]]'},
    "a property is null": {"properties": '[["a",null]]'},
    "a property has three parts": {"properties": '[["a","b","c"]]'},
    "a property is a text of two letters": {"properties": '["ab"]'},
    "a name has a separator": {"properties": '[["a\\u0001","b"]]'},
    "a value has a separator": {"properties": '[["a","b\\u0002"]]'},
    "a value is empty": {"properties": '[["a",""]]'},
    "a value is half of a pair": {"properties": '[["a","\\ud800"]]'},
    "properties are too long": {"properties": '[["a","' + "x" * 40_000 + '"]]'},
    "a bad topic": {"topic": "no such topic!"},
    "an empty topic": {"topic": ""},
    "a topic of the system": {"topic": "SCHEDULE_TOPIC_XXXX"},
    "a topic with a line break": {"topic": "Orders\nOrders"},
    "no such queue": {"queue_id": 99},
    "a negative queue": {"queue_id": -1},
    "an empty body": {"body": b""},
    "a body that is too large": {"body": bytes(5 << 20)},
    "an unknown status": {"status": "odd"},
    "an empty status": {"status": ""},
    "a status behind all others": {"status": "zzz"},
}

# Other databases have types that hold.
DAMAGED_IN_SQLITE: dict[str, str] = {
    "the body is text": "body='text'",
    "the body is a number": "body=7",
    "the topic is no UTF-8": "topic=CAST(X'ff' AS TEXT)",
    "the topic is bytes": "topic=X'ff'",
    "properties are bytes": "properties=X'5b5d'",
    "properties are no UTF-8": "properties=CAST(X'ff' AS TEXT)",
    "the count is a text": "send_count='many'",
    "the flag is a text": "flag='many'",
    "the flag has 40 bits": "flag=1099511627776",
    "the queue is a text": "queue_id='first'",
    "the queue is a float": "queue_id=1.5",
    "the born time is a text": "born_timestamp_ms='now'",
    "the born time is a float": "born_timestamp_ms=1e300",
    "the key is bytes": "sharding_key=X'00'",
    "the status is bytes": "status=X'ff'",
    "the resend time is a text": "resend_ms='soon'",
    "the resend time is bytes": "resend_ms=X'00'",
    "whether people have it is a text": "is_manual='no'",
    "whether people have it is a number": "is_manual=2",
    "whether people have it is a negative number": "is_manual=-1",
}


def listed(world: World) -> list[ManualEntry]:
    with world.engine.connect() as connection:
        return list_entries(connection, world.tables, limit=100)


def shown(world: World, message_id: str) -> str:
    """What people see, in all views."""
    inboxes = Inboxes(world.engine)
    assert len(list(stubs_in(inboxes, world.tables, STATES, world.clock()))) >= 1
    return repr(report_of(inboxes, world.tables, message_id))


def check(world: World, caplog: pytest.LogCaptureFixture, bad: str, others: Sequence[bytes]) -> None:
    relay = world.relay()
    shown(world, bad)
    with caplog.at_level(logging.WARNING):
        report = relay.run_once()
    assert dict(report.manual) == {"illegal": 1}
    assert sorted(world.bodies()) == sorted(others)
    assert world.manual() == [(bad, "illegal")]
    assert world.stub(bad).is_manual
    assert f"{bad} illegal" in caplog.text
    shown(world, bad)
    # It stays there, once, and what comes later goes on.
    world.clock.advance(1_000)
    world.add(Message("Orders", b"later"))
    report = relay.run_once()
    assert (report.sent, report.failed, dict(report.manual)) == (1, 0, {})
    assert world.manual() == [(bad, "illegal")]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_stub_goes_to_people_and_the_others_go_on(
    world: World, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = Message("Orders", b"K", sharding_key="K")
    bad, *_ = world.add(Message("Orders", b"bad"), Message("Orders", b"good"), keyed)
    world.update(bad, **DAMAGED[damage])
    check(world, caplog, bad, [b"good", b"K"])


@pytest.mark.parametrize("damage", DAMAGED_IN_SQLITE)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_value_of_a_wrong_type_goes_to_people_too(
    world: World, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, _ = world.add(Message("Orders", b"bad"), Message("Orders", b"good", sharding_key="K"))
    world.execute(sa.text(f"UPDATE rmq_stub SET {DAMAGED_IN_SQLITE[damage]} WHERE message_id='{bad}'"))
    with caplog.at_level(logging.WARNING):
        reports = [world.relay().run_once() for _ in range(2)]
    assert [dict(report.manual) for report in reports] == [{"illegal": 1}, {}]
    assert world.bodies() == [b"good"]
    assert [entry.message_id for entry in listed(world)] == [bad]
    assert f"{bad} illegal" in caplog.text
    shown(world, bad)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("message_id", ["X'ff'", "CAST(X'ff' AS TEXT)", "''"])
def test_an_id_that_no_table_can_hold_is_listed_by_its_number(world: World, message_id: str) -> None:
    bad, _ = world.add(Message("Orders", b"bad"), Message("Orders", b"good"))
    world.execute(sa.text(f"UPDATE rmq_stub SET message_id={message_id}, properties='{{' WHERE message_id='{bad}'"))
    relay = world.relay()
    assert dict(relay.run_once().manual) == {"illegal": 1}
    assert world.bodies() == [b"good"]
    assert [entry.message_id for entry in listed(world)] == ["seq=1"]
    assert dict(relay.run_once().manual) == {}
    assert len(list(stubs_in(Inboxes(world.engine), world.tables, STATES, world.clock()))) == 2


@pytest.mark.parametrize("damage", ["properties are no JSON", "no such queue", "an unknown status"])
def test_a_damaged_stub_holds_up_its_key_and_no_other(world: World, damage: str) -> None:
    first, bad, _, _ = world.add(
        Message("Orders", b"1", sharding_key="K"), Message("Orders", b"2", sharding_key="K"),
        Message("Orders", b"3", sharding_key="K"), Message("Orders", b"other", sharding_key="L"),
    )  # fmt: skip
    world.update(bad, **DAMAGED[damage])
    if damage == "no such queue":  # a key has its queue by its hash
        world.broker.before = refuse_twos
    relay = world.relay()
    for _ in range(3):
        relay.run_once()
        world.clock.advance(300_000)
    assert sorted(world.bodies()) == [b"1", b"other"]
    assert world.manual() == [(bad, "illegal")]
    assert "waits for" in next(s.why for s in stubs_in(Inboxes(world.engine), world.tables, ["unsent"], world.clock()))
    manual_work.void_message(Inboxes(world.engine), world.tables, bad)
    relay.run_once()
    assert sorted(world.bodies()) == [b"1", b"3", b"other"]
    assert world.manual() == []
    assert world.stub(first).status == "unconfirmed"


def refuse_twos(messages: Sequence[Message]) -> None:
    if any(message.body == b"2" for message in messages):
        raise MQBrokerError(ResponseCode.MESSAGE_ILLEGAL, "no twos here")


@pytest.mark.parametrize("damage", ["properties are no JSON", "an unknown status"])
def test_a_stub_that_was_corrected_is_sent_by_a_retry(world: World, damage: str) -> None:
    (bad,) = world.add(Message("Orders", b"tea", tags="A"))
    right = world.stub(bad)
    world.update(bad, **DAMAGED[damage], pending_groups=-3, send_count=-7)
    relay, inboxes = world.relay(), Inboxes(world.engine)
    relay.run_once()
    # Without a correction it is there again, unless the retry itself corrects it.
    manual_work.retry(inboxes, world.tables, bad, world.clock())
    relay.run_once()
    if damage == "properties are no JSON":
        assert world.manual() == [(bad, "illegal")]
        world.update(bad, properties=right.properties)
        assert manual_work.retry(inboxes, world.tables, bad, world.clock()) == "CHANGED"
        relay.run_once()
    assert (world.manual(), world.bodies()) == ([], [b"tea"])
    assert (world.stub(bad).pending_groups, world.stub(bad).status) == (1, "unconfirmed")
    (stored,) = world.stored()
    assert dict(stored["properties"])["OUTBOX_ID"] == bad


def test_a_message_whose_properties_have_lost_its_id_is_sent_with_it(world: World) -> None:
    (message_id,) = world.add(Message("Orders", b"tea"))
    world.update(message_id, properties='[["a","b"]]')
    assert world.relay().run_once().sent == 1
    (stored,) = world.stored()
    assert dict(stored["properties"]) == {"UNIQ_KEY": message_id, "OUTBOX_ID": message_id, "a": "b"}


@pytest.mark.parametrize(
    "columns",
    [
        {"send_count": -5}, {"deliver_ms": 2**60}, {"deliver_ms": -1}, {"resend_ms": 2**60}, {"resend_ms": -(2**60)},
        {"claim_until_ms": 2**60, "claim_token": "gone"}, {"pending_groups": -1}, {"created_ms": -1},
        {"born_timestamp_ms": -1}, {"born_timestamp_ms": 2**60}, {"properties": '[["DELAY","99999999999"]]'},
        {"properties": '[["TIMER_DELIVER_MS","99999999999999999999999"]]'},
    ],
)  # fmt: skip
def test_numbers_beyond_all_sense_stop_nobody(world: World, columns: dict[str, Any]) -> None:
    odd, good = world.add(Message("Orders", b"odd"), Message("Orders", b"good"))
    world.update(odd, **columns)
    relay = world.relay()
    for _ in range(3):
        relay.run_once()
        world.clock.advance(QUARTER_MS)
    assert b"good" in world.bodies()
    assert world.stub(odd).sent_ms is not None or world.manual() == [(odd, "illegal")]
    assert world.stub(good).sent_ms is not None


# -- rows that were sent -----------------------------------------------------------------------------------------------


def test_a_stub_that_was_damaged_after_it_was_sent_goes_to_people_and_others_are_resent(world: World) -> None:
    bad, gone, good = sent(world, *(Message("Orders", b"%d" % number, queue_id=0) for number in range(3)))
    high_water(world, good)
    world.update(bad, properties="{")
    world.update(gone, sent_ms=world.clock() + 400 * 86_400_000)
    report = world.relay().run_once()
    assert (report.resent, dict(report.manual)) == (1, {"illegal": 2})
    assert world.manual() == sorted([(bad, "illegal"), (gone, "illegal")])
    assert world.stub(bad).send_count >= 1


def test_a_stub_without_groups_goes_to_people_and_one_whose_groups_are_done_is_confirmed(world: World) -> None:
    alone, done, good = sent(world, *(Message("Orders", b"%d" % number, queue_id=0) for number in range(3)))
    groups = world.tables.stub_group
    world.execute(groups.delete().where(groups.c.message_id == alone))
    world.execute(groups.update().where(groups.c.message_id == done).values(confirmed_ms=1))
    world.execute(groups.insert(), {"message_id": "nobody", "group_name": "stock", "confirmed_ms": None})
    world.update(done, pending_groups=7)
    report = world.relay().run_once()
    assert (report.confirmed, dict(report.manual), dict(report.waiting)) == (1, {"illegal": 1}, {"in_queue": 1})
    assert world.manual() == [(alone, "illegal")]
    assert [world.stub(each).status for each in (alone, done, good)] == ["unconfirmed", "confirmed", "unconfirmed"]


def test_a_place_that_is_half_there_is_none(world: World) -> None:
    (message_id,) = sent(world)
    world.update(message_id, sent_queue_id=None)
    assert world.relay(backend=world.cluster).run_once().resent == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_rows_of_consumers_that_cannot_be_read_hold_up_their_message_and_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = sent(world, *(Message("Orders", b"%d" % number, queue_id=0) for number in range(2)))
    high_water(world, good)
    log_row(world, bad)
    world.execute(sa.text("UPDATE rmq_log SET lease_until_ms='soon', lease_token='t'"))
    with caplog.at_level(logging.WARNING):
        report = world.relay().run_once()
    assert (report.resent, dict(report.waiting)) == (1, {"unreachable": 1})
    assert bad in caplog.text
    shown(world, bad)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_entry_of_the_manual_list_that_cannot_be_read_is_told_of_once_with_the_others(world: World) -> None:
    world.add(Message("Orders", b"tea"))
    entry = {"group_name": "g", "reason": "dead_letter", "detail": "d", "created_ms": START_MS}
    world.execute(world.tables.manual.insert(), [{**entry, "message_id": each} for each in ("bad", "good")])
    world.execute(sa.text("UPDATE rmq_manual SET created_ms='once', reason='odd', detail=X'ff' WHERE message_id='bad'"))
    told: list[str] = []

    class Told:
        def notify(self, entries: Sequence[ManualEntry]) -> None:
            told.extend(sorted(f"{entry.message_id} {entry.reason}" for entry in entries))

    relay = world.relay(notifier=Told())
    for _ in range(2):
        assert relay.run_once().failed == 0
    assert told == ["bad odd", "good dead_letter"]


# -- tables that an application has made, with NULL allowed ------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    ["body", "properties", "topic", "send_count", "flag", "status", "resend_ms", "claim_until_ms", "is_manual"],
)
def test_a_null_goes_to_people_where_the_table_allows_it(world: World, column: str) -> None:
    bad, _ = world.add(Message("Orders", b"bad"), Message("Orders", b"good"))
    allow_null(world, column)
    world.update(bad, **{column: sa.null()})
    reports = [world.relay().run_once() for _ in range(2)]
    assert [dict(report.manual) for report in reports] == [{"illegal": 1}, {}]
    assert world.bodies() == [b"good"]
    assert world.manual() == [(bad, "illegal")]
    shown(world, bad)


@pytest.mark.parametrize("column", ["resend_ms", "claim_until_ms", "is_manual"])
def test_a_null_in_a_stub_that_was_sent_goes_to_people_too(world: World, column: str) -> None:
    bad, good = sent(world, *(Message("Orders", b"%d" % number, queue_id=0) for number in range(2)))
    high_water(world, good)
    allow_null(world, column)
    world.update(bad, **{column: sa.null()})
    reports = [world.relay().run_once() for _ in range(2)]
    assert [(report.resent, dict(report.manual)) for report in reports] == [(1, {"illegal": 1}), (0, {})]
    assert world.manual() == [(bad, "illegal")]
    shown(world, bad)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("damage", ["resend_ms='soon'", "resend_ms=X'00'", "is_manual='no'", "is_manual=2"])
def test_a_value_that_no_condition_finds_in_a_stub_that_was_sent_goes_to_people_too(world: World, damage: str) -> None:
    bad, good = sent(world, *(Message("Orders", b"%d" % number, queue_id=0) for number in range(2)))
    high_water(world, good)
    world.execute(sa.text(f"UPDATE rmq_stub SET {damage} WHERE message_id='{bad}'"))
    reports = [world.relay().run_once() for _ in range(2)]
    assert [(report.resent, dict(report.manual)) for report in reports] == [(1, {"illegal": 1}), (0, {})]
    assert world.manual() == [(bad, "illegal")]
    shown(world, bad)


def allow_null(world: World, column: str) -> None:
    stub = world.tables.stub
    kind = stub.c[column].type.compile(world.engine.dialect)
    if world.engine.dialect.name == "postgresql":
        world.execute(sa.text(f"ALTER TABLE rmq_stub ALTER COLUMN {column} DROP NOT NULL"))
    elif world.engine.dialect.name == "sqlite":
        with world.engine.begin() as connection:
            rows = [dict(row._mapping) for row in connection.execute(sa.select(stub))]
            stub.drop(connection)
            stub.c[column].nullable = True
            stub.create(connection)
            connection.execute(stub.insert(), rows)
            stub.c[column].nullable = False
    else:
        world.execute(sa.text(f"ALTER TABLE rmq_stub MODIFY {column} {kind} NULL"))
