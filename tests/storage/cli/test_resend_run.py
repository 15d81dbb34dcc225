"""`rmq resend run`: rounds of the relay over a store, dead letters, mails, and how it is stopped."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from helpers.smtp_server import SmtpServer
from rmq_store import Message, Store
from rmq_store.cli import commands
from rmq_store.client import LocalBackend, MessageQueue, Producer
from rmq_store.reliable import Outbox, Tables, open_engine
from rmq_store.reliable.database import manual_list

from .conftest import mind_ctrl_c

EXPECTED = Path(__file__).parent / "expected"


class Shop:
    """A store and the database of its senders."""

    def __init__(self, root: Path) -> None:
        self.root = root / "store"
        self.url = f"sqlite:///{root}/shop.db"
        self.tables = Tables()
        self.engine = open_engine(self.url)
        self.tables.metadata.create_all(self.engine)
        with Store.open(self.root, create=True) as store:
            store.create_topic("Orders", queue_count=1)

    def promise(self, *bodies: str) -> list[str]:
        """Stubs that a relay has to send."""
        with Store.open(self.root) as store, LocalBackend(store) as backend:
            outbox = Outbox(Producer("pg", backend), self.engine, groups=["cg"])
            with self.engine.begin() as connection:
                stubs = [
                    outbox.add(connection, Message("Orders", body.encode()), send_now=False, message_id=f"ID-{body}")
                    for body in bodies
                ]
            outbox.close()
        return [stub.message_id for stub in stubs]

    def kill(self, message_id: str) -> None:
        """A message that the group gives up."""
        queue = MessageQueue("Orders", "rmq-embedded", 0)
        with Store.open(self.root) as store, LocalBackend(store) as backend:
            (broker,) = backend.brokers().values()
            start = broker.max_offset(queue)
            own = {"OUTBOX_ID": message_id, "UNIQ_KEY": message_id}
            broker.send(Message("Orders", b"x", properties=own, queue_id=0), 0, 5_000, "pg")
            (message,) = broker.pull("cg", queue, start, 1).messages
            broker.send_message_back("cg", message, -1, None, 5_000)

    def bodies(self) -> list[bytes]:
        with Store.open(self.root, read_only=True) as store:
            batches = store.read("Orders", 0, 0, store.queue_range("Orders", 0)[1])
            return [body for batch in batches for body in batch.column("body").to_pylist()]

    def has_consumed(self, engine: sa.Engine) -> None:
        row = {"group_name": "cg", "broker_name": "b", "topic": "Other", "queue_id": 0, "queue_offset": 1}
        with engine.begin() as connection:
            connection.execute(sa.insert(self.tables.high_water), [row])

    def run(self, *words: str) -> Result:
        environment = {"RMQ_STORE": str(self.root), "RMQ_DATABASE": "env:SHOP_DB", "SHOP_DB": self.url}
        return CliRunner().invoke(
            commands, ["resend", "run", *words], env=environment, prog_name="rmq", catch_exceptions=False
        )

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "RMQ_STORE": str(self.root),
            "RMQ_DATABASE": self.url,
        }
        code = "from rmq_store.cli import main; main()"
        command = [sys.executable, "-c", code, "resend", "run", "--interval", "0.05", *words]
        return subprocess.Popen(command, env=environment, preexec_fn=mind_ctrl_c, **streams)


@pytest.fixture
def shop(scratch: Path) -> Iterator[Shop]:
    made = Shop(scratch)
    yield made
    made.engine.dispose()


@pytest.fixture
def mail_server() -> Iterator[SmtpServer]:
    made = SmtpServer()
    yield made
    made.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_one_round_sends_what_no_broker_has(shop: Shop) -> None:
    shop.promise("tea", "milk")
    result = shop.run("--once")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (EXPECTED / "resend-run.txt").read_text(encoding="utf-8")
    assert shop.bodies() == [b"tea", b"milk"]
    again = json.loads(shop.run("--once", "--json").stdout)
    assert (again["sent"], again["resent"], again["problem"], again["dryRun"]) == (0, 0, None, False)


def test_a_dry_run_says_what_would_be_sent_and_sends_nothing(shop: Shop) -> None:
    shop.promise("tea", "milk")
    shop.kill("dead")
    shop.has_consumed(shop.engine)
    result = shop.run("--dry-run")
    assert result.stdout.startswith("2 sent, ")
    assert result.stdout.endswith("nothing was sent: this is what would be\n")
    assert shop.bodies() == [b"x"]
    with shop.engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.max(shop.tables.stub.c.send_count))) == 0
        assert manual_list.count(connection, shop.tables) == {}


def test_people_are_told_by_mail_of_messages_and_dead_letters(shop: Shop, mail_server: SmtpServer) -> None:
    (message_id,) = shop.promise("tea")
    with shop.engine.begin() as connection:
        connection.execute(sa.update(shop.tables.stub).values(send_count=3))
    shop.kill("dead")
    shop.has_consumed(shop.engine)
    mail = ["--smtp", f"localhost:{mail_server.port}", "--smtp-security", "none"]
    mail += ["--mail-from", "kit@example.org", "--mail-to", "ops@example.org"]
    report = json.loads(shop.run("--once", "--json", "--max-send-count", "3", *mail).stdout)
    assert (report["manual"], report["deadLetters"]["listed"], report["notified"]) == ({"maximum": 1}, 1, 2)
    ((_, received),) = mail_server.mails
    text = received.get_content()
    assert f"{message_id} maximum: " in text
    assert "dead dead_letter group cg: from Orders" in text


def test_dead_letters_of_a_group_come_to_the_database_of_its_inbox(
    shop: Shop, scratch: Path, mail_server: SmtpServer
) -> None:
    inbox = open_engine(f"sqlite:///{scratch}/stock.db")
    shop.tables.metadata.create_all(inbox)
    shop.has_consumed(inbox)
    shop.kill("dead")
    mail = ["--smtp", f"localhost:{mail_server.port}", "--smtp-security", "none"]
    mail += ["--mail-from", "kit@example.org", "--mail-to", "ops@example.org"]
    assert shop.run("--once", "--inbox", f"cg={inbox.url}", *mail).exit_code == 0
    with inbox.connect() as connection:
        (entry,) = manual_list.list_entries(connection, shop.tables, limit=9)
    assert (entry.message_id, entry.reason, entry.notified_ms is None) == ("dead", "dead_letter", False)
    with shop.engine.connect() as connection:
        assert manual_list.list_entries(connection, shop.tables, limit=9) == []
    assert len(mail_server.mails) == 1
    inbox.dispose()


def test_it_goes_on_until_somebody_stops_it(shop: Shop) -> None:
    shop.promise("tea")
    process = shop.start(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: len(shop.bodies()) == 1)
        shop.promise("milk")
        wait_for(lambda: len(shop.bodies()) == 2)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, output, errors) == (0, b"", b""), "nothing is said in a pipe"
    with shop.engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).where(shop.tables.stub.c.sent_ms.is_(None))) == 0


def test_a_long_round_is_told_of_the_signal(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have a hundred thousand messages to send, and asks between pages."""
    from rmq_store.reliable import RelayService, ServiceReport

    seen: list[bool] = []

    def ask(service: RelayService, *, dry_run: bool, stop: threading.Event) -> ServiceReport:
        seen.append(stop.is_set())
        os.kill(os.getpid(), signal.SIGTERM)
        seen.append(stop.is_set())
        return ServiceReport()

    monkeypatch.setattr(RelayService, "run_once", ask)
    assert shop.run().exit_code == 0
    assert seen == [False, True]


