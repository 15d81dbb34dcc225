"""`rmq read`: print messages of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.output import common_options, open_store, time_text, write_json, write_table
from rmq_store.errors import OffsetOutOfRangeError, UsageError

if TYPE_CHECKING:
    from rmq_store import Store

_TIMES = ("bornTimestamp", "storeTimestamp")
_TABLE = ("queueId", "queueOffset", "storeTimestamp", "tags", "keys")


@click.command(
    short_help="Print messages of a topic.",
    epilog="\b\nExample:\n  rmq read OrderTopic --queue 0 --from 100 --max 5 --store /data/rocketmq/store",
)
@common_options
@click.argument("topic")
@click.option(
    "--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue; by default one after the other."
)
@click.option("--from", "start", type=click.IntRange(min=0), help="First queue offset; by default the oldest there is.")
@click.option("--max", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="Messages in all.")
@click.option(
    "--body",
    type=click.Choice(["text", "hex", "none"]),
    default="text",
    show_default=True,
    help="How to show bodies; compressed ones are decompressed first.",
)
def read(root: Path, as_json: bool, topic: str, queue_id: int | None, start: int | None, limit: int, body: str) -> None:
    """Print messages of a topic, each queue in the order of its offsets.

    Nothing is consumed: no group's offset moves. With --json every message is one line, with all columns of the data
    source; a body that is not UTF-8 has its odd bytes escaped, use --body hex for the exact ones.
    """
    from rmq_store.format.schema import MESSAGE_SCHEMA

    names = [name for name in (MESSAGE_SCHEMA.names if as_json else _TABLE) if name != "body"]
    columns = names if body == "none" else [*names, "body"]
    header = True
    with open_store(root) as store:
        for batch in _batches(store, topic, queue_id, start, limit, columns):
            rows = [_plain(row, body) for row in batch]
            if as_json:
                for row in rows:
                    write_json(row, one_line=True)
            else:
                cells = [["" if row[name] is None else row[name] for name in columns] for row in rows]
                titles = ("QUEUE", "OFFSET", "STORED", "TAGS", "KEYS", "BODY")[: len(columns)]
                write_table(titles, cells, flexible=("KEYS", "BODY"), header=header)
                header = False


def _batches(
    store: Store, topic: str, queue_id: int | None, start: int | None, limit: int, columns: list[str]
) -> Iterator[list[dict[str, Any]]]:
    """The wanted messages, a batch at a time, as dicts of plain values; times in microseconds."""
    import pyarrow as pa

    ranges = store.queue_ranges(topic)
    if queue_id is not None and queue_id not in ranges:
        raise UsageError(f"topic {topic} has no queue {queue_id}; it has {len(ranges)} queues")
    for queue, present in sorted(ranges.items()) if queue_id is None else [(queue_id, ranges[queue_id])]:
        first = present.min_offset if start is None else start
        if queue_id is None:  # --from for several queues: what each of them has from there on
            first = min(max(first, present.min_offset), present.max_offset)
        elif not present.min_offset <= first <= present.max_offset:
            message = f"offset {first} is not in queue {queue} of {topic}: {present.min_offset} to {present.max_offset}"
            raise OffsetOutOfRangeError(message, first, present.min_offset, present.max_offset)
        last = min(first + limit, present.max_offset)
        for batch in store.read(topic, queue, first, last, columns=columns) if first < last else ():
            values = {name: batch.column(name) for name in columns}
            values.update({name: values[name].cast(pa.int64()) for name in _TIMES if name in values})
            yield [
                dict(zip(values, row, strict=True))
                for row in zip(*(v.to_pylist() for v in values.values()), strict=True)
            ]
            limit -= batch.num_rows


def _plain(row: dict[str, Any], body: str) -> dict[str, Any]:
    """The row as text, numbers and dicts."""
    shown = {**row, **{name: time_text(row[name]) for name in _TIMES if name in row}}
    if "properties" in shown:
        shown["properties"] = dict(shown["properties"] or ())
    if "body" in shown:
        raw = shown["body"] or b""
        shown["body"] = raw.hex() if body == "hex" else raw.decode("utf-8", "backslashreplace")
    return shown
