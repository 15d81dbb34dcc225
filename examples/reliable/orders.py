"""Orders and stock, two services that agree by messages: none is lost, and none counts twice.

    python examples/reliable/orders.py                      SQLite and a store in a temporary directory, no server
    python examples/reliable/orders.py --database env:ORDERS_DB --redis env:REDIS_URL --store /data/rocketmq/store

Needs: pip install '.[reliable]', and the driver of the database (psycopg, PyMySQL).
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from rmq_store import Store
from rmq_store.client import LocalBackend, Message, MessageExt, MessageQueue, Producer, PushConsumer, PushConsumerConfig
from rmq_store.reliable import (
    CallableNotifier,
    DeadLetters,
    Idempotency,
    ManualEntry,
    Outbox,
    Relay,
    ResendBackoff,
    create_tables,
    open_engine,
)

business = sa.MetaData()
orders = sa.Table(
    "orders", business, sa.Column("id", sa.Integer, primary_key=True), sa.Column("item", sa.String(40), nullable=False)
)
stock = sa.Table("stock", business, sa.Column("item", sa.String(40), primary_key=True), sa.Column("pieces", sa.Integer))


# The shop: an order and its message are one transaction.
def place_order(outbox: Outbox, item: str) -> str:
    with outbox.begin() as connection:
        order = connection.execute(orders.insert().values(item=item)).inserted_primary_key
        body = json.dumps({"order": order[0], "item": item}).encode()
        stub = outbox.add(connection, Message("Orders", body, keys=f"ORD-{order[0]}"))
    return stub.message_id  # committed and sent; if the send failed, the relay sends the message later


# The warehouse: its writes through the connection happen exactly once for each message.
def take_from_stock(connection: sa.Connection, message: MessageExt) -> None:
    item = json.loads(message.body)["item"]
    taken = connection.execute(stock.update().where(stock.c.item == item).values(pieces=stock.c.pieces - 1))
    if not taken.rowcount:
        raise LookupError(f"no such item: {item}")


class Warehouse:
    """A consumer of group cg_stock. Any number of other members may run at the same time."""

    def __init__(self, backend: LocalBackend, engine: sa.Engine, redis: str | None) -> None:
        self.once = Idempotency("cg_stock", engine, redis=redis, max_reconsume_times=0)
        config = PushConsumerConfig(max_reconsume_times=0)  # the first failure is the last: for this demonstration
        self.consumer = PushConsumer("cg_stock", backend, config)
        self.consumer.subscribe("Orders")
        self.consumer.register_message_listener(self.once.concurrently(take_from_stock))
        self.consumer.start()

    def close(self) -> None:
        self.consumer.shutdown()
        self.once.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Orders and stock: nothing lost, nothing twice.")
    parser.add_argument("--database", help="URL, env:NAME or file:/path; default: SQLite in a temporary directory")
    parser.add_argument("--redis", help="the same, of a Redis; default: none")
    parser.add_argument("--store", help="directory of a store, made if it is missing; default: a temporary one")
    given = parser.parse_args(arguments)
    logging.getLogger("rmq_store").setLevel(logging.CRITICAL)  # the failures below are intended
    with tempfile.TemporaryDirectory() as scratch:
        engine = open_engine(given.database or f"sqlite:///{scratch}/shop.db")
        try:
            with Store.open(given.store or f"{scratch}/store", create=True) as store, LocalBackend(store) as backend:
                store.create_topic("Orders", queue_count=1, exist_ok=True)
                run(store, backend, engine, given.redis)
        finally:
            engine.dispose()


def run(store: Store, backend: LocalBackend, engine: sa.Engine, redis: str | None) -> None:
    create_tables(engine)
    business.create_all(engine)
    with engine.begin() as connection:
        connection.execute(stock.delete())
        connection.execute(stock.insert().values(item="tea", pieces=100))
    backoff = ResendBackoff(first_wait_ms=100)  # the default is 15 minutes
    with Producer("pg_shop", backend) as producer:
        outbox = Outbox(producer, engine, groups=["cg_stock"], backoff=backoff)
        relay = Relay(producer, engine, backoff=backoff, notifier=CallableNotifier(tell))
        with outbox:
            demonstrate(store, backend, engine, redis, producer, outbox, relay)


def demonstrate(
    store: Store,
    backend: LocalBackend,
    engine: sa.Engine,
    redis: str | None,
    producer: Producer,
    outbox: Outbox,
    relay: Relay,
) -> None:
    warehouse = Warehouse(backend, engine, redis)
    for _ in range(3):
        place_order(outbox, "tea")
    wait_for(lambda: pieces(engine) == 97)
    print("3 orders placed:", pieces(engine), "pieces of tea left")

    message = newest(backend)
    producer.send(Message("Orders", message.body, properties=dict(message.properties)), keep_unique_key=True)
    wait_for(lambda: duplicates(warehouse) >= 1)
    print("one of them sent twice:", pieces(engine), "pieces left")

    before = store.queue_range("Orders", 0)
    try:
        with outbox.begin() as connection:
            outbox.add(connection, Message("Orders", b"{}"))
            raise RuntimeError("the customer has no money")
    except RuntimeError:
        print("an order that was rolled back:", store.queue_range("Orders", 0)[1] - before[1], "messages")

    warehouse.close()
    place_order(outbox, "tea")
    store.commit_offsets("cg_stock", {("Orders", 0): store.queue_range("Orders", 0)[1]})
    print("the warehouse is closed, and its group's offset is moved past a message: the message is lost")

    warehouse = Warehouse(backend, engine, redis)
    place_order(outbox, "tea")
    wait_for(lambda: pieces(engine) == 96)
    wait_for(lambda: relay.run_once().resent == 1)
    wait_for(lambda: pieces(engine) == 95)
    print("a later order reveals the loss, and the relay sends the message again:", pieces(engine), "pieces left")

    place_order(outbox, "coffee")
    dead = DeadLetters(backend, engine)
    wait_for(lambda: dead.collect("cg_stock").listed == 1)
    relay.run_once()
    warehouse.close()


def tell(entries: Sequence[ManualEntry]) -> None:
    for entry in entries:
        print(f"an operator must decide: {entry.reason}, {entry.detail}")


def pieces(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(sa.select(stock.c.pieces).where(stock.c.item == "tea")).scalar_one()


def duplicates(warehouse: Warehouse) -> int:
    counts = warehouse.once.counts()
    return counts.duplicates_by_redis + counts.duplicates_by_inbox


def newest(backend: LocalBackend) -> MessageExt:
    (name,) = backend.brokers()
    queue = MessageQueue("Orders", name, 0)
    broker = backend.brokers()[name]
    (message,) = broker.pull("cg_look", queue, broker.max_offset(queue) - 1, 1).messages
    return message


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError("nothing happened for a minute")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
