"""`rmq read`: print messages of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.message_text import body_line, body_option, columns_of, json_row
from rmq_store.cli.shared.output import printable, queue_text, tell, time_text, wide_option, write_json, write_table
from rmq_store.cli.shared.tables import widths_of
from rmq_store.cli.shared.targets import EARLIEST, parse_start, start_option
from rmq_store.cli.target.command import by_target, target_command

if TYPE_CHECKING:
    from rmq_store.cli.target.view import QueueName, Target

_TITLES = ("QUEUE", "OFFSET", "STORED", "TAGS", "KEYS", "BODY")  # of LINE_COLUMNS
# Lines whose widths are found together; those that come later keep to them.
_TOGETHER, _TOGETHER_CHARACTERS = 1000, 1 << 20


@target_command(
    short_help="Print messages of a topic.",
    epilog="\b\nExample:\n  rmq read OrderTopic --queue 0 --from 100 --max 5 --store /data/rocketmq/store",
    cluster_epilog="\b\nExample:\n  rmq -n ns1:9876 read OrderTopic --queue broker-a:0 --from 100 --max 5",
)
@wide_option
@click.argument("topic", type=TOPIC)
@by_target(
    click.option("--queue", type=click.IntRange(min=0),
                 help="Only this queue; by default all queues, one after the other."),
    click.option("--queue", metavar="BROKER:ID",
                 help="Only this queue, as broker-a:0; by default all queues, one after the other. A plain number, if "
                      "one broker has this queue."),
)  # fmt: skip
@start_option
@click.option(
    "--max", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of messages."
)
@body_option
def read(
    target: Target, as_json: bool, topic: str, queue: QueueName | None, start: str | None, limit: int, body: str
) -> None:
    """Print messages of a topic, each queue in the order of its offsets[cluster: , one queue after the other].

    No message is consumed: no group's offset moves[cluster: , and no group is made]. With --json every message is one
    line, with all columns of the data source. Bodies are decompressed. In a body that is not UTF-8 the invalid bytes
    are escaped; use --body hex for the exact bytes. [cluster: A slave is read while its master does not answer.]
    """
    with target.view(tell) as view:
        beginning = parse_start(start or EARLIEST, view.now_ms())
        rows = view.messages(topic, queue, beginning, limit, columns_of(view.line_columns, as_json=as_json, body=body))
        write_rows(rows, as_json=as_json, body=body)
    view.failures.report()


def write_rows(rows: Iterable[dict[str, Any]], *, as_json: bool, body: str) -> None:
    """Print rows of `rows_of` as a table, or a JSON document each; of a cluster, if they have the column brokerName."""
    if as_json:
        for row in rows:
            write_json(json_row(row, body), one_line=True)
        return
    titles, widths = _TITLES if body != "none" else _TITLES[:-1], None
    for cells in _together(_cells(row, body) for row in rows):
        write_table(titles, cells, flexible=("TAGS", "KEYS"), cut=("BODY",), header=widths is None,
                    least=widths or ())  # fmt: skip
        widths = widths or widths_of([titles, *([str(cell) for cell in row] for row in cells)])[:-1]


def _cells(row: dict[str, Any], body: str) -> list[str | int]:
    tags, keys = (printable(row[name] or "") for name in ("tags", "keys"))
    shown = [queue_text(row), row["queueOffset"], time_text(row["storeTimestamp"]), tags, keys]
    return shown if body == "none" else [*shown, body_line(row["body"], body)]


def _together(lines: Iterable[list[str | int]]) -> Iterator[list[list[str | int]]]:
    """Join lines into parts, each of which takes little memory."""
    part: list[list[str | int]] = []
    characters = 0
    for line in lines:
        part.append(line)
        characters += sum(len(cell) for cell in line if isinstance(cell, str))
        if len(part) == _TOGETHER or characters > _TOGETHER_CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part
