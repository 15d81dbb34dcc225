"""Telling people of the manual list: `rmq_store.reliable.relay.notifier`, with a mail server on loopback."""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from helpers.smtp_server import PASSWORD, USER, SmtpServer, certificate_for
from rmq_store.errors import UsageError
from rmq_store.reliable import Tables, open_engine
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.manual_list import ManualEntry
from rmq_store.reliable.relay.notifier import (
    ENTRIES_PER_MESSAGE,
    CallableNotifier,
    Notifications,
    SmtpNotifier,
    mail_of,
    notify_pending,
)

ENTRY = ManualEntry("A1", "cg_orders", "dead_letter", "no such customer", 1_000)


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def engine(tmp_path: Path, tables: Tables) -> Iterator[sa.Engine]:
    made = open_engine(f"sqlite:///{tmp_path}/business.db")
    tables.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def server() -> Iterator[SmtpServer]:
    made = SmtpServer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate_for("localhost", tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def tls_server(certificate: tuple[Path, Path]) -> Iterator[SmtpServer]:
    made = SmtpServer(*certificate)
    yield made
    made.close()


def add(engine: sa.Engine, tables: Tables, *entries: ManualEntry) -> None:
    with engine.begin() as connection:
        manual_list.add_all(connection, tables, entries)


def plain(server: SmtpServer, *recipients: str) -> SmtpNotifier:
    return SmtpNotifier("localhost", server.port, "kit@example.org", recipients or ["ops@example.org"], security="none")


# ---- what is told, and how often


@pytest.mark.statement("H11")
def test_one_mail_tells_of_many_entries_and_of_each_only_once(
    engine: sa.Engine, tables: Tables, server: SmtpServer
) -> None:
    add(engine, tables, ENTRY, ManualEntry("B2", "", "maximum", "sent 16 times", 2_000))
    assert notify_pending(engine, tables, plain(server, "ops@example.org", "night@example.org")) == 2
    assert notify_pending(engine, tables, plain(server)) == 0
    ((recipients, mail),) = server.mails
    assert recipients == ["ops@example.org", "night@example.org"]
    assert (mail["From"], mail["Subject"]) == ("kit@example.org", "rmq resend: 2 messages for the manual list")
    assert mail.get_content().splitlines()[-2:] == [
        "A1 dead_letter group cg_orders: no such customer",
        "B2 maximum: sent 16 times",
    ]


@pytest.mark.statement("H11")
def test_what_nobody_could_be_told_of_is_told_after_a_pause(
    engine: sa.Engine, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[ManualEntry] = []
    faults: list[Exception] = [OSError("the line is\ncut")]
    clock = [100.0]

    def tell(entries: Sequence[ManualEntry]) -> None:
        if faults:
            raise faults.pop()
        told.extend(entries)

    notifications = Notifications(engine, tables, CallableNotifier(tell), pause_s=60, monotonic=lambda: clock[0])
    add(engine, tables, ENTRY)
    with caplog.at_level(logging.WARNING):
        assert notifications.run_once() == 0
    assert r"OSError: the line is\ncut" in caplog.text
    clock[0] = 159.0
    assert (notifications.run_once(), told) == (0, [])
    clock[0] = 160.0
    assert (notifications.run_once(), told) == (1, [ENTRY])


def test_an_entry_is_marked_only_after_somebody_was_told(engine: sa.Engine, tables: Tables) -> None:
    add(engine, tables, ENTRY)

    def die(entries: Sequence[ManualEntry]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        notify_pending(engine, tables, CallableNotifier(die))
    told: list[ManualEntry] = []
    assert notify_pending(engine, tables, CallableNotifier(told.extend)) == 1
    assert told == [ENTRY]


def test_an_entry_that_comes_anew_while_people_are_told_of_the_old_one_is_told_of(
    engine: sa.Engine, tables: Tables
) -> None:
    """A mail server may take half a minute; the message may be done, and die again, meanwhile."""
    add(engine, tables, ENTRY)
    again = replace(ENTRY, detail="it died again", created_ms=2_000)

    def come_anew(entries: Sequence[ManualEntry]) -> None:
        with engine.begin() as connection:
            manual_list.remove(connection, tables, ENTRY.message_id)
            manual_list.add_all(connection, tables, [again])

    notify_pending(engine, tables, CallableNotifier(come_anew))
    told: list[ManualEntry] = []
    assert notify_pending(engine, tables, CallableNotifier(told.extend)) == 1
    assert told == [again]


def test_a_flood_of_entries_becomes_messages_of_bounded_size(engine: sa.Engine, tables: Tables) -> None:
    add(engine, tables, *(ManualEntry(f"M{n}", "", "maximum", "x", n) for n in range(ENTRIES_PER_MESSAGE + 3)))
    sizes: list[int] = []
    notifier = CallableNotifier(lambda entries: sizes.append(len(entries)))
    assert [notify_pending(engine, tables, notifier) for _ in range(3)] == [ENTRIES_PER_MESSAGE, 3, 0]
    assert sizes == [ENTRIES_PER_MESSAGE, 3]


# ---- what a stranger writes


def test_ids_and_details_of_strangers_stay_in_one_line_of_the_body(
    engine: sa.Engine, tables: Tables, server: SmtpServer
) -> None:
    evil = "x\r\nBcc: everybody@example.org\r\n\r\n.\r\nMAIL FROM:<a@b>\u202e\x1b[31m"
    add(engine, tables, ManualEntry("A1\r\nBcc: all@example.org", "cg\nx", "dead_letter", evil, 1))
    assert notify_pending(engine, tables, plain(server)) == 1
    ((recipients, mail),) = server.mails
    assert recipients == ["ops@example.org"]
    assert sorted(mail.keys()) == [
        "Auto-Submitted", "Content-Transfer-Encoding", "Content-Type", "From", "MIME-Version", "Subject", "To",
    ]  # fmt: skip
    *_, line = mail.get_content().splitlines()
    assert line == (
        r"A1\r\nBcc: all@example.org dead_letter group cg\nx: x\r\nBcc: everybody@example.org\r\n\r\n.\r\n"
        r"MAIL FROM:<a@b>\u202e\x1b[31m"
    )
    assert server.commands.count("MAIL") == 1


def test_other_alphabets_are_readable_and_what_no_encoding_has_is_escaped() -> None:
    mail = mail_of(
        [ManualEntry("A1", "组", "dead_letter", "余额不足\ud800", 1)], "kit@example.org", ["ops@example.org"]
    )
    assert mail.get_content().splitlines()[-1] == r"A1 dead_letter group 组: 余额不足\ud800"
    assert mail.as_bytes()


# ---- the server


def test_starttls_checks_the_certificate_and_sends_no_password_before(
    tls_server: SmtpServer, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    given = {"user": USER, "password": "env:MAIL_PASSWORD"}
    address = ("localhost", tls_server.port, "kit@example.org", ["ops@example.org"])
    with pytest.raises(ssl.SSLCertVerificationError):
        SmtpNotifier(*address, **given).notify([ENTRY])
    assert "AUTH" not in tls_server.commands
    SmtpNotifier(*address, **given, ca_file=str(certificate[0])).notify([ENTRY])
    assert tls_server.commands.count("AUTH") == 1
    assert len(tls_server.mails) == 1


def test_a_certificate_of_another_name_is_refused(tls_server: SmtpServer, certificate: tuple[Path, Path]) -> None:
    notifier = SmtpNotifier(
        "127.0.0.1", tls_server.port, "kit@example.org", ["ops@example.org"], ca_file=str(certificate[0])
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        notifier.notify([ENTRY])
    assert tls_server.mails == []


def test_a_server_without_starttls_gets_nothing(server: SmtpServer) -> None:
    server.answers["STARTTLS"] = "502 not here"
    notifier = SmtpNotifier("localhost", server.port, "kit@example.org", ["ops@example.org"])
    with pytest.raises(smtplib.SMTPException):
        notifier.notify([ENTRY])
    assert "MAIL" not in server.commands


def test_a_wrong_password_is_in_no_message(
    tls_server: SmtpServer,
    certificate: tuple[Path, Path],
    engine: sa.Engine,
    tables: Tables,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "secret").write_text("not-the-one\n")
    notifier = SmtpNotifier(
        "localhost", tls_server.port, "kit@example.org", ["ops@example.org"],
        user=USER, password=f"file:{tmp_path}/secret", ca_file=str(certificate[0]),
    )  # fmt: skip
    add(engine, tables, ENTRY)
    with caplog.at_level(logging.DEBUG):
        assert notify_pending(engine, tables, notifier) == 0
    assert "535" in caplog.text
    assert "not-the-one" not in caplog.text + repr(notifier)


def test_recipients_that_are_refused_are_logged_and_the_others_told(
    server: SmtpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        plain(server, "gone@example.org", "ops@example.org").notify([ENTRY])
    assert [recipients for recipients, _ in server.mails] == [["ops@example.org"]]
    assert "refused recipients: gone@example.org" in caplog.text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sender": "kit@example.org\r\nBcc: x@y"}, "one such as"),
        ({"recipients": ["a@b.example, c@d.example"]}, "one such as"),
        ({"recipients": "ops@example.org"}, "a list of one address"),
        ({"recipients": []}, "a list of one address"),
        ({"security": "ssl"}, "starttls, tls or none"),
        ({"user": "kit"}, "give both or none"),
        ({"user": "kit", "password": "hunter2"}, "not the password"),
        ({"user": "kit", "password": "env:P", "security": "none"}, "without encryption"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(changed: dict[str, object], said: str) -> None:
    given = {"host": "localhost", "port": 25, "sender": "kit@example.org", "recipients": ["ops@example.org"]}
    with pytest.raises(UsageError, match=said) as caught:
        SmtpNotifier(**(given | changed))  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
