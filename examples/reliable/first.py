import tempfile
import time

import sqlalchemy as sa

from rmq_store import Store
from rmq_store.client import LocalBackend, Message, MessageExt, Producer, PushConsumer
from rmq_store.reliable import Idempotency, Outbox, create_tables, open_engine

scratch = tempfile.TemporaryDirectory()
engine = open_engine(f"sqlite:///{scratch.name}/shop.db")  # or env:SHOP_DB, which holds postgresql://...
create_tables(engine)  # the kit's tables
shop = sa.MetaData()
orders = sa.Table("orders", shop, sa.Column("id", sa.Integer, primary_key=True), sa.Column("item", sa.String(40)))
sales = sa.Table("sales", shop, sa.Column("item", sa.String(40), primary_key=True), sa.Column("pieces", sa.Integer))
shop.create_all(engine)


def count(connection: sa.Connection, message: MessageExt) -> None:
    """Writes through the connection happen exactly once per message, even if the message comes several times."""
    item = message.body.decode()
    if not connection.execute(sales.update().where(sales.c.item == item).values(pieces=sales.c.pieces + 1)).rowcount:
        connection.execute(sales.insert().values(item=item, pieces=1))


with (
    Store.open(f"{scratch.name}/store", create=True) as store,
    LocalBackend(store) as backend,
    Producer("pg_shop", backend) as producer,
    Outbox(producer, engine, groups=["cg_sales"]) as outbox,
    Idempotency("cg_sales", engine) as once,
    PushConsumer("cg_sales", backend) as consumer,
):
    store.create_topic("Orders", queue_count=4)
    consumer.subscribe("Orders")
    consumer.register_message_listener(once.concurrently(count))
    consumer.start()
    for item in ("tea", "milk", "tea"):
        with outbox.begin() as connection:  # the order and its message: both, or none of them
            connection.execute(orders.insert().values(item=item))
            outbox.add(connection, Message("Orders", item.encode()))
    while once.counts().done < 3:
        time.sleep(0.01)
    with engine.connect() as connection:
        print(sorted(map(tuple, connection.execute(sa.select(sales)))))  # [('milk', 1), ('tea', 2)]
engine.dispose()
scratch.cleanup()
