"""What people decide, and what they are shown, on every database; the commands have tests in tests/storage/cli."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store.reliable import Tables, open_engine
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.operator import manual_work, message_report, stub_status
from rmq_store.reliable.operator.manual_work import ManualResult
from rmq_store.reliable.relay.inboxes import Inboxes


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def engine(database_url: str, tables: Tables) -> Iterator[sa.Engine]:
    made = open_engine(database_url)
    tables.metadata.create_all(made)
    yield made
    made.dispose()


def insert_stub(engine: sa.Engine, tables: Tables, message_id: str, *groups: str, **columns: Any) -> None:
    row = {
        "message_id": message_id, "topic": "Orders", "body": b"tea\xff", "flag": 0, "properties": '[["TAGS","A"]]',
        "status": "unconfirmed", "pending_groups": len(groups), "created_ms": now_ms(), "send_count": 1,
        "resend_ms": 1, "claim_until_ms": 0, "is_manual": False,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.stub), [row | columns])
        rows = [{"message_id": message_id, "group_name": group} for group in groups]
        connection.execute(sa.insert(tables.stub_group), rows)


SENT = {"sent_ms": 5, "broker_name": "broker-a", "sent_queue_id": 0, "queue_offset": 3}


def test_states_and_reasons(engine: sa.Engine, tables: Tables) -> None:
    insert_stub(engine, tables, "K1", "cg", sharding_key="k", is_manual=True)
    insert_stub(engine, tables, "K2", "cg", sharding_key="k")
    insert_stub(engine, tables, "L1", "cg", sharding_key="l")
    insert_stub(engine, tables, "S1", "cg", **SENT)
    insert_stub(engine, tables, "S2", "cg", **SENT, resend_ms=now_ms() - 1)
    insert_stub(engine, tables, "V1", "cg", status="void")
    insert_stub(engine, tables, "C1", "cg", status="confirmed", pending_groups=0)
    inboxes = Inboxes(engine)
    found = stub_status.stubs_in(inboxes, tables, stub_status.STATES, now_ms())
    nothing = "cg: has received nothing of this queue, the message is at 3"
    assert [(stub.message_id, stub.state, stub.why) for stub in found] == [
        ("K1", "manual", "on the manual list: void it, or retry it"),
        ("K2", "unsent", "its key waits for K1, which is on the manual list"),
        ("L1", "unsent", "the next round sends it"),
        ("S1", "due", f"stuck, the next round puts it on the manual list: {nothing}"),
        ("S2", "waiting", nothing),
        ("V1", "void", "taken back: it has no effect any more"),
    ]
    assert [stub.message_id for stub in stub_status.stubs_in(inboxes, tables, ["unsent"], 1, group="x")] == []


def test_a_retry_is_a_first_send_again(engine: sa.Engine, tables: Tables) -> None:
    insert_stub(engine, tables, "A1", "cg", **SENT, is_manual=True, claim_token="t", claim_until_ms=now_ms() + 9_000)
    log = {
        "group_name": "cg", "message_id": "A1", "broker_name": "b", "topic": "Orders", "queue_id": 0, "is_dead": True,
        "queue_offset": 0, "received_ms": 1, "reconsume_times": 3, "lease_until_ms": 0, "blocks_until_ms": 77,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.log), [log, log | {"group_name": "other"}])
        for reason in manual_list.REASONS:
            manual_list.add(connection, tables, "A1", "cg", reason, "", 1)
    assert manual_work.retry(Inboxes(engine), tables, "A1", 1_234) is ManualResult.CHANGED
    with engine.connect() as connection:
        row = connection.execute(sa.select(tables.stub)).one()
        entries = manual_list.list_entries(connection, tables, limit=9)
        dead = {row.group_name: row.is_dead for row in connection.execute(sa.select(tables.log))}
    assert (row.sent_ms, row.queue_offset, row.send_count, row.resend_ms) == (None, None, 0, 1_234)
    assert (row.claim_token, row.claim_until_ms, row.is_manual) == (None, 0, False)
    assert {entry.reason for entry in entries} == {"in_doubt", "no_id", "same_id"}
    assert dead == {"cg": False, "other": True}, "only of the group whose dead letter was listed"


def test_a_group_that_gives_a_message_up_during_a_retry_stays_on_the_list(
    engine: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log row is dead, so without an entry nobody would ever decide about the message."""
    insert_stub(engine, tables, "A1", "cg", "other", **SENT)
    with engine.begin() as connection:
        manual_list.add(connection, tables, "A1", "cg", "dead_letter", "", 1)
    remove = manual_list.remove

    def give_up_then_remove(connection: sa.Connection, tables: Tables, *named: Any, **by_name: Any) -> int:
        if "dead_letter" in (*named, *by_name.values()):
            manual_list.add(connection, tables, "A1", "other", "dead_letter", "", 2)
        return remove(connection, tables, *named, **by_name)

    with monkeypatch.context() as patch:
        patch.setattr(manual_work.manual_list, "remove", give_up_then_remove)
        assert manual_work.retry(Inboxes(engine), tables, "A1", 1_234) is ManualResult.CHANGED
    with engine.connect() as connection:
        left = manual_list.list_entries(connection, tables, limit=9)
    assert [(entry.group_name, entry.reason) for entry in left] == [("other", "dead_letter")]


def test_a_stub_that_is_confirmed_between_plan_and_change_stays_as_it_is(engine: sa.Engine, tables: Tables) -> None:
    inboxes = Inboxes(engine)
    insert_stub(engine, tables, "A1", "cg", **SENT)
    assert manual_work.plan(inboxes, tables, ["A1"], "retry") == {"A1": ManualResult.CHANGED}
    with engine.begin() as connection:
        connection.execute(sa.update(tables.stub).values(status="confirmed"))
    assert manual_work.retry(inboxes, tables, "A1", 1) is ManualResult.CONFIRMED
    assert manual_work.void_message(inboxes, tables, "A1") is ManualResult.CONFIRMED
    assert manual_work.retry(inboxes, tables, "nobody", 1) is ManualResult.NO_STUB
    insert_stub(engine, tables, "B2", "cg", **SENT, created_ms=1_000)
    assert manual_work.retry(inboxes, tables, "B2", 1, oldest_ms=1_001) is ManualResult.TOO_OLD
    assert manual_work.retry(inboxes, tables, "B2", 1, oldest_ms=1_000) is ManualResult.CHANGED


def test_a_void_stub_leaves_the_manual_list_but_doubts_stay(engine: sa.Engine, tables: Tables) -> None:
    inboxes = Inboxes(engine)
    insert_stub(engine, tables, "A1", "cg", **SENT, is_manual=True)
    with engine.begin() as connection:
        for reason in manual_list.REASONS:
            manual_list.add(connection, tables, "A1", "cg", reason, "", 1)
    assert manual_work.void_message(inboxes, tables, "A1") is ManualResult.CHANGED
    assert manual_work.void_message(inboxes, tables, "A1") is ManualResult.VOID
    report = message_report.report_of(inboxes, tables, "A1")
    assert report.stub is not None
    assert (report.stub.state, report.body, report.properties) == ("void", b"tea\xff", {"TAGS": "A"})
    assert {entry.reason for entry in report.entries} == {"in_doubt", "no_id", "same_id"}
    assert manual_work.clear(inboxes, tables, "A1") is ManualResult.CHANGED
    assert manual_work.clear(inboxes, tables, "A1") is ManualResult.NOT_LISTED
