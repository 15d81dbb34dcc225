"""The rights that docs/reliable.md lists are enough: sender, consumer and relay work with them, and with no others."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from helpers.patient import PATIENT
from rmq_store import Store
from rmq_store.client import LocalBackend, Message, MessageExt, Producer, PushConsumer
from rmq_store.reliable import DeadLetters, Idempotency, Outbox, Relay, Tables, open_engine
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.operator.manual_work import ManualResult, retry, void_message
from rmq_store.reliable.relay.inboxes import Inboxes

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reliable.md"


def rights_of(role: str) -> list[str]:
    """The GRANTs of a row of the table, without the role."""
    section = PAGE.read_text(encoding="utf-8").split("**Least privilege.**")[1]
    (row,) = re.findall(rf"^\| {re.escape(role)} \| (.+) \|$", section, re.MULTILINE)
    right = "(?:SELECT|INSERT|UPDATE|DELETE)"
    found = re.findall(rf"({right}(?:, {right})*) on (`rmq_\w+`(?:, `rmq_\w+`)*)", row)
    grants = [f"{rights} ON {tables.replace('`', '')}" for rights, tables in found]
    assert grants
    return grants


@pytest.fixture(params=["postgresql"])
def database_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


class Roles:
    """An owner's database, and an engine for each role."""

    def __init__(self, url: str) -> None:
        self.owner = open_engine(url)
        Tables().metadata.create_all(self.owner)
        with self.owner.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE effects (text varchar(20))")
        self._opened: list[tuple[str, sa.Engine]] = []

    def engine(self, role: str, *extra: str) -> sa.Engine:
        name = f"rights_{role.split(',')[0]}"
        with self.owner.begin() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
            for grant in ["USAGE ON SCHEMA public", *rights_of(role), *extra]:
                connection.exec_driver_sql(f"GRANT {grant} TO {name}")
        url = self.owner.url.set(username=name, password="x")
        made = open_engine(url.render_as_string(hide_password=False))
        self._opened.append((name, made))
        return made

    def close(self) -> None:
        for _, engine in self._opened:
            engine.dispose()
        with self.owner.begin() as connection:
            for name, _ in self._opened:
                connection.exec_driver_sql(f"DROP OWNED BY {name}")
                connection.exec_driver_sql(f"DROP ROLE {name}")
        self.owner.dispose()


@pytest.fixture
def roles(database_url: str) -> Iterator[Roles]:
    made = Roles(database_url)
    yield made
    made.close()


def test_sender_consumer_and_relay_need_no_other_rights(roles: Roles, scratch: Path) -> None:
    sender = roles.engine("sender", "USAGE ON SEQUENCE rmq_stub_seq_seq")
    consumer_engine = roles.engine("consumer", "INSERT ON effects")
    relay_engine = roles.engine("relay, `rmq resend`")

    def take(connection: sa.Connection, message: MessageExt) -> None:
        if message.body == b"bad":
            raise LookupError("no such item")
        connection.execute(sa.text("INSERT INTO effects VALUES (:text)"), {"text": message.body.decode()})

    with Store.open(scratch / "store", create=True) as store, LocalBackend(store) as backend:
        store.create_topic("Orders", queue_count=1)
        with (
            Producer("pg", backend, PATIENT) as producer,
            Outbox(producer, sender, groups=["cg"]) as outbox,
            Idempotency("cg", consumer_engine, max_reconsume_times=0) as once,
            PushConsumer("cg", backend) as consumer,
        ):
            with outbox.begin() as connection:
                outbox.add(connection, Message("Orders", b"tea", sharding_key="k"))
            with outbox.begin() as connection:
                for name in ("late", "bad", "void"):
                    outbox.add(connection, Message("Orders", name.encode()), send_now=False, message_id=name)
            assert void_message(Inboxes(relay_engine), Tables(), "void") is ManualResult.CHANGED
            relay = Relay(producer, relay_engine)
            assert relay.run_once().sent == 2
            consumer.subscribe("Orders")
            consumer.register_message_listener(once.concurrently(take))
            consumer.start()
            deadline_s = time.monotonic() + 60
            while once.counts().done < 2 or once.counts().failed < 1:
                assert time.monotonic() < deadline_s, once.counts()
                time.sleep(0.02)
            assert once.purge() == 0
            assert DeadLetters(backend, relay_engine).collect("cg").read == 0
            assert retry(Inboxes(relay_engine), Tables(), "bad", now_ms()) is ManualResult.CHANGED
            assert relay.run_once().sent == 1
    with roles.owner.connect() as connection:
        assert sorted(connection.scalars(sa.text("SELECT text FROM effects"))) == ["late", "tea"]
        confirmed = sa.text("SELECT count(*) FROM rmq_stub WHERE status = 'confirmed'")
        assert connection.scalar(confirmed) == 2


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("sender", "DELETE FROM rmq_stub"),
        ("sender", "SELECT * FROM rmq_inbox"),
        ("consumer", "INSERT INTO rmq_stub_group VALUES ('A1', 'cg')"),
        ("consumer", "DELETE FROM rmq_stub"),
        ("relay, `rmq resend`", "INSERT INTO rmq_inbox VALUES ('cg', 'A1', 1, 't')"),
        ("relay, `rmq resend`", "DROP TABLE rmq_stub"),
    ],
)
def test_each_role_is_refused_what_is_not_its_own(roles: Roles, role: str, statement: str) -> None:
    engine = roles.engine(role)
    with (
        engine.connect() as connection,
        pytest.raises(sa.exc.ProgrammingError, match=r"permission denied|must be owner"),
    ):
        connection.exec_driver_sql(statement)
