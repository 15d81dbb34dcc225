"""Messages as text that is safe for a terminal: one line each, or one JSON document each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.shared.output import printable, queue_text, terminal_columns, time_text
from rmq_store.cli.shared.tables import cut

if TYPE_CHECKING:
    import pyarrow as pa

Command = TypeVar("Command", bound=Callable[..., Any])

LINE_COLUMNS = ("queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body")
"""Columns of MESSAGE_SCHEMA that `message_line` shows."""

_BODY_LEAST = 40


def body_option(command: Command) -> Command:
    """Add --body; the command gets `body: str`."""
    return click.option(
        "--body",
        type=click.Choice(["text", "hex", "json", "none"]),
        default="text",
        show_default=True,
        help="How to show bodies. json: in one line, and with --json as a value; a body that is no JSON is "
        "shown as text.",
    )(command)


def columns_of(lines: Sequence[str], *, as_json: bool, body: str) -> list[str]:
    """The columns to read for the output: `lines` for `message_line`, or all for JSON."""
    from rmq_store.format.tables.schema import MESSAGE_SCHEMA

    return [name for name in (MESSAGE_SCHEMA.names if as_json else lines) if body != "none" or name != "body"]


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts of plain values; times in microseconds, properties as a dict."""
    import pyarrow as pa

    columns = {
        name: (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    if "properties" in columns:
        columns["properties"] = [dict(pairs or ()) for pairs in columns["properties"]]
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def body_value(raw: bytes | None, how: str) -> Any:
    """A body as --body asks for it: text, or for `json` the JSON value in it."""
    raw = raw or b""
    if how == "hex":
        return raw.hex()
    if how == "json":
        try:
            return json.loads(raw, parse_constant=_refuse)
        except (ValueError, RecursionError):
            pass  # shown as text
    return raw.decode("utf-8", "backslashreplace")


def json_row(row: Mapping[str, Any], how: str) -> dict[str, Any]:
    """A row of `rows_of` for `write_json`."""
    shown = dict(row)
    for name in row:
        if name.endswith(("Timestamp", "Time")):
            shown[name] = None if row[name] is None else time_text(row[name])
    if how == "none":
        shown.pop("body", None)
    elif "body" in shown:
        shown["body"] = body_value(row["body"], how)
    return shown


def body_line(raw: bytes | None, how: str) -> str:
    """A body in one line without control characters."""
    value = body_value(raw, how)
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def message_line(row: Mapping[str, Any], how: str) -> str:
    """`time  queue:offset  tags  keys  body`, two spaces apart, `-` for none. On a terminal it is coloured, and the
    body is cut to the room, but not below _BODY_LEAST columns; with --wide it is never cut.
    """
    place = f"{queue_text(row)}:{row['queueOffset']}"
    cells = [
        click.style(time_text(row["storeTimestamp"]), dim=True),
        click.style(place, fg="cyan"),
        click.style(printable(row["tags"] or "-"), fg="green"),
        printable(row["keys"] or "-"),
    ]
    if how != "none":
        body = body_line(row["body"], how)
        if (columns := terminal_columns()) is not None:
            body = cut(body, max(columns - len(click.unstyle("  ".join([*cells, ""]))), _BODY_LEAST))
        cells.append(body)
    return "  ".join(cells)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
