"""One function for each way to use the outbox and the inbox; docs/reliable.md shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from rmq_store.client import Message, MessageExt, PushConsumer, SimpleConsumer
from rmq_store.reliable import Idempotency, Outbox


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


def with_a_transaction_of_your_own(outbox: Outbox, engine: sa.Engine, item: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.insert(Order).values(item=item))
        stub = outbox.add(connection, Message("Orders", item.encode()))
    outbox.flush_after_commit(stub)


def with_a_session(outbox: Outbox, sessions: sessionmaker[Session], item: str) -> None:
    with sessions() as session:
        session.add(Order(item=item))
        stub = outbox.add(session, Message("Orders", item.encode()))
        session.commit()
    outbox.flush_after_commit(stub)


async def with_an_async_session(outbox: Outbox, sessions: async_sessionmaker[AsyncSession], item: str) -> None:
    async with sessions() as session:
        session.add(Order(item=item))
        stub = await session.run_sync(outbox.add, Message("Orders", item.encode()))
        await session.commit()
    await asyncio.to_thread(outbox.flush_after_commit, stub)


def in_order(once: Idempotency, consumer: PushConsumer) -> None:
    def apply(connection: sa.Connection, message: MessageExt) -> None:
        connection.execute(sa.insert(Order).values(item=message.body.decode()))

    consumer.register_message_listener(once.orderly(apply))


def as_rows(once: Idempotency, consumer: PushConsumer) -> None:
    def apply(connection: sa.Connection, rows: pa.RecordBatch) -> None:  # without duplicates
        connection.execute(sa.insert(Order), [{"item": body.decode()} for body in rows["body"].to_pylist()])

    consumer.register_message_listener(once.arrow(apply))


def with_an_effect_elsewhere(once: Idempotency, consumer: PushConsumer, send_mail: Callable[[str], None]) -> None:
    def notify(message: MessageExt) -> None:  # at least once: a mail server takes part in no transaction
        send_mail(message.body.decode())

    consumer.register_message_listener(once.concurrently(notify, outside=True))


def with_a_simple_consumer(once: Idempotency, consumer: SimpleConsumer) -> int:
    def apply(connection: sa.Connection, message: MessageExt) -> None:
        connection.execute(sa.insert(Order).values(item=message.body.decode()))

    return once.receive(consumer, apply, 32, timedelta(seconds=30)).done