def test_with_json_each_round_that_did_something_is_a_line(shop: Shop) -> None:
    shop.promise("tea")
    process = shop.start("--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: len(shop.bodies()) == 1)
        shop.promise("milk")
        wait_for(lambda: len(shop.bodies()) == 2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, b"")
    assert [json.loads(line)["sent"] for line in output.splitlines()] == [1, 1]


def test_a_terminal_gets_a_line(shop: Shop) -> None:
    shop.promise("tea")
    controller, terminal = pty.openpty()
    process = shop.start(stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    received = b""
    try:
        while b"\n" not in received:
            received += os.read(controller, 65536)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    finally:
        process.kill()
        os.close(controller)
    assert process.returncode == 0
    assert received.startswith(b"1 sent, 0 resent, 0 failed, ")


def test_a_database_that_goes_away_is_waited_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The round says so and the next one tries again; `--once` ends with 1."""
    from rmq_store.reliable import Relay

    def fail(relay: Relay, **given: object) -> None:
        raise sa.exc.OperationalError("SELECT secret", {}, Exception("connection\nlost"), connection_invalidated=True)

    monkeypatch.setattr(Relay, "run_once", fail)
    result = shop.run("--once", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problem"] == "connection lost"
    assert "relay: the database is away (connection lost)" in caplog.text
    assert "secret" not in result.output + caplog.text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mail-to", "ops@example.org"], "give --smtp HOST:PORT"),
        (["--smtp", "mail.example.org"], "a host and a port"),
        (["--smtp", "mail.example.org:99999"], "a host and a port"),
        (["--smtp", "mail.example.org:25"], "needs --mail-from and --mail-to"),
        (["--smtp", "h:25", "--mail-from", "a@b\r\nBcc: c@d", "--mail-to", "a@b"], "is expected, without a name"),
        (["--smtp", "h:25", "--mail-from", "a@b", "--mail-to", "a@b", "--smtp-user", "u", "--smtp-password", "hunter2"],
         "not the password"),
    ],
)  # fmt: skip
def test_mail_options_that_cannot_work_are_refused(shop: Shop, words: list[str], said: str) -> None:
    result = shop.run("--once", *words)
    assert (result.exit_code, said in result.stderr, result.stderr.count("\n")) == (2, True, 1)
    assert "hunter2" not in result.output
