"""What the commands share: common options, tables for people and for pipes, JSON, text that is safe for a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rmq_store import Store

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Sequence[str | int]


def common_options(command: Command) -> Command:
    """Add --store and --json, which every command has; the command gets `root: Path` and `as_json: bool`."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)
    return click.option(
        "--store",
        "root",
        required=True,
        metavar="PATH",
        envvar="RMQ_STORE",
        show_envvar=True,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Directory of the store: the one that holds commitlog/.",
    )(command)


def open_store(root: Path) -> Store:
    """Open for reading only: changes nothing on disk, and works beside a running broker and on a read-only copy."""
    from rmq_store import Store  # imports numpy and pyarrow: too slow for --help and completion

    return Store.open(root, read_only=True)


def printable(text: str) -> str:
    """`text` with everything escaped that could break a line, move a cursor or change a colour."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def time_text(time_us: int | None) -> str:
    """Microseconds since the epoch as `2026-11-21T00:21:54.856Z`; as plain milliseconds if no calendar has it."""
    if time_us is None:
        return ""
    try:
        moment = datetime.fromtimestamp(time_us // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_us // 1000)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_us // 1000 % 1000:03d}Z"


def write_json(value: object, *, one_line: bool = False) -> None:
    """Print a JSON document; in one line if it is one of a stream."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=None if one_line else 2))


def write_table(
    columns: Sequence[str], rows: Sequence[Row], *, flexible: Collection[str] = (), header: bool = True
) -> None:
    """Print rows under their columns; integers (and `-`, for none) are aligned to the right.

    On a terminal the `flexible` columns are cut to fit its width. In a pipe nothing is cut: columns are two spaces
    apart, and the only lines are the header and one per row.
    """
    cells = [[printable(str(value)) for value in row] for row in rows]
    is_number = [
        bool(rows) and all(isinstance(row[i], int) or row[i] == "-" for row in rows) for i in range(len(columns))
    ]
    if sys.stdout.isatty():
        _write_fitted(columns, cells, is_number, flexible, header)
        return
    from rich.cells import cell_len  # CJK takes two places

    lines = [list(columns), *cells] if header else cells
    widths = [max((cell_len(line[i]) for line in lines), default=0) for i in range(len(columns))]
    for line in lines:
        spaces = [" " * (width - cell_len(text)) for width, text in zip(widths, line, strict=True)]
        parts = [
            space + text if right else text + space for text, space, right in zip(line, spaces, is_number, strict=True)
        ]
        click.echo("  ".join(parts).rstrip())


def _write_fitted(
    columns: Sequence[str], cells: list[list[str]], is_number: list[bool], flexible: Collection[str], header: bool
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=header, header_style="bold")
    for name, right in zip(columns, is_number, strict=True):
        # Rich narrows only columns that may wrap; the text itself says that it would rather be cut.
        table.add_column(name, justify="right" if right else "left", no_wrap=name not in flexible)
    for line in cells:
        table.add_row(*(Text(text, no_wrap=True, overflow="ellipsis") for text in line))
    Console(file=sys.stdout, markup=False, highlight=False, emoji=False).print(table)
