"""Tables and resends as H02 to H11 of docs/conformance.md have them, from outside: an outbox, a relay, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from helpers.patient import PATIENT
from rmq_store import Store
from rmq_store.client import LocalBackend, Message, Producer
from rmq_store.reliable import Outbox, Relay, Tables, create_tables, open_engine
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.outbox.stub import confirm, void

GROUP = "cg"
MINUTE_MS = 60_000


class Sender:
    """An outbox and a relay over a store; no consumer."""

    def __init__(self, root: Path, url: str) -> None:
        self.tables = Tables()
        self.engine = open_engine(url)
        create_tables(self.engine, self.tables)
        self.store = Store.open(root / "store", create=True)
        self.store.create_topic("Orders", queue_count=1)
        self.backend = LocalBackend(self.store)
        self.producer = Producer("pg", self.backend, PATIENT)
        self.producer.start()
        self.outbox = Outbox(self.producer, self.engine, groups=[GROUP], mark_delay_ms=0)
        self.relay = Relay(self.producer, self.engine)

    def send(self) -> str:
        with self.outbox.begin() as connection:
            return self.outbox.add(connection, Message("Orders", b"tea")).message_id

    def row(self, message_id: str) -> sa.Row[Any]:
        stub = self.tables.stub
        with self.engine.connect() as connection:
            return connection.execute(sa.select(stub).where(stub.c.message_id == message_id)).one()

    def change(self, **columns: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.update(self.tables.stub).values(**columns))

    def receive(self, offset: int) -> None:
        """The group has received up to this offset for the first time."""
        with self.engine.begin() as connection:
            marks = self.tables.high_water
            connection.execute(sa.delete(marks))
            mark = {"group_name": GROUP, "broker_name": "rmq-embedded", "topic": "Orders", "queue_id": 0}
            connection.execute(sa.insert(marks), [mark | {"queue_offset": offset}])

    def log(self, message_id: str, lease_until_ms: int) -> None:
        row = {
            "group_name": GROUP, "message_id": message_id, "broker_name": "rmq-embedded", "topic": "Orders",
            "queue_id": 0, "queue_offset": 0, "received_ms": now_ms(), "reconsume_times": 0, "lease_token": "t",
            "lease_until_ms": lease_until_ms, "blocks_until_ms": 0, "is_dead": False,
        }  # fmt: skip
        with self.engine.begin() as connection:
            connection.execute(sa.insert(self.tables.log), [row])

    def close(self) -> None:
        self.outbox.close()
        self.producer.shutdown()
        self.backend.close()
        self.store.close()
        self.engine.dispose()


@pytest.fixture
def sender(scratch: Path, database_url: str) -> Iterator[Sender]:
    made = Sender(scratch, database_url)
    yield made
    made.close()


@pytest.mark.statement("H02")
def test_a_stub_has_id_content_count_status_offset_resend_time_and_time_of_creation(sender: Sender) -> None:
    with sender.engine.begin() as connection:
        stub = sender.outbox.add(connection, Message("Orders", b"tea"))
    before = sender.row(stub.message_id)
    assert (before.body, before.status, before.queue_offset, before.sent_ms) == (b"tea", "unconfirmed", None, None)
    assert now_ms() - MINUTE_MS < before.created_ms <= now_ms()
    sender.outbox.flush_after_commit(stub)
    sender.outbox.close()
    after = sender.row(stub.message_id)
    assert (after.send_count, after.queue_offset) == (1, 0)
    assert after.resend_ms > after.sent_ms >= before.created_ms
    with sender.engine.begin() as connection:
        confirm(connection, sender.tables, GROUP, stub.message_id, now_ms())
    assert sender.row(stub.message_id).status == "confirmed"
    other = sender.send()
    with sender.engine.begin() as connection:
        void(connection, sender.tables, other)
    assert sender.row(other).status == "void"


def lost(sender: Sender) -> str:
    """A message that was sent, and that the group has passed without receiving it: all conditions hold."""
    message_id = sender.send()
    sender.outbox.close()
    sender.change(sent_ms=now_ms() - MINUTE_MS, resend_ms=now_ms() - 1)
    sender.receive(5)
    return message_id


@pytest.mark.statement("H09")
def test_a_message_for_which_all_five_conditions_hold_is_sent_again(sender: Sender) -> None:
    lost(sender)
    assert sender.relay.run_once().resent == 1
    assert sender.store.queue_range("Orders", 0)[1] == 2


@pytest.mark.statement("H09")
@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda sender, _: sender.change(status="confirmed"), id="confirmed"),
        pytest.param(lambda sender, _: sender.change(send_count=16), id="at-the-maximum"),
        pytest.param(lambda sender, _: sender.change(resend_ms=now_ms() + MINUTE_MS), id="not-due"),
        pytest.param(lambda sender, _: sender.change(queue_offset=6), id="offset-not-reached"),
        pytest.param(lambda sender, id_: sender.log(id_, now_ms() + MINUTE_MS), id="in-the-log"),
    ],
)
@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_message_for_which_one_condition_fails_is_not(
    sender: Sender, break_it: Callable[[Sender, str], None]
) -> None:
    break_it(sender, lost(sender))
    assert sender.relay.run_once().resent == 0
    assert sender.store.queue_range("Orders", 0)[1] == 1


@pytest.mark.statement("H10")
def test_after_a_resend_count_next_time_and_offset_are_new(sender: Sender) -> None:
    message_id = lost(sender)
    sender.relay.run_once()
    row = sender.row(message_id)
    assert (row.send_count, row.queue_offset) == (2, 1)
    assert row.resend_ms > now_ms() + MINUTE_MS
    assert sender.relay.run_once().resent == 0


@pytest.mark.statement("H11")
def test_at_the_maximum_nobody_sends_it_any_more_and_people_look(sender: Sender) -> None:
    message_id = lost(sender)
    sender.change(send_count=16)
    for _ in range(2):
        sender.relay.run_once()
    with sender.engine.connect() as connection:
        entries = manual_list.list_entries(connection, sender.tables, limit=9)
    assert [(entry.message_id, entry.reason) for entry in entries] == [(message_id, "maximum")]
    assert sender.row(message_id).is_manual
