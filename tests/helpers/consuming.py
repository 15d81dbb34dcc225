"""What tests of the consuming half of `rmq_store.reliable` share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from helpers import servers
from rmq_store.client import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageQueue,
)
from rmq_store.reliable import OUTBOX_ID, Idempotency, Tables, open_engine
from rmq_store.reliable.database import leases
from rmq_store.reliable.inbox import inbox

KINDS = ("sqlite", "postgresql", "mariadb")


@contextlib.contextmanager
def new_engine(kind: str, directory: Path, tables: Tables, **options: Any) -> Iterator[sa.Engine]:
    """An engine of an empty database that has the tables."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            url = f"sqlite:///{directory}/{len(list(directory.iterdir()))}.db"
        else:
            server = servers.postgresql() if kind == "postgresql" else servers.mariadb()
            if reason := server.missing():
                if servers.REQUIRED:
                    raise AssertionError(reason)
                pytest.skip(reason)
            url = server.url(stack.enter_context(server.new_database()))
        engine = open_engine(url, **options)
        stack.callback(engine.dispose)
        tables.metadata.create_all(engine)
        yield engine


@contextlib.contextmanager
def statements_of(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements that run in a `with` block; one with many sets of parameters counts once."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


class Worker(threading.Thread):
    """A thread whose outcome is looked at."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    def outcome(self) -> Any:
        """What it returned, once it has; raises what it raised."""
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def is_waiting(engine: sa.Engine, worker: Worker) -> bool:
    """Whether a worker waits in the database, which is only asked where it can tell."""
    worker.join(0.3)
    return worker.is_alive()


def message(
    message_id: str | None = "M1",
    *,
    offset: int = 0,
    reconsume_times: int = 0,
    body: bytes = b"1",
    queue_id: int = 0,
    properties: dict[str, str] | None = None,
) -> MessageExt:
    """A message of topic Orders as a listener gets it."""
    own = {} if message_id is None else {OUTBOX_ID: message_id}
    return MessageExt(
        topic="Orders",
        body=body,
        queue_id=queue_id,
        queue_offset=offset,
        commit_log_offset=0,
        msg_id="java",
        offset_msg_id="offset",
        broker_name="broker-a",
        reconsume_times=reconsume_times,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=1,
        born_host="127.0.0.1:1",
        store_timestamp_ms=1,
        store_host="127.0.0.1:1",
        properties={**own, **(properties or {})},
    )


QUEUE = MessageQueue("Orders", "broker-a", 0)
RETRY_QUEUE = MessageQueue("%RETRY%cg", "broker-a", 0)

effects = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("body", sa.String(50), nullable=False),
)


def write_effect(connection: sa.Connection, message: MessageExt) -> None:
    """A handler: one row for each time that it runs and is committed."""
    connection.execute(sa.insert(effects).values(body=message.body.decode()))


class Clock:
    """The wall clock, which a test may move."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return leases.now_ms() + self.ahead_ms


class Consumer:
    """A group that consumes, and what it left in the database."""

    def __init__(self, engine: sa.Engine, tables: Tables, **options: Any) -> None:
        self.engine = engine
        self.tables = tables
        self.clock = Clock()
        self.once = Idempotency("cg", engine, tables, **{"clock": self.clock, "busy_wait_ms": 0, **options})

    def consume(
        self,
        *messages: MessageExt,
        handler: Callable[..., object] = write_effect,
        outside: bool = False,
        queue: MessageQueue = QUEUE,
    ) -> int:
        """Give messages to a concurrent listener; returns how many of them it acknowledges."""
        context = ConsumeConcurrentlyContext(queue)
        status = self.once.concurrently(handler, outside).consume_message(messages, context)
        assert status is ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        return context.ack_index + 1

    def order(self, *messages: MessageExt, handler: Callable[..., object] = write_effect, **options: Any) -> int | None:
        """Give messages to an ordered listener; returns how long it suspends the queue, None if it does not."""
        context = ConsumeOrderlyContext(QUEUE)
        status = self.once.orderly(handler, **options).consume_message(messages, context)
        if status is ConsumeOrderlyStatus.SUCCESS:
            return None
        assert status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return context.suspend_current_queue_time_millis

    def rows(self, table: sa.Table) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.select(table)).mappings()]

    def effects(self) -> list[str]:
        """The bodies of the messages that had their effect."""
        return [row["body"] for row in self.rows(effects)]

    def done(self) -> set[str]:
        return {row["message_id"] for row in self.rows(self.tables.inbox)}

    def log(self) -> list[dict[str, Any]]:
        return self.rows(self.tables.log)

    def manual(self) -> set[tuple[str, str]]:
        return {(row["message_id"], row["reason"]) for row in self.rows(self.tables.manual)}

    def put_log(self, message_id: str = "M1", *, lease_token: str | None = "other", **values: Any) -> None:
        """A log row as another worker leaves it, with a live lease unless told otherwise."""
        row = {
            "group_name": "cg", "message_id": message_id, "broker_name": "broker-a", "topic": "Orders", "queue_id": 0,
            "queue_offset": 0, "received_ms": 1, "reconsume_times": 0, "lease_token": lease_token,
            "lease_until_ms": self.clock() + 50_000, "blocks_until_ms": 0, "is_dead": False, **values,
        }  # fmt: skip
        with self.engine.begin() as connection:
            connection.execute(sa.insert(self.tables.log).values(row))

    def put_done(self, *message_ids: str) -> None:
        """Inbox rows as another worker commits them."""
        with self.engine.begin() as connection:
            inbox.insert_set(connection, self.tables, "cg", message_ids, self.clock())

    def put_stub(
        self, message_id: str = "M1", *, status: str = "unconfirmed", groups: tuple[str, ...] = ("cg",)
    ) -> None:
        put_stub(self.engine, self.tables, message_id, status=status, groups=groups)


