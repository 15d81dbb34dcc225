"""`rmq transactions`: open transactions of a store, why each one waits, and how it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.messages.transaction_text import explain_ended, explain_given_up, explain_pending
from rmq_store.cli.shared.formatting import duration_text
from rmq_store.cli.shared.output import common_options, open_store, printable, wide_option, write_json, write_table
from rmq_store.errors import CorruptIndexError, UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.transactions.half_queue import PendingHalf
    from rmq_store.format.frames.stored_message import StoredMessage

OURS, BROKERS, GIVEN_UP = "open", "of a broker", "given up"


@click.group(short_help="Open transactions: list, explain, resume.")
def transactions() -> None:
    """Half messages, which wait for the outcome of their producers' local transactions."""


@transactions.command(
    "list",
    short_help="Transactions without an outcome.",
    epilog="\b\nExample:\n  rmq transactions list --store /data/rocketmq/store",
)
@common_options
@wide_option
def list_(root: Path, as_json: bool) -> None:
    """Transactions without an outcome, oldest first.

    STATE is `open` while producers are asked, `of a broker` if a RocketMQ broker left the half message, and `given up`
    after 15 questions without an outcome, or when retention deleted the segment of one that a broker left: `rmq
    transactions resume` brings the last two back. CHECKS counts the
    questions that producers were sent. TOPIC and QUEUE are where a commit puts the message.
    """
    with open_store(root) as store:
        now_ms = store.clock()
        rows = [_row(store, half, now_ms) for half in store.transactions.pending()]
        for message in _left_alone(store):
            properties = message.properties
            rows.append({
                "state": GIVEN_UP, "group": properties.get("PGROUP"), "topic": properties.get("REAL_TOPIC"),
                "queueId": _number(properties.get("REAL_QID")), "ageMs": max(now_ms - message.born_timestamp_ms, 0),
                "checkTimes": _number(properties.get("TRANSACTION_CHECK_TIMES")) or 0, "transactionId": message.msg_id,
            })  # fmt: skip
    if as_json:
        write_json(rows)
        return
    shown = [
        (
            row["state"], row["group"] or "-", row["topic"] or "-", "-" if row["queueId"] is None else row["queueId"],
            duration_text(row["ageMs"]), row["checkTimes"], row["transactionId"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("STATE", "GROUP", "TOPIC", "QUEUE", "AGE", "CHECKS", "TRANSACTION")
    write_table(columns, shown, flexible=("GROUP", "TOPIC"))


@transactions.command(
    short_help="What happened to a transaction, and what comes next.",
    epilog="\b\nExample:\n  rmq transactions explain 7F0000010001... --store /data/rocketmq/store",
)
@common_options
@click.argument("transaction_id", metavar="TRANSACTION")
def explain(root: Path, as_json: bool, transaction_id: str) -> None:
    """Tell the story of a transaction, and what comes next. TRANSACTION is its id, the UNIQ_KEY of its message."""
    with open_store(root) as store:
        lines = _explained(store, transaction_id)
    if as_json:
        write_json({"transactionId": transaction_id, "lines": lines})
        return
    for line in lines:
        click.echo(printable(line))


@transactions.command(
    short_help="Ask producers again.",
    epilog="\b\nExample:\n  rmq transactions resume 7F0000010001... --store /data/rocketmq/store",
)
@common_options
@click.argument("transaction_ids", metavar="[TRANSACTION]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All transactions that were given up, or that a broker left.")
def resume(root: Path, as_json: bool, transaction_ids: tuple[str, ...], is_all: bool) -> None:
    """Ask producers again for transactions that were given up, or that a RocketMQ broker left.

    Their producers get up to 15 questions more. A transaction that was resumed before is left out, so you can repeat
    the command. The store is opened for writing: no RocketMQ broker may run on it.
    """
    from rmq_store import Store

    if is_all == bool(transaction_ids):
        raise click.UsageError("Name transactions, or give --all.")
    wanted, resumed, known = set(transaction_ids), [], set()
    with Store.open(root) as store:
        for half in store.transactions.pending():
            if is_all or half.transaction_id in wanted:
                known.add(half.transaction_id)
                if store.transactions.take_over(half):
                    resumed.append(half.transaction_id)
        for message in store.transactions.given_up():
            if is_all or message.msg_id in wanted:
                known.add(message.msg_id)
                if store.transactions.resume(message):
                    resumed.append(message.msg_id)
    if wanted - known:
        raise UsageError(f"no transaction {min(wanted - known)!r} is open or was given up in {root}")
    if as_json:
        write_json({"resumed": resumed})
        return
    for transaction_id in resumed:
        click.echo(printable(f"{transaction_id}: producers are asked again"))
    for transaction_id in sorted(wanted.difference(resumed)):
        click.echo(printable(f"{transaction_id}: nothing to resume, its producers are asked already"))
    if not (wanted or resumed):
        click.echo("nothing to resume")


def _row(store: Store, half: PendingHalf, now_ms: int) -> dict[str, Any]:
    return {
        "state": OURS if half.is_ours else BROKERS, "group": half.group, "topic": half.topic, "queueId": half.queue_id,
        "ageMs": max(now_ms - half.born_ms, 0), "checkTimes": half.check_times, "transactionId": half.transaction_id,
    }  # fmt: skip


def _explained(store: Store, transaction_id: str) -> list[str]:
    for half in store.transactions.pending():
        if half.transaction_id == transaction_id:
            return explain_pending(half, store.clock())
    for message in _left_alone(store):
        if message.msg_id == transaction_id:
            return explain_given_up(message)
    return explain_ended(store, transaction_id)


def _left_alone(store: Store) -> Iterator[StoredMessage]:
    """The messages of transactions that were given up, without those that were resumed since."""
    return (message for message in store.transactions.given_up() if not _was_resumed(store, message))


def _was_resumed(store: Store, message: StoredMessage) -> bool:
    """True if the half message was stored again behind its message that was given up. A store without a complete index
    cannot tell: False, and `resume` leaves it out all the same.
    """
    from rmq_store.format.text.names import HALF_TOPIC

    try:
        halves = store.query.by_unique_key(HALF_TOPIC, message.msg_id, begin_ms=0)
    except (UsageError, CorruptIndexError):
        return False
    return any(
        half.commit_log_offset > message.commit_log_offset and half.born_timestamp_ms == message.born_timestamp_ms
        for half in halves
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
