"""What the commands share: common options, tables for people and for pipes, JSON, text that is safe for a terminal."""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rmq_store import Store

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Sequence[str | int]

# Bytes of a file name that are no UTF-8, as Python has them in a text: nothing can encode them.
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")

# What is left of a column that is cut.
_CUT_LEAST = 8


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


def store_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument PATH, and --store, which means the same; the command gets `root: Path`."""

    @functools.wraps(command)
    def with_root(path: Path | None, also_path: Path | None, **given: Any) -> None:
        root = also_path or path
        if root is None:
            raise click.MissingParameter(param_hint="'PATH' (env var: 'RMQ_STORE')", param_type="argument")
        command(root=root, **given)

    kind = click.Path(exists=True, file_okay=False, path_type=Path)
    option = click.option("--store", "also_path", metavar="PATH", type=kind, help="The same as PATH.")
    return click.argument("path", metavar="PATH", required=False, envvar="RMQ_STORE", type=kind)(option(with_root))


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
    text = json.dumps(value, ensure_ascii=False, indent=None if one_line else 2)
    click.echo(_LONE_SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def write_table(
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    flexible: Collection[str] = (),
    header: bool = True,
    least: Sequence[int] = (),
) -> None:
    """Print rows under their columns, two spaces apart; integers (and `-`, for none) are aligned to the right.

    On a terminal the `flexible` columns are cut to fit its width, never to nothing; all others are whole, and make long
    lines if there is no room. In a pipe nothing is cut, and the only lines are the header and one per row. `least`:
    widths of the first columns (`widths_of`), so that a table that is written in parts is one.
    """
    is_number = [
        bool(rows) and all(isinstance(row[i], int) or row[i] == "-" for row in rows) for i in range(len(columns))
    ]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    cut = [name in flexible for name in columns]
    lines = table_lines(columns, rows, cut, is_number, room, header=header, least=least)
    for number, line in enumerate(lines):
        click.echo(click.style(line, bold=True) if header and number == 0 else line)


def table_lines(
    columns: Sequence[str],
    rows: Sequence[Row],
    flexible: Sequence[bool],
    right: Sequence[bool],
    room: int | None,
    *,
    header: bool = True,
    least: Sequence[int] = (),
) -> list[str]:
    """The header, if it is wanted, and a line per row; flexible columns cut to fit `room` places, if it is given."""
    cells = [list(columns)] if header else []
    cells += [[printable(str(value)) for value in row] for row in rows]
    widths = [max(pair) for pair in zip_longest(widths_of(cells) or [0] * len(columns), least, fillvalue=0)]
    if room is not None:
        widths = _fitted(widths, flexible, room)
    return ["  ".join(map(_padded, line, widths, right)).rstrip() for line in cells]


def widths_of(rows: Sequence[Row]) -> list[int]:
    """How many places each column takes."""
    from rich.cells import cell_len  # CJK takes two places

    return [max(cell_len(printable(str(cell))) for cell in column) for column in zip(*rows, strict=True)]


def _fitted(widths: Sequence[int], flexible: Sequence[bool], room: int) -> list[int]:
    """`widths` of columns two places apart, the flexible ones cut until all fit into `room`: the widest first, none to
    less than eight places.
    """
    found = [min(width, max(room, _CUT_LEAST)) if cut else width for width, cut in zip(widths, flexible, strict=True)]
    for _ in range(sum(found) + 2 * (len(found) - 1) - room):
        wide = [i for i, width in enumerate(found) if flexible[i] and width > _CUT_LEAST]
        if not wide:
            break
        found[max(wide, key=lambda i: found[i])] -= 1
    return found


def _padded(text: str, width: int, right: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    space = " " * (width - cell_len(text))
    return space + text if right else text + space
