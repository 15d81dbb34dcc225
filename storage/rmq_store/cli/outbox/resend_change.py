"""`rmq resend void`, `retry` and `clear`: decisions of a person about messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.outbox.resend_databases import database_options, open_databases
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.output import tell, wide_option, write_json, write_table

if TYPE_CHECKING:
    from rmq_store.reliable.operator.databases import Databases

Command = TypeVar("Command", bound=Callable[..., Any])

_DAY_MS = 24 * 3_600_000

_EXPLAINED = {
    "CONFIRMED": "every group has done it",
    "VOID": "it was taken back before",
    "NO_STUB": "this database has promised no such message; dead letters without a stub: rmq dlq redrive",
    "NOT_LISTED": "the manual list has nothing of it",
    "STILL_OPEN": "sending has given up, and it would be lost: retry it, or void it",
    "TOO_OLD": "older than inboxes remember: a group that has done it would do it again. See --effects-may-repeat",
}


def _changing(command: Command) -> Command:
    """Add the options that the three commands share."""
    command = click.argument("message_ids", metavar="ID...", nargs=-1, required=True)(command)
    command = changing_options(command)
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)
    return database_options(wide_option(command))


@click.command(
    short_help="End messages: groups will ignore them from now on.",
    epilog="\b\nExample:\n  rmq resend void C0000202371F5FFD2B2767134429005D --database env:ORDERS_DB --dry-run",
)
@_changing
def void(**given: Any) -> None:
    """End messages: groups that have not done them will ignore them, and they are removed from the manual list.

    Effects that have happened stay: the output names these groups. Exit code 1 if a message could not be ended.
    """
    _run("void", "End {count} messages, which then have no effect?", **given)


@click.command(
    short_help="Send messages once more.",
    epilog="\b\nExample:\n  rmq resend retry C0000202371F5FFD2B2767134429005D --database env:ORDERS_DB --yes",
)
@_changing
@click.option("--inbox-days", type=click.IntRange(min=1), default=30, show_default=True, metavar="DAYS",
              help="Days for which inboxes keep done messages. Older messages are refused.")  # fmt: skip
@click.option("--effects-may-repeat", is_flag=True,
              help="Also send older messages, although a group that has done one would do it a "
                   "second time.")  # fmt: skip
def retry(inbox_days: int, effects_may_repeat: bool, **given: Any) -> None:
    """Let `rmq resend run` send messages once more, whatever their count, time and offset, and even out of order.
    Groups that have done them recognise them.

    The messages are removed from the manual list, but entries in_doubt stay. If a message fails again, it gets a new
    entry. Exit code 1 if one of them cannot be sent again.
    """
    days = None if effects_may_repeat else inbox_days
    _run("retry", "Send {count} messages once more?", inbox_days=days, **given)


@click.command(
    short_help="Remove messages from the manual list; do nothing else.",
    epilog="\b\nExample:\n  rmq resend clear C0000202371F5FFD2B2767134429005D --database env:ORDERS_DB --yes",
)
@_changing
def clear(**given: Any) -> None:
    """Remove messages from the manual list: dead letters and doubts that an operator has resolved.

    Messages that the relay has given up (maximum, ordered) cannot be cleared, because they would never be sent: use
    retry or void. Exit code 1 if one of the messages stays on the list.
    """
    _run("clear", "Take {count} messages off the manual list?", **given)


def _run(
    action: str,
    question: str,
    *,
    database: str,
    inbox: tuple[str, ...],
    prefix: str,
    schema: str | None,
    as_json: bool,
    message_ids: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    inbox_days: int | None = None,
) -> None:
    with open_databases(database, inbox, prefix, schema) as databases:
        from rmq_store.reliable.database.leases import now_ms

        oldest_ms = 0 if inbox_days is None else now_ms() - inbox_days * _DAY_MS
        ids = tuple(dict.fromkeys(message_ids))
        outcomes = _planned(databases, ids, action, oldest_ms)
        done = _done_groups(databases, ids) if action == "void" else {}
        changing = [message_id for message_id, outcome in outcomes.items() if outcome == "CHANGED"]
        if changing and not dry_run:
            if not yes:
                counted = ", ".join(f"{count} {outcome}" for outcome, count in Counter(outcomes.values()).items())
                click.echo(f"{action}: this would be {counted}", err=True)
                for message_id in changing:
                    if message_id in done:
                        tell(f"{message_id} was done already by {', '.join(done[message_id])}")
            confirm(question.format(count=len(changing)), yes=yes)
            for message_id in changing:
                outcomes[message_id] = str(_change(databases, message_id, action, oldest_ms))
    _show(action, outcomes, done, as_json=as_json, dry_run=dry_run)
    if any(outcome != "CHANGED" for outcome in outcomes.values()):
        raise click.exceptions.Exit(1)


def _planned(databases: Databases, ids: tuple[str, ...], action: str, oldest_ms: int) -> dict[str, str]:
    from rmq_store.reliable.operator.manual_work import plan

    outcomes = plan(databases.inboxes, databases.tables, ids, action, oldest_ms=oldest_ms)
    return {message_id: str(outcome) for message_id, outcome in outcomes.items()}


def _done_groups(databases: Databases, ids: tuple[str, ...]) -> dict[str, list[str]]:
    from rmq_store.reliable.operator.manual_work import done_groups

    return done_groups(databases.inboxes, databases.tables, ids)


def _change(databases: Databases, message_id: str, action: str, oldest_ms: int) -> str:
    from rmq_store.reliable.database.leases import now_ms
    from rmq_store.reliable.operator import manual_work

    if action == "retry":
        return manual_work.retry(databases.inboxes, databases.tables, message_id, now_ms(), oldest_ms=oldest_ms)
    if action == "void":
        return manual_work.void_message(databases.inboxes, databases.tables, message_id)
    return manual_work.clear(databases.inboxes, databases.tables, message_id)


def _show(action: str, outcomes: dict[str, str], done: dict[str, list[str]], *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        shown = {"action": action, "dryRun": dry_run, "messages": outcomes}
        write_json(shown | ({"doneBy": done} if action == "void" else {}))
        return
    rows = [
        (message_id, outcome, _EXPLAINED.get(outcome) or _done_text(done.get(message_id)))
        for message_id, outcome in outcomes.items()
    ]
    write_table(("MESSAGE_ID", "OUTCOME", "WHY"), rows, flexible=("WHY",))
    if dry_run:
        click.echo("nothing was changed: this is what would be")


def _done_text(groups: list[str] | None) -> str:
    return f"done already by {', '.join(groups)}" if groups else ""
