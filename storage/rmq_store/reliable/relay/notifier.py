"""Notifies people of new entries of the manual list (H11 of docs/conformance.md): by mail, or by a callable.

One notification covers many entries. An entry is marked after the notifier has returned, so it is notified at least
once: a process that dies in between, or a second relay, notifies again. Ids and details are untrusted text.
"""

from __future__ import annotations

import logging
import re
import smtplib
import ssl
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final, Literal, Protocol

import sqlalchemy as sa

from rmq_store import real_time
from rmq_store.errors import UsageError
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.engine import resolve_reference
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.database.manual_list import ManualEntry
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import read, transact

ENTRIES_PER_MESSAGE: Final = 500
PAUSE_AFTER_FAILURE_S: Final = 60.0
DETAIL_CHARACTERS_SHOWN: Final = 500
SMTP_TIMEOUT_S: Final = 30.0

Security = Literal["starttls", "tls", "none"]

_ADDRESS = re.compile(r"[^\s<>,;:\"\\@()\[\]\x00-\x1f\x7f]+@[^\s<>,;:\"\\@()\[\]\x00-\x1f\x7f]+")
_log = logging.getLogger(__name__)


class Notifier(Protocol):
    """Notifies people."""

    def notify(self, entries: Sequence[ManualEntry]) -> None:
        """Notify people of these entries, in one message. After an exception they are notified again later."""


class CallableNotifier:
    """Calls a function with the entries, for a chat, a pager or a ticket system."""

    def __init__(self, function: Callable[[Sequence[ManualEntry]], object]) -> None:
        self._function = function

    def notify(self, entries: Sequence[ManualEntry]) -> None:
        """As `Notifier.notify`."""
        self._function(entries)


class SmtpNotifier:
    """Sends a mail through a server.

    `security`: "starttls" (port 587) and "tls" (port 465) check the server's certificate and name, against the system's
    authorities or those in the file `ca_file`; "none" is for a mail server on this machine. `user` is a name or a
    reference, `password` a reference (env:NAME, file:/path), read again for each mail and never shown.

    Raises:
        UsageError: an invalid address, a password that is no reference or would be sent in the clear.
    """

    def __init__(
        self,
        host: str,
        port: int,
        sender: str,
        recipients: Sequence[str],
        *,
        security: Security = "starttls",
        user: str | None = None,
        password: str | None = None,
        ca_file: str | None = None,
        timeout_s: float = SMTP_TIMEOUT_S,
    ) -> None:
        if isinstance(recipients, str) or not recipients:
            raise UsageError("recipients of mails: a list of one address or more is expected")
        for address in (sender, *recipients):
            if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
                raise UsageError(f"mail address {address!r}: one such as ops@example.org is expected, without a name")
        if security not in ("starttls", "tls", "none"):
            raise UsageError(f"security={security!r} of mails: starttls, tls or none is expected")
        if (user is None) != (password is None):
            raise UsageError("a mail server that asks for a user asks for a password, too: give both or none")
        if password is not None and not password.startswith(("env:", "file:")):
            raise UsageError("the password of the mail server: env:NAME or file:/path is expected, not the password")
        if password is not None and security == "none":
            raise UsageError("a password is not sent without encryption: security='starttls' or 'tls' is needed")
        self._host, self._port, self._sender, self._recipients = host, port, sender, list(recipients)
        self._security, self._user, self._password = security, user, password
        self._ca_file, self._timeout_s = ca_file, timeout_s

    def __repr__(self) -> str:
        return f"SmtpNotifier({self._host!r}, {self._port})"

    def notify(self, entries: Sequence[ManualEntry]) -> None:
        """As `Notifier.notify`. Recipients that the server refuses are logged, if it accepts others.

        Raises:
            OSError: the server cannot be reached, its certificate is invalid, or it refuses the mail (SMTPException).
        """
        mail = mail_of(entries, self._sender, self._recipients)
        with self._connected() as server:
            if self._security == "starttls":
                server.starttls(context=self._context())
            if self._user is not None and self._password is not None:
                server.login(
                    resolve_reference(self._user, "the user of the mail server", "the name"),
                    resolve_reference(self._password, "the password of the mail server", "the password"),
                )
            refused = server.send_message(mail, self._sender, self._recipients)
        if refused:
            _log.warning("%s: refused recipients: %s", self._host, printable(", ".join(sorted(refused))))

    def _connected(self) -> smtplib.SMTP:
        if self._security == "tls":
            return smtplib.SMTP_SSL(self._host, self._port, timeout=self._timeout_s, context=self._context())
        return smtplib.SMTP(self._host, self._port, timeout=self._timeout_s)

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._ca_file)


def mail_of(entries: Sequence[ManualEntry], sender: str, recipients: Sequence[str]) -> EmailMessage:
    """The mail. Its headers have no untrusted text, and each entry is one line of its body."""
    mail = EmailMessage(policy=SMTP)
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Subject"] = f"rmq resend: {len(entries)} message{'s' if len(entries) != 1 else ''} for the manual list"
    mail["Auto-Submitted"] = "auto-generated"
    lines = [
        "These messages need a person. `rmq resend list` shows them all, `rmq resend show ID` one of them.",
        "`rmq resend retry ID` has one sent again, `rmq resend void ID` ends it.",
        "",
        *(line_of(entry) for entry in entries),
    ]
    mail.set_content("\n".join(lines) + "\n")
    return mail


def line_of(entry: ManualEntry) -> str:
    """An entry in one line."""
    group = f" group {entry.group_name}" if entry.group_name else ""
    return printable(f"{entry.message_id} {entry.reason}{group}: {entry.detail[:DETAIL_CHARACTERS_SHOWN]}")


def printable(text: str) -> str:
    """`text` with everything escaped that breaks a line, moves a cursor or turns the direction of writing."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


class Notifications:
    """Notifies people of new entries of the manual list. After a failure it waits for `pause_s` seconds."""

    def __init__(
        self,
        engine: sa.Engine,
        tables: Tables,
        notifier: Notifier,
        *,
        pause_s: float = PAUSE_AFTER_FAILURE_S,
        monotonic: Callable[[], float] = real_time.monotonic,
    ) -> None:
        self._engine, self._tables, self._notifier = engine, tables, notifier
        self._pause_s, self._monotonic = pause_s, monotonic
        self._next_s = monotonic()

    def run_once(self) -> int:
        """Send one message, if there are new entries and no pause. Returns the number of its entries. An exception of
        the notifier is logged; one of the database is raised.
        """
        if self._monotonic() < self._next_s:
            return 0
        entries = read(
            self._engine,
            lambda connection: manual_list.not_notified(connection, self._tables, limit=ENTRIES_PER_MESSAGE),
        )
        if not entries:
            return 0
        try:
            self._notifier.notify(entries)
        except Exception as error:
            self._next_s = self._monotonic() + self._pause_s
            reason = printable(f"{type(error).__name__}: {error}")[:DETAIL_CHARACTERS_SHOWN]
            _log.warning(
                "nobody was told of %d entries of the manual list, next try in %.0f s: %s",
                len(entries), self._pause_s, reason,
            )  # fmt: skip
            return 0
        transact(
            self._engine, lambda connection: manual_list.mark_notified(connection, self._tables, entries, now_ms())
        )
        return len(entries)


def notify_pending(engine: sa.Engine, tables: Tables, notifier: Notifier) -> int:
    """Send one message about the new entries of the manual list, whatever happened before: see `Notifications`."""
    return Notifications(engine, tables, notifier).run_once()
