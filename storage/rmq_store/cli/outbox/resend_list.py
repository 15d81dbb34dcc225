"""`rmq resend list` and `rmq resend show`: which messages wait, for what, and about which a person must decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.outbox.resend_databases import database_options, open_databases
from rmq_store.cli.shared.completion import GROUP
from rmq_store.cli.shared.message_text import body_line, body_option, body_value
from rmq_store.cli.shared.output import printable, tell, time_text, wide_option, write_json, write_table
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.reliable.database.manual_list import ManualEntry
    from rmq_store.reliable.operator.databases import Databases
    from rmq_store.reliable.operator.message_report import MessageReport
    from rmq_store.reliable.operator.stub_status import StubStatus

# As in reliable.manual_list and reliable.stub_status, which need SQLAlchemy; tests compare them.
REASONS = ("maximum", "ordered", "stuck", "illegal", "dead_letter", "in_doubt", "no_id", "same_id")
STATES = ("unsent", "waiting", "due", "manual", "void")
_PAGE = 500


@click.command(
    "list",
    short_help="The manual list; with --state unconfirmed messages, and why.",
    epilog="\b\nExamples:\n  rmq resend list --database env:ORDERS_DB\n"
    "  rmq resend list --state waiting --state due --group cg_stock --database file:/run/secrets/orders",
)
@database_options
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each, instead of a table.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES),
              help="Show stubs in this state instead of the manual list. May be repeated.")  # fmt: skip
@click.option("--group", "-g", type=GROUP, help="Only messages that this group has not done.")
@click.option("--reason", type=click.Choice(REASONS), help="Only entries of the manual list with this reason.")
@click.option(
    "--max", "limit", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum number to show."
)
def list_(
    database: str,
    inbox: tuple[str, ...],
    prefix: str,
    schema: str | None,
    as_json: bool,
    states: tuple[str, ...],
    group: str | None,
    reason: str | None,
    limit: int,
) -> None:
    """Show the manual list, the messages that need a decision: sent as often as is allowed (maximum); out of order if
    sent again, because later ones of their key were sent (ordered); unknown whether they arrived (stuck); unreadable,
    or refused by brokers (illegal); given up by a group (dead_letter); effect may have happened twice (in_doubt);
    without an id (no_id).

    With --state it shows stubs (messages of the outbox) instead, the oldest first, and why each is not sent: unsent (no
    broker has it), waiting (sent, and not lost as far as is known), due (will be sent again next), manual, void.
    Changes nothing.
    """
    if states and reason:
        raise UsageError("--reason is for the manual list: leave it out, or --state")
    with open_databases(database, inbox, prefix, schema) as databases:
        if states:
            _list_stubs(databases, states, group, limit, as_json)
        else:
            _list_entries(databases, group, reason, limit, as_json)


def _list_entries(databases: Databases, group: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    found = list(islice(_entries(databases, group, reason), limit + 1))
    if as_json:
        for entry in found[:limit]:
            write_json(entry_json(entry), one_line=True)
    else:
        columns = ("MESSAGE_ID", "GROUP", "REASON", "SINCE", "TOLD", "DETAIL")
        rows = [
            (
                entry.message_id, entry.group_name or "-", entry.reason, _time(entry.created_ms),
                _time(entry.notified_ms), entry.detail,
            )
            for entry in found[:limit]
        ]  # fmt: skip
        write_table(columns, rows, flexible=("GROUP", "DETAIL"))
    _tell_of_more(len(found) > limit)


def _entries(databases: Databases, group: str | None, reason: str | None) -> Iterator[ManualEntry]:
    from rmq_store.reliable.database import manual_list

    for engine in databases.inboxes.engines():
        last: ManualEntry | None = None
        while True:
            with engine.connect() as connection:
                page = manual_list.list_entries(
                    connection, databases.tables, limit=_PAGE, after=last, group_name=group, reason=reason
                )
            yield from page
            if len(page) < _PAGE:
                break
            last = page[-1]


def _list_stubs(databases: Databases, states: Sequence[str], group: str | None, limit: int, as_json: bool) -> None:
    from rmq_store.reliable.database.leases import now_ms
    from rmq_store.reliable.operator.stub_status import stubs_in

    stubs = stubs_in(databases.inboxes, databases.tables, states, now_ms(), group=group)
    found = list(islice(stubs, limit + 1))
    if as_json:
        for stub in found[:limit]:
            write_json(stub_json(stub), one_line=True)
    else:
        columns = ("MESSAGE_ID", "TOPIC", "KEY", "STATE", "COUNT", "SENT", "NEXT", "GROUPS", "WHY")
        rows = [
            (
                stub.message_id, stub.topic, stub.sharding_key or "-", stub.state, stub.send_count,
                _time(stub.sent_ms), _time(stub.resend_ms), _open_groups(stub), stub.why,
            )
            for stub in found[:limit]
        ]  # fmt: skip
        write_table(columns, rows, flexible=("TOPIC", "KEY", "GROUPS", "WHY"))
    _tell_of_more(len(found) > limit)


def _tell_of_more(is_more: bool) -> None:
    if is_more:
        tell("there are more: see --max")


def _open_groups(stub: StubStatus) -> str:
    return ", ".join(group.name for group in stub.groups if group.confirmed_ms is None) or "-"


def _time(time_ms: int | None) -> str:
    return "-" if time_ms is None else time_text(time_ms * 1000)


def _time_json(time_ms: int | None) -> str | None:
    return None if time_ms is None else time_text(time_ms * 1000)


def entry_json(entry: ManualEntry) -> dict[str, Any]:
    """An entry for `write_json`."""
    return {
        "messageId": entry.message_id,
        "group": entry.group_name,
        "reason": entry.reason,
        "detail": entry.detail,
        "created": _time_json(entry.created_ms),
        "notified": _time_json(entry.notified_ms),
    }


def stub_json(stub: StubStatus) -> dict[str, Any]:
    """A stub for `write_json`."""
    return {
        "messageId": stub.message_id,
        "topic": stub.topic,
        "shardingKey": stub.sharding_key,
        "state": stub.state,
        "why": stub.why,
        "created": _time_json(stub.created_ms),
        "sendCount": stub.send_count,
        "sent": _time_json(stub.sent_ms),
        "next": _time_json(stub.resend_ms),
        "brokerName": stub.broker_name,
        "queueId": stub.queue_id,
        "queueOffset": stub.queue_offset,
        "groups": [_group_json(group) for group in stub.groups],
    }


def _group_json(group: Any) -> dict[str, Any]:
    log = group.log
    return {
        "group": group.name,
        "confirmed": _time_json(group.confirmed_ms),
        "done": _time_json(group.done_ms),
        "highWater": group.high_water,
        "log": None
        if log is None
        else {
            "received": _time_json(log.received_ms),
            "reconsumeTimes": log.reconsume_times,
            "leaseUntil": _time_json(log.lease_until_ms or None),
            "blocksUntil": _time_json(log.blocks_until_ms or None),
            "isDead": log.is_dead,
        },
    }


@click.command(
    short_help="One message: stub, groups, log, inbox, manual list, body.",
    epilog="\b\nExample:\n  rmq resend show C0000202371F5FFD2B2767134429005D --database env:ORDERS_DB",
)
@database_options
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.argument("message_id", metavar="ID")
@body_option
def show(
    database: str,
    inbox: tuple[str, ...],
    prefix: str,
    schema: str | None,
    as_json: bool,
    message_id: str,
    body: str,
) -> None:
    """Everything that the databases hold about a message: its stub, the groups that must confirm it, the groups that
    have received or done it, and its entries on the manual list. Changes nothing. Exit code 1 if no database knows the
    id.
    """
    with open_databases(database, inbox, prefix, schema) as databases:
        from rmq_store.reliable.operator.message_report import report_of

        report = report_of(databases.inboxes, databases.tables, message_id)
    if as_json:
        write_json(_report_json(report, body))
    else:
        _write_report(report, body)
    if report.is_empty:
        raise click.exceptions.Exit(1)


def _report_json(report: MessageReport, body: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"messageId": report.message_id, "stub": None}
    if report.stub is not None:
        shown["stub"] = stub_json(report.stub) | {"properties": report.properties}
        if report.unreadable:
            shown["stub"]["unreadable"] = list(report.unreadable)
        if body != "none":
            shown["stub"]["body"] = body_value(report.body, body)
    shown["received"] = [_group_json(group) for group in report.others]
    shown["manual"] = [entry_json(entry) for entry in report.entries]
    return shown


def _write_report(report: MessageReport, body: str) -> None:
    if report.is_empty:
        click.echo(printable(f"{report.message_id}: no stub, no group has received it, and it is on no manual list"))
        return
    stub = report.stub
    lines = [("message", report.message_id)]
    if stub is None:
        lines.append(("stub", "none in this database"))
    else:
        sent = f"count {stub.send_count}"
        if stub.sent_ms is not None:
            place = f"{stub.broker_name} queue {stub.queue_id} offset {stub.queue_offset}"
            known = place if stub.queue_offset is not None else "no place that could be compared"
            sent += f", last {_time(stub.sent_ms)}, {known}"
        lines += [
            ("topic", stub.topic + (f", sharding key {stub.sharding_key}" if stub.sharding_key else "")),
            ("state", f"{stub.state}: {stub.why}"),
            ("created", _time(stub.created_ms)),
            ("sent", sent),
            ("next", _time(stub.resend_ms)),
            *(("property", f"{name}={value}") for name, value in (report.properties or {}).items()),
            *(("unreadable", fault) for fault in report.unreadable),
        ]
        if body != "none" and report.body is not None:
            lines.append(("body", body_line(report.body, body)))
    for name, text in lines:
        click.echo(f"{name:<9} {printable(text) if name != 'body' else text}")
    groups = (*(stub.groups if stub is not None else ()), *report.others)
    if groups:
        click.echo()
        columns = ("GROUP", "CONFIRMED", "DONE", "RECEIVED", "TRIES", "BUSY_UNTIL", "DEAD", "UP_TO_OFFSET")
        write_table(columns, [_group_row(group) for group in groups], flexible=("GROUP",))
    if report.entries:
        click.echo()
        rows = [
            (entry.reason, entry.group_name or "-", _time(entry.created_ms), _time(entry.notified_ms), entry.detail)
            for entry in report.entries
        ]
        write_table(("REASON", "GROUP", "SINCE", "TOLD", "DETAIL"), rows, flexible=("GROUP", "DETAIL"))


def _group_row(group: Any) -> tuple[str | int, ...]:
    log = group.log
    busy = max(log.lease_until_ms, log.blocks_until_ms) if log is not None else 0
    return (
        group.name,
        _time(group.confirmed_ms),
        _time(group.done_ms),
        "-" if log is None else _time(log.received_ms),
        "-" if log is None else log.reconsume_times,
        _time(busy or None),
        "-" if log is None else "yes" if log.is_dead else "no",
        "-" if group.high_water is None else group.high_water,
    )
