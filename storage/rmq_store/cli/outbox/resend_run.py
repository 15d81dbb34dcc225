"""`rmq resend run`: the relay, until it is stopped."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store import real_time
from rmq_store.cli.outbox.resend_databases import database_options, open_databases
from rmq_store.cli.shared.output import common_options, printable, write_json
from rmq_store.cli.shared.parameters import NewFile, Seconds
from rmq_store.cli.shared.stop_signal import StopEvent, StopSignal, stopped_by_signals
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.client import Backend
    from rmq_store.reliable.relay.notifier import Notifier
    from rmq_store.reliable.relay.relay_service import RelayService, ServiceReport

Command = TypeVar("Command", bound=Callable[..., Any])

PRODUCER_GROUP = "pg_rmq_resend"
# Between two lines on a terminal.
REPORT_S = 10.0
_INTERVAL_MAX_S = 3_600
_NUMBERS = ("sent", "resent", "failed", "confirmed", "notified", "purged")


def _mail_options(command: Command) -> Command:
    """Add the options of the mail server; the command gets them for `_notifier`."""
    options = (
        click.option("--smtp", metavar="HOST:PORT", help="Mail server for notifications about the manual list."),
        click.option("--smtp-security", type=click.Choice(["starttls", "tls", "none"]), default="starttls",
                     show_default=True, help="Encryption of the connection; the certificate is checked."),
        click.option("--smtp-ca", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
                     help="File of certificate authorities for the mail server, instead of the system's."),
        click.option("--smtp-user", metavar="REF", help="User of the mail server: a name, env:NAME or file:/path."),
        click.option("--smtp-password", metavar="REF", help="Password of the mail server: env:NAME or file:/path."),
        click.option("--mail-from", metavar="ADDRESS", help="Sender address of the notifications."),
        click.option("--mail-to", metavar="ADDRESS", multiple=True, help="Recipient of the notifications. May be "
                                                                         "repeated."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def relay_options(command: Command) -> Command:
    """Add all options of the relay but those of its brokers; the command gives what it gets to `relay_with`."""
    options: tuple[Callable[[Any], Any], ...] = (
        database_options,
        click.option("--once", is_flag=True, help="Run one round, then end."),
        click.option("--interval", "interval_s", type=Seconds(0.01, _INTERVAL_MAX_S), default=1.0,
                     show_default=True, metavar="SECONDS",
                     help="Seconds between two rounds, or a duration (500ms, 1m)."),
        click.option("--metrics", "metrics_file", metavar="FILE", type=NewFile(),
                     help="Write OpenMetrics text about outages of the databases to this file after each round, for "
                          "node_exporter's textfile collector."),
        click.option("--max-send-count", type=click.IntRange(min=1), default=16, show_default=True, metavar="N",
                     help="A message that was sent N times and not confirmed goes to the manual list."),
        click.option("--resend-out-of-order", is_flag=True,
                     help="Also resend messages with a sharding key, although they then come after later ones of "
                          "their key."),
        click.option("--dry-run", is_flag=True,
                     help="Run one round that only shows what it would do; change nothing."),
        _mail_options,
    )  # fmt: skip
    made: Any = command
    for option in reversed(options):
        made = option(made)
    return made  # type: ignore[no-any-return]


@click.command(
    short_help="Run the relay: send and resend messages, until stopped.",
    epilog="\b\nExamples:\n  rmq resend run --store /data/rocketmq/store --database env:ORDERS_DB\n"
    "  rmq resend run --once --dry-run --store /data/rocketmq/store --database file:/run/secrets/orders\n"
    "  rmq resend run --database env:ORDERS_DB --smtp mail.example.org:587 --mail-from kit@example.org "
    "--mail-to ops@example.org",
)
@common_options
@relay_options
def run(root: Path, **given: Any) -> None:
    """Run the relay: send messages that no broker has, send lost messages again, add dead letters to the manual list,
    and notify operators of new entries.

    Several instances may run in parallel, on one database and one store. Ctrl-C and SIGTERM stop it after the current
    page of messages. On a terminal it reports every few seconds; with --json it prints a line for each round in which
    it did something. Opens the store for writing: no RocketMQ broker may run on it.
    """

    def open_brokers(stack: contextlib.ExitStack) -> Backend:
        from rmq_store import Store
        from rmq_store.client import LocalBackend

        return stack.enter_context(LocalBackend(stack.enter_context(Store.open(root))))

    relay_with(open_brokers, **given)


def relay_with(
    open_brokers: Callable[[contextlib.ExitStack], Backend],
    *,
    as_json: bool,
    database: str,
    inbox: tuple[str, ...],
    prefix: str,
    schema: str | None,
    once: bool,
    interval_s: float,
    metrics_file: Path | None,
    max_send_count: int,
    resend_out_of_order: bool,
    dry_run: bool,
    **mail: Any,
) -> None:
    """Run the relay of these options. `open_brokers` opens the brokers, which the stack closes."""
    notifier_of = _checked_mail(**mail)
    with (
        open_databases(database, inbox, prefix, schema) as databases,
        stopped_by_signals() as stop,
        contextlib.ExitStack() as stack,
    ):
        backend = open_brokers(stack)

        from rmq_store.client import Producer
        from rmq_store.reliable.relay.relay import Relay
        from rmq_store.reliable.relay.relay_service import RelayService

        notifier = notifier_of()
        with Producer(PRODUCER_GROUP, backend) as producer:
            relay = Relay(
                producer,
                databases.inboxes.stubs,
                databases.tables,
                inboxes=databases.inboxes,
                backend=backend,
                max_send_count=max_send_count,
                resend_out_of_order=resend_out_of_order,
                notifier=notifier,
            )
            service = RelayService(relay, backend, databases.inboxes, databases.tables, notifier=notifier)
            if once or dry_run:
                report = _round(service, stop, dry_run=dry_run)
                _keep_metrics(metrics_file)
                _show(report, as_json, dry_run=dry_run)
            else:
                _run(service, stop, interval_s, as_json, metrics_file)


def _round(service: RelayService, stop: StopSignal, *, dry_run: bool = False) -> ServiceReport:
    return service.run_once(dry_run=dry_run, stop=StopEvent(stop))


def _run(
    service: RelayService, stop: StopSignal, interval_s: float, as_json: bool, metrics_file: Path | None
) -> None:
    status = _Status(as_json)
    wait_s = 0.0
    while not stop.wait(wait_s):
        report = _round(service, stop)
        _keep_metrics(metrics_file)
        status.show(report)
        wait_s = 0.0 if report.relay.has_more and not report.problem else interval_s
    status.end()


def _keep_metrics(file: Path | None) -> None:
    if file is None:
        return
    from rmq_store.broker.monitoring.metrics import write_openmetrics
    from rmq_store.reliable.database.outage import holding_metrics

    try:
        write_openmetrics(file, holding_metrics())
    except FileNotFoundError as error:
        raise UsageError(f"{file}: there is no directory {file.parent}") from error


def _checked_mail(
    *,
    smtp: str | None,
    smtp_security: str,
    smtp_ca: str | None,
    smtp_user: str | None,
    smtp_password: str | None,
    mail_from: str | None,
    mail_to: tuple[str, ...],
) -> Callable[[], Notifier | None]:
    """The arguments of the notifier. It needs a package, and mistakes are reported before the package is imported."""
    if smtp is None:
        if mail_from or mail_to or smtp_user or smtp_password:
            raise UsageError("mails need a server: give --smtp HOST:PORT, too")
        return lambda: None
    host, _, port = smtp.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--smtp {smtp!r}: a host and a port, such as mail.example.org:587, are needed")
    if mail_from is None or not mail_to:
        raise UsageError("--smtp needs --mail-from and --mail-to")
    sender = mail_from

    def make() -> Notifier:
        from rmq_store.reliable.relay.notifier import SmtpNotifier

        return SmtpNotifier(
            host.removeprefix("[").removesuffix("]"), int(port), sender, mail_to,
            security=smtp_security, user=smtp_user, password=smtp_password, ca_file=smtp_ca,  # type: ignore[arg-type]
        )  # fmt: skip

    return make


def _json(report: ServiceReport) -> dict[str, Any]:
    return {
        **{name: getattr(report.relay, name) for name in _NUMBERS},
        "manual": dict(report.relay.manual),
        "waiting": dict(report.relay.waiting),
        "deadLetters": {
            "read": report.collected.read,
            "listed": report.collected.listed,
            "done": report.collected.done,
            "void": report.collected.void,
            "withoutId": report.collected.without_id,
            "gone": report.collected.gone,
        },
        "problem": report.problem or None,
    }


def _show(report: ServiceReport, as_json: bool, *, dry_run: bool) -> None:
    if as_json:
        write_json({"dryRun": dry_run, **_json(report)})
    else:
        click.echo(printable(_text(_counts(report))))
        if report.relay.waiting:
            waiting = ", ".join(f"{count} {why}" for why, count in sorted(report.relay.waiting.items()))
            click.echo(printable(f"due, and not sent again: {waiting}"))
        if dry_run:
            click.echo("nothing was sent: this is what would be")
    if report.problem:
        raise click.exceptions.Exit(1)


def _counts(report: ServiceReport) -> Counter[str]:
    counts = Counter({name: int(getattr(report.relay, name)) for name in _NUMBERS})
    counts["to the manual list"] = sum(report.relay.manual.values()) + report.collected.listed
    return counts


def _text(counts: Counter[str]) -> str:
    names = (*_NUMBERS, "to the manual list")
    return ", ".join(f"{counts[name]} {name}" for name in names)


class _Status:
    """A status line on a terminal: one at the start, and one after rounds that did something, but not too often. With
    --json a line for each round that did something.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._is_shown = sys.stdout.isatty() and not as_json
        self._counts: Counter[str] = Counter()
        self._is_new = True
        self._shown_s = 0.0

    def show(self, report: ServiceReport) -> None:
        """Add a round."""
        counts = _counts(report)
        if self._as_json and (any(counts.values()) or report.collected.read or report.problem):
            write_json(_json(report), one_line=True)
        self._counts += counts
        self._is_new = self._is_new or any(counts.values())
        if self._is_shown and self._is_new and real_time.monotonic() - self._shown_s >= REPORT_S:
            self._say()

    def end(self) -> None:
        """Print the lines that were not printed yet."""
        if self._is_shown and self._is_new:
            self._say()

    def _say(self) -> None:
        click.echo(_text(self._counts))
        self._is_new, self._shown_s = False, real_time.monotonic()
