"""The business kit over a cluster, simulated or real: promises, a consumer that writes effects, a relay that dies."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from rmq_store import Message
from rmq_store.client import MessageExt, Producer, PushConsumer, PushConsumerConfig
from rmq_store.reliable import Idempotency, Outbox, Tables, open_engine


class Business:
    """A database with the tables of the kit and one of effects, for messages of `topic` that `group` consumes."""

    def __init__(self, place: str, topic: str, group: str, directory: Path) -> None:
        self.place, self.topic, self.group = place, topic, group
        self.tables = Tables()
        self._effects = sa.Table("effects", self.tables.metadata, sa.Column("what", sa.String(20)))
        self.url = f"sqlite:///{directory}/business.db"
        self.engine = open_engine(self.url)
        self.tables.metadata.create_all(self.engine)

    def promise(self, producer: Producer, *bodies: bytes, send_now: bool = False) -> list[str]:
        """Committed stubs; returns their ids."""
        outbox = Outbox(producer, self.engine, self.tables, groups=[self.group])
        with outbox, outbox.begin() as connection:
            messages = [Message(self.topic, body, keys="k") for body in bodies]
            stubs = [outbox.add(connection, message, send_now=send_now) for message in messages]
        return [stub.message_id for stub in stubs]

    def consume(self, until: Callable[[Idempotency], object], timeout_s: float = 60) -> Counter[str]:
        """Run a push consumer with an inbox; how often each effect was made."""
        config = PushConsumerConfig(consume_from_where="CONSUME_FROM_FIRST_OFFSET")  # type: ignore[arg-type]
        inbox = Idempotency(self.group, self.engine, self.tables)
        with inbox, PushConsumer(self.group, self.place, config) as consumer:
            consumer.subscribe(self.topic)
            consumer.register_message_listener(inbox.concurrently(self._handle))
            consumer.start()
            deadline = time.monotonic() + timeout_s
            while not until(inbox):
                assert time.monotonic() < deadline, inbox.counts()
                time.sleep(0.02)
        return self.effects()

    def _handle(self, connection: sa.Connection, message: MessageExt) -> None:
        connection.execute(self._effects.insert().values(what=message.body.decode()))

    def effects(self) -> Counter[str]:
        """How often each effect was made."""
        with self.engine.connect() as connection:
            return Counter(connection.scalars(sa.select(self._effects.c.what)))

    def statuses(self) -> set[str]:
        """Of all stubs."""
        with self.engine.connect() as connection:
            return set(connection.scalars(sa.select(self.tables.stub.c.status)))


def received(inbox: Idempotency) -> int:
    """How many messages came, copies among them."""
    counts = inbox.counts()
    return counts.done + counts.duplicates_by_inbox


class Killed(BaseException):
    """The process is gone: nothing that would still run is run."""


@contextlib.contextmanager
def kill_between_send_and_mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Relays that send die before they write down what they have sent."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("rmq_store.reliable.relay.claim_sender.transact", die)
        yield
