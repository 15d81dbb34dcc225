"""`rmq dlq list` and `rmq dlq show`: which messages are dead, since when, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.completion import DEAD_GROUP
from rmq_store.cli.shared.message_text import body_line, body_option, json_row, rows_of
from rmq_store.cli.shared.name_lookup import known_groups
from rmq_store.cli.shared.output import common_options, open_store, time_text, wide_option, write_json, write_table
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.shared.times import parse_time

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows, Wanted

TOP_REASONS = 3
NO_REASON = "(unknown)"


@click.command(
    "list",
    short_help="Groups with dead letters: number, times, reasons.",
    epilog="\b\nExample:\n  rmq dlq list --store /data/rocketmq/store",
)
@common_options
@wide_option
@click.argument("groups", type=DEAD_GROUP, metavar="[GROUP]...", nargs=-1)
def list_(root: Path, as_json: bool, groups: tuple[str, ...]) -> None:
    """Groups with dead letters: their number, times, reasons and topics.

    REDRIVEN counts dead letters that were sent back to the group; they also stay here, and are part of COUNT. ARCHIVED
    counts those that are also in the directory that dlqArchivePath names. REASONS are the most frequent error classes;
    (unknown) if the consumer recorded none, as RocketMQ's own do. TOPICS are the original topics.
    """
    from rmq_store.format.text.names import DLQ_PREFIX

    with open_store(root) as store, counting_bar("dlq list") as tell:
        names = groups or sorted(
            name.removeprefix(DLQ_PREFIX) for name in store.topics() if name.startswith(DLQ_PREFIX)
        )
        found = [_summary(store, name, tell) for name in names]
    shown = [entry for entry in found if entry["deadLetters"] or groups]
    if as_json:
        write_json(shown)
        return
    rows = [
        (
            entry["group"], entry["deadLetters"], entry["redriven"], _or_dash(entry["archived"]),
            _or_dash(entry["oldest"]), _or_dash(entry["newest"]), _counted(entry["reasons"]), _counted(entry["topics"]),
        )
        for entry in shown
    ]  # fmt: skip
    columns = ("GROUP", "COUNT", "REDRIVEN", "ARCHIVED", "OLDEST", "NEWEST", "REASONS", "TOPICS")
    write_table(columns, rows, flexible=("GROUP", "REASONS", "TOPICS"))


def _rows(store: Store, group: str, wanted: Wanted | None = None) -> DeadLetterRows | None:
    """A group's dead letters; None if none of its messages ever died. UsageError: an unknown group."""
    from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows
    from rmq_store.format.text.names import DLQ_PREFIX

    if store.find_topic(DLQ_PREFIX + group) is None and group in known_groups(store):
        return None
    return DeadLetterRows(store, group, wanted)


def _summary(store: Store, group: str, tell: Any) -> dict[str, Any]:
    import pyarrow.compute as pc

    rows = _rows(store, group)
    reasons: Counter[str] = Counter()
    topics: Counter[str] = Counter()
    oldest = newest = None
    done = size_bytes = 0
    for batch in rows.batches(("storeTimestamp", "errorClass", "originTopic")) if rows else ():
        times = pc.min_max(batch.column("storeTimestamp").cast("int64")).as_py()
        oldest = times["min"] if oldest is None else min(oldest, times["min"])
        newest = times["max"] if newest is None else max(newest, times["max"])
        for column, counter in (("errorClass", reasons), ("originTopic", topics)):
            for entry in batch.column(column).value_counts().to_pylist():
                counter[entry["values"] or NO_REASON] += entry["counts"]
        done += batch.num_rows
        size_bytes += batch.nbytes
        if tell is not None:
            tell(done, size_bytes)
    return {
        "group": group,
        "deadLetters": rows.count() if rows else 0,
        "redriven": rows.redriven_count() if rows else 0,
        "archived": _archived(store, rows) if rows else None,
        "oldest": None if oldest is None else time_text(oldest),
        "newest": None if newest is None else time_text(newest),
        "reasons": dict(reasons.most_common(TOP_REASONS)),
        "topics": dict(topics.most_common()),
    }


def _archived(store: Store, rows: DeadLetterRows) -> int | None:
    """The number of dead letters in the archive of retention; None if there is no archive."""
    from rmq_store.broker.dlq.archive_files import ArchiveFiles

    path = store.retention.settings().dlq_archive_path
    if not path:
        return None
    ranges = rows.ranges()
    return sum(
        max(0, min(file.end, ranges[file.queue_id].max_offset) - max(file.start, ranges[file.queue_id].min_offset))
        for file in ArchiveFiles(Path(path)).of(rows.group)
        if file.queue_id in ranges
    )


@click.command(
    short_help="Dead letters of a group, the newest first.",
    epilog="\b\nExample:\n  rmq dlq show cg_orders --reason ValueError --since 2h --store /data/rocketmq/store",
)
@common_options
@wide_option
@click.argument("group", type=DEAD_GROUP)
@click.option(
    "--max", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number to show."
)
@click.option(
    "--reason", help="Only dead letters of this error class, with or without its module, or of this stack hash."
)
@click.option("--since", metavar="TIME", help="Only dead letters of this time or later, or of the last 10m, 2h, 1d.")
@body_option
def show(root: Path, as_json: bool, group: str, limit: int, reason: str | None, since: str | None, body: str) -> None:
    """Dead letters of a group, the newest first: origin, number of tries, time of death, and reason.

    ORIGIN is topic, queue and offset of the first copy, as far as it is known. QUEUE and OFFSET are the position in the
    dead-letter topic. With --json every dead letter is a line, with all columns.
    """
    from rmq_store.broker.dlq.archive_schema import DEAD_LETTER_SCHEMA
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted

    columns = [name for name in DEAD_LETTER_SCHEMA.names if body != "none" or name != "body"]
    with open_store(root) as store:
        since_ms = None if since is None else parse_time(since, store.clock())
        rows = _rows(store, group, Wanted(since_ms=since_ms, reason=reason))
        found = [row for batch in rows.newest(limit, columns) for row in rows_of(batch)] if rows else []
    if as_json:
        for row in found:
            write_json(json_row(row, body), one_line=True)
        return
    titles = ["QUEUE", "OFFSET", "DIED", "ORIGIN", "TRIES", "REDRIVEN", "REASON"]
    if body != "none":
        titles.append("BODY")
    write_table(titles, [_cells(row, body) for row in found], flexible=("ORIGIN", "REASON"), cut=("BODY",))


def _cells(row: dict[str, Any], body: str) -> tuple[str | int, ...]:
    origin = [row["originTopic"], row["originQueueId"], row["originQueueOffset"]]
    reason = ": ".join(text for text in (row["errorClass"], row["errorMessage"]) if text)
    cells = (
        row["queueId"], row["queueOffset"], time_text(row["storeTimestamp"]),
        ":".join(str(part) for part in origin if part is not None) or "-", row["reconsumeTimes"],
        "yes" if row["redriven"] else "no", reason or NO_REASON,
    )  # fmt: skip
    return cells if body == "none" else (*cells, body_line(row["body"], body))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value