def put_stub(
    engine: sa.Engine,
    tables: Tables,
    message_id: str,
    *,
    status: str = "unconfirmed",
    groups: tuple[str, ...] = ("cg",),
) -> None:
    """A stub as its sender commits it."""
    values = {
        "message_id": message_id, "topic": "Orders", "body": b"1", "flag": 0, "properties": "[]", "status": status,
        "pending_groups": len(groups), "created_ms": 1, "send_count": 1, "resend_ms": 1, "claim_until_ms": 0,
        "is_manual": False,
    }  # fmt: skip
    if "born_timestamp_ms" in tables.stub.c:
        values["born_timestamp_ms"] = 1
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.stub).values(values))
        connection.execute(
            sa.insert(tables.stub_group), [{"message_id": message_id, "group_name": group} for group in groups]
        )


def stub_status(engine: sa.Engine, tables: Tables, message_id: str = "M1") -> str:
    with engine.connect() as connection:
        return str(connection.scalar(sa.select(tables.stub.c.status).where(tables.stub.c.message_id == message_id)))


class Databases:
    """One database of each kind for many tests, emptied before each: to make its tables takes longer than a test."""

    def __init__(self, directory: Path, tables: Tables) -> None:
        self._directory = directory
        self.tables = tables
        self._stack = contextlib.ExitStack()
        self._engines: dict[str, sa.Engine] = {}

    def empty(self, kind: str, name: str = "") -> sa.Engine:
        """The database of a kind; another `name` is another database."""
        key = kind + name
        if key not in self._engines:
            engine = self._stack.enter_context(new_engine(kind, self._directory, self.tables))
            effects.metadata.create_all(engine)
            self._engines[key] = engine
        engine = self._engines[key]
        with engine.begin() as connection:
            for table in [*self.tables.all(), effects]:
                connection.execute(sa.delete(table))
        return engine

    def close(self) -> None:
        self._stack.close()
