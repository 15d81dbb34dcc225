"""`rmq dlq list` and `rmq dlq show`: which messages are dead, since when, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    import pyarrow as pa

    from rmq_store import Store
    from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows, Wanted

TOP_REASONS = 3
NO_REASON = "(unknown)"
_REDRIVEN = {True: "yes", False: "no", None: "-"}


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
    write_groups([entry for entry in found if entry["deadLetters"] or groups], as_json=as_json)


def write_groups(shown: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the summaries of groups, as `Tally.summary` gives them."""
    if as_json:
        write_json(list(shown))
        return
    rows = [
        (
            entry["group"], entry["deadLetters"], _or_dash(entry["redriven"]), _or_dash(entry["archived"]),
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


class Tally:
    """Times, reasons and topics of the dead letters of a group. `tell` gets the rows and bytes that were looked at."""

    COLUMNS = ("storeTimestamp", "errorClass", "originTopic")

    def __init__(self, tell: Callable[[int, int], None] | None) -> None:
        self._tell = tell
        self._reasons: Counter[str] = Counter()
        self._topics: Counter[str] = Counter()
        self._oldest_us: int | None = None
        self._newest_us: int | None = None
        self._done = self._size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch that has COLUMNS, and at least one row."""
        import pyarrow.compute as pc

        times = pc.min_max(batch.column("storeTimestamp").cast("int64")).as_py()
        self._oldest_us = times["min"] if self._oldest_us is None else min(self._oldest_us, times["min"])
        self._newest_us = times["max"] if self._newest_us is None else max(self._newest_us, times["max"])
        for column, counter in (("errorClass", self._reasons), ("originTopic", self._topics)):
            for entry in batch.column(column).value_counts().to_pylist():
                counter[entry["values"] or NO_REASON] += entry["counts"]
        self._done += batch.num_rows
        self._size_bytes += batch.nbytes
        if self._tell is not None:
            self._tell(self._done, self._size_bytes)

    def summary(self, group: str, count: int, redriven: int | None, archived: int | None) -> dict[str, Any]:
        """The entry of a group; None: not known."""
        return {
            "group": group,
            "deadLetters": count,
            "redriven": redriven,
            "archived": archived,
            "oldest": None if self._oldest_us is None else time_text(self._oldest_us),
            "newest": None if self._newest_us is None else time_text(self._newest_us),
            "reasons": dict(self._reasons.most_common(TOP_REASONS)),
            "topics": dict(self._topics.most_common()),
        }


def _summary(store: Store, group: str, tell: Callable[[int, int], None] | None) -> dict[str, Any]:
    rows = _rows(store, group)
    tally = Tally(tell)
    if rows is None:
        return tally.summary(group, 0, 0, None)
    for batch in rows.batches(Tally.COLUMNS):
        tally.add(batch)
    return tally.summary(group, rows.count(), rows.redriven_count(), _archived(store, rows))


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
    write_letters(found, body, as_json=as_json)


def write_letters(
    found: Sequence[dict[str, Any]], body: str, *, as_json: bool, of_cluster: bool = False
) -> None:
    """Print dead letters, rows of DEAD_LETTER_SCHEMA. `of_cluster`: a queue has its broker in front."""
    if as_json:
        for row in found:
            write_json(json_row(row, body), one_line=True)
        return
    titles = ["QUEUE", "OFFSET", "DIED", "ORIGIN", "TRIES", "REDRIVEN", "REASON"]
    if body != "none":
        titles.append("BODY")
    cells = [_cells(row, body, of_cluster=of_cluster) for row in found]
    write_table(titles, cells, flexible=("ORIGIN", "REASON"), cut=("BODY",))


def _cells(row: dict[str, Any], body: str, *, of_cluster: bool) -> tuple[str | int, ...]:
    origin = [row["originTopic"], row["originQueueId"], row["originQueueOffset"]]
    reason = ": ".join(text for text in (row["errorClass"], row["errorMessage"]) if text)
    cells = (
        f"{row['brokerName']}:{row['queueId']}" if of_cluster else row["queueId"], row["queueOffset"],
        time_text(row["storeTimestamp"]),
        ":".join(str(part) for part in origin if part is not None) or "-", row["reconsumeTimes"],
        _REDRIVEN[row["redriven"]], reason or NO_REASON,
    )  # fmt: skip
    return cells if body == "none" else (*cells, body_line(row["body"], body))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value
