"""`rmq dlq list` and `rmq dlq show`: which messages are dead, since when, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.completion import DEAD_GROUP
from rmq_store.cli.shared.message_text import body_line, body_option, json_row, rows_of
from rmq_store.cli.shared.output import tell as remark
from rmq_store.cli.shared.output import time_text, wide_option, write_json, write_table
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.shared.times import parse_time
from rmq_store.cli.target.command import target_command
from rmq_store.cli.target.rows import Total, away_json, queue_name

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.broker.monitoring.dead_letter_rows import Wanted
    from rmq_store.cli.target.view import DeadLetters, Progress, Target

TOP_REASONS = 3
NO_REASON = "(unknown)"
_REDRIVEN = {True: "yes", False: "no", None: "-"}


@target_command(
    "list",
    short_help="Groups with dead letters: number, times, reasons.",
    epilog="\b\nExample:\n  rmq dlq list --store /data/rocketmq/store",
)
@wide_option
@click.argument("groups", type=DEAD_GROUP, metavar="[GROUP]...", nargs=-1)
def list_(target: Target, as_json: bool, groups: tuple[str, ...]) -> None:
    """Groups with dead letters[cluster:  at any broker]: their number, times, reasons and topics.

    REDRIVEN counts dead letters that were sent back to the group[cluster: , by records at their brokers]; they also
    stay here, and are part of COUNT. ARCHIVED [store: counts those that are also in the directory that dlqArchivePath
    names.][cluster: is `-`: brokers have no archive.] REASONS are the most frequent error classes; (unknown) if the
    consumer recorded none, as RocketMQ's own do. TOPICS are the original topics. [cluster: All dead letters are read.
    COUNT is `?`, or 12+?, and null in JSON, if a broker that has some does not answer.]
    """
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted

    with target.view(remark) as view, counting_bar("dlq list") as tell:
        names = groups or view.dead_groups()
        found = [_summary(name, view.dead_letters_if_any(name, Wanted()), tell) for name in names]
    write_groups([entry for entry in found if entry["deadLetters"] != Total(0) or groups], as_json=as_json)
    view.failures.report()


def _summary(group: str, letters: DeadLetters | None, tell: Progress) -> dict[str, Any]:
    tally = _Tally(tell)
    if letters is None:
        return tally.summary(group, Total(0), 0, None)
    for batch in letters.batches(_Tally.COLUMNS):
        tally.add(batch)
    return tally.summary(group, letters.total(), letters.redriven_count(), letters.archived_count())


def write_groups(shown: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the summaries of groups, as `_Tally.summary` gives them."""
    if as_json:
        counts: list[Total] = [entry["deadLetters"] for entry in shown]
        parts = [{"deadLetters": count.exact, **away_json(count.away)} for count in counts]
        write_json([{**entry, **part} for entry, part in zip(shown, parts, strict=True)])
        return
    rows = [
        (
            entry["group"], entry["deadLetters"].cell, _or_dash(entry["redriven"]), _or_dash(entry["archived"]),
            _or_dash(entry["oldest"]), _or_dash(entry["newest"]), _counted(entry["reasons"]), _counted(entry["topics"]),
        )
        for entry in shown
    ]  # fmt: skip
    columns = ("GROUP", "COUNT", "REDRIVEN", "ARCHIVED", "OLDEST", "NEWEST", "REASONS", "TOPICS")
    write_table(columns, rows, flexible=("GROUP", "REASONS", "TOPICS"))


class _Tally:
    """Times, reasons and topics of the dead letters of a group. `tell` gets the rows and bytes that were looked at."""

    COLUMNS = ("storeTimestamp", "errorClass", "originTopic")

    def __init__(self, tell: Progress) -> None:
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

    def summary(self, group: str, count: Total, redriven: int | None, archived: int | None) -> dict[str, Any]:
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


@target_command(
    short_help="Dead letters of a group, the newest first.",
    epilog="\b\nExample:\n  rmq dlq show cg_orders --reason ValueError --since 2h --store /data/rocketmq/store",
)
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
def show(
    target: Target, as_json: bool, group: str, limit: int, reason: str | None, since: str | None, body: str
) -> None:
    """Dead letters of a group, the newest first: origin, number of tries, time of death, and reason.

    ORIGIN is topic, queue and offset of the first copy, as far as it is known. QUEUE and OFFSET are the position in the
    dead-letter topic. [cluster: The order is that of store times: brokers have clocks of their own.] With --json every
    dead letter is a line, with all columns.
    """
    from rmq_store.broker.dlq.archive_schema import DEAD_LETTER_SCHEMA

    columns = [name for name in DEAD_LETTER_SCHEMA.names if body != "none" or name != "body"]
    with target.view(remark) as view:
        letters = view.dead_letters_if_any(group, wanted_of(view.now_ms(), since=since, reason=reason))
        found = [row for batch in letters.newest(limit, columns) for row in rows_of(batch)] if letters else []
    _write_letters(found, body, as_json=as_json, names_brokers=view.names_brokers)
    view.failures.report()


def wanted_of(now_ms: int, *, since: str | None, reason: str | None, sql: str | None = None) -> Wanted:
    """The filter of --since, --reason and --filter. Raises UsageError."""
    from rmq_store.broker.filter.sql92 import compile_selector
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted

    since_ms = None if since is None else parse_time(since, now_ms)
    return Wanted(since_ms=since_ms, reason=reason, selector=compile_selector(sql) if sql else None)


def _write_letters(found: Sequence[dict[str, Any]], body: str, *, as_json: bool, names_brokers: bool) -> None:
    if as_json:
        for row in found:
            write_json(json_row(row, body), one_line=True)
        return
    titles = ["QUEUE", "OFFSET", "DIED", "ORIGIN", "TRIES", "REDRIVEN", "REASON"]
    if body != "none":
        titles.append("BODY")
    cells = [_cells(row, body, names_brokers=names_brokers) for row in found]
    write_table(titles, cells, flexible=("ORIGIN", "REASON"), cut=("BODY",))


def _cells(row: dict[str, Any], body: str, *, names_brokers: bool) -> tuple[str | int, ...]:
    origin = [row["originTopic"], row["originQueueId"], row["originQueueOffset"]]
    reason = ": ".join(text for text in (row["errorClass"], row["errorMessage"]) if text)
    broker_name = row["brokerName"] if names_brokers else None
    cells = (
        queue_name(broker_name, row["queueId"]), row["queueOffset"], time_text(row["storeTimestamp"]),
        ":".join(str(part) for part in origin if part is not None) or "-", row["reconsumeTimes"],
        _REDRIVEN[row["redriven"]], reason or NO_REASON,
    )  # fmt: skip
    return cells if body == "none" else (*cells, body_line(row["body"], body))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value
