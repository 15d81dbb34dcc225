"""`rmq delayed`: messages that a broker delays, other than by delay levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rmq_store.cli.shared.formatting import duration_text
from rmq_store.cli.shared.output import (
    common_options,
    lmq_option,
    open_store,
    time_text,
    wide_option,
    write_json,
    write_table,
)


@click.command(
    short_help="Timers of a broker's timer wheel, and half messages.",
    epilog="\b\nExample:\n  rmq delayed --store /data/rocketmq/store",
)
@common_options
@lmq_option
@wide_option
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="Maximum number of messages to show.")
def delayed(root: Path, as_json: bool, limit: int | None) -> None:
    """Messages that a broker left: timers of its timer wheel, which only a broker delivers, and half messages.

    TOPIC and QUEUE are the target of the message. DUE is the delivery time of a timer; a half message has none, because
    it waits for the decision of its producer group. AGE is the time since each was stored. Messages that wait for a
    delay level, or for a delivery time in a store of this project, are counted by `rmq lag` and `rmq groups`.
    """
    found: list[dict[str, Any]] = []
    with open_store(root) as store:
        now_ms = store.clock()
        for batch in store.broker_backlog():
            found += batch.slice(0, None if limit is None else limit - len(found)).to_pylist()
            if limit is not None and len(found) >= limit:
                break
    rows = [_json(row, now_ms) for row in found]
    if as_json:
        write_json(rows)
        return
    shown = [
        (
            row["kind"], row["topic"], _or_dash(row["queueId"]), _due(row["dueTimestamp"]), duration_text(row["ageMs"]),
            row["msgId"], row["keys"] or "-", row["producerGroup"] or "-",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("KIND", "TOPIC", "QUEUE", "DUE", "AGE", "MSG ID", "KEYS", "GROUP")
    write_table(columns, shown, flexible=("TOPIC", "KEYS", "GROUP"))


def _json(row: dict[str, Any], now_ms: int) -> dict[str, Any]:
    stored_ms = int(row["storeTimestamp"].timestamp() * 1000)
    due = row["dueTimestamp"]
    return {
        **row, "storeTimestamp": stored_ms, "dueTimestamp": None if due is None else int(due.timestamp() * 1000),
        "ageMs": max(now_ms - stored_ms, 0),
    }  # fmt: skip


def _due(due_ms: int | None) -> str:
    return "-" if due_ms is None else time_text(due_ms * 1000)


def _or_dash(value: int | None) -> int | str:
    return "-" if value is None else value
