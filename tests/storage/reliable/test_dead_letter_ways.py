"""A message that a group gave up, on its ways back: redriven, or retried from its stub; done once, and off the list."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from helpers.patient import PATIENT
from rmq_store import Store
from rmq_store.client import LocalBackend, Message, MessageExt, Producer, PushConsumer, PushConsumerConfig
from rmq_store.reliable import Idempotency, Inboxes, Outbox, Relay, RelayService, Tables, create_tables, open_engine
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.operator.manual_work import ManualResult, retry


class Shop:
    """A consumer that fails until `is_well`, and everything that it needs. `effects` is a table of one column."""

    def __init__(self, root: Path, url: str) -> None:
        self.tables = Tables()
        self.engine = open_engine(url)
        create_tables(self.engine)
        self.effects = sa.Table("effects", sa.MetaData(), sa.Column("text", sa.String(20)))
        self.effects.create(self.engine)
        self.store = Store.open(root / "store", create=True)
        self.store.create_topic("Orders", queue_count=1)
        self.backend = LocalBackend(self.store)
        self.producer = Producer("pg", self.backend, PATIENT)
        self.producer.start()
        self.outbox = Outbox(self.producer, self.engine, groups=["cg"])
        self.once = Idempotency("cg", self.engine, max_reconsume_times=0)
        self.consumer = PushConsumer("cg", self.backend, PushConsumerConfig(max_reconsume_times=0))
        self.consumer.subscribe("Orders")
        self.consumer.register_message_listener(self.once.concurrently(self.take))
        self.consumer.start()
        inboxes = Inboxes(self.engine)
        relay = Relay(self.producer, self.engine, self.tables)
        self.service = RelayService(relay, self.backend, inboxes, self.tables, collect_every_s=0)
        self.is_well = False

    def take(self, connection: sa.Connection, message: MessageExt) -> None:
        connection.execute(self.effects.insert().values(text=message.body.decode()))
        if not self.is_well:
            raise LookupError("no such item")

    def order(self, item: str) -> str:
        with self.outbox.begin() as connection:
            return self.outbox.add(connection, Message("Orders", item.encode())).message_id

    def listed(self) -> list[tuple[str, str]]:
        with self.engine.connect() as connection:
            entries = manual_list.list_entries(connection, self.tables, limit=9)
        return [(entry.message_id, entry.reason) for entry in entries]

    def done(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(sa.select(self.effects.c.text)))

    def status(self, message_id: str) -> str | None:
        stub = self.tables.stub
        with self.engine.connect() as connection:
            return connection.scalar(sa.select(stub.c.status).where(stub.c.message_id == message_id))

    def close(self) -> None:
        self.consumer.shutdown()
        self.once.close()
        self.outbox.close()
        self.producer.shutdown()
        self.backend.close()
        self.store.close()
        self.engine.dispose()


@pytest.fixture
def shop(scratch: Path, database_url: str) -> Iterator[Shop]:
    made = Shop(scratch, database_url)
    yield made
    made.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def dead_letter(shop: Shop) -> str:
    """Order something that the group gives up; its dead letter is collected."""
    message_id = shop.order("tea")
    wait_for(lambda: shop.service.run_once().collected.listed == 1)
    assert shop.listed() == [(message_id, "dead_letter")]
    assert shop.done() == []
    return message_id


@pytest.mark.statement("H08")
def test_a_redriven_dead_letter_is_done_once_confirmed_and_off_the_list(shop: Shop) -> None:
    message_id = dead_letter(shop)
    shop.is_well = True
    place = pa.record_batch({"queueId": pa.array([0], pa.int32()), "queueOffset": pa.array([0], pa.int64())})
    for _ in range(2):
        shop.store.dead_letters.redrive("cg", place)
    wait_for(lambda: shop.status(message_id) == "confirmed")
    shop.service.run_once()
    assert (shop.listed(), shop.done()) == ([], ["tea"])


@pytest.mark.statement("H08")
def test_a_retried_dead_letter_is_sent_from_its_stub_done_once_and_not_listed_again(shop: Shop) -> None:
    message_id = dead_letter(shop)
    shop.is_well = True
    assert shop.service.run_once().relay.resent == 0, "nobody sends a dead letter again by himself"
    assert retry(Inboxes(shop.engine), shop.tables, message_id, now_ms()) is ManualResult.CHANGED
    assert shop.listed() == []
    assert shop.service.run_once().relay.sent == 1
    wait_for(lambda: shop.status(message_id) == "confirmed")
    shop.service.run_once()
    assert (shop.listed(), shop.done()) == ([], ["tea"])


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_retry_that_fails_again_is_a_new_entry(shop: Shop) -> None:
    message_id = dead_letter(shop)
    assert retry(Inboxes(shop.engine), shop.tables, message_id, now_ms()) is ManualResult.CHANGED
    assert shop.service.run_once().relay.sent == 1
    wait_for(lambda: shop.service.run_once().collected.read == 1)
    assert (shop.listed(), shop.done()) == ([(message_id, "dead_letter")], [])
