"""How the demo prints: paragraphs, the source of its functions, tables, and what the command says."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

console = Console(highlight=False)


def heading(text: str) -> None:
    """Print the heading of a step."""
    console.print()
    console.rule(f"[bold]{text}", align="left")


def say(text: str) -> None:
    """Print a paragraph."""
    console.print(text, markup=False, width=min(100, console.width))


def show(function: Callable[..., Any]) -> None:
    """Print the source of the function that runs next."""
    source = inspect.getsource(function).replace("  # fmt: skip", "").rstrip()
    console.print(Padding(Syntax(source, "python", background_color="default", word_wrap=True), (1, 0, 1, 2)))


def print_rows(frame: DataFrame, limit: int = 20) -> None:
    """Print the first rows as a table; long values are cut."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name, kind in frame.dtypes:
        is_number = kind in ("int", "bigint", "double")
        # Rich narrows only columns that may wrap: here the last one. Its text is cut, not wrapped.
        table.add_column(name, justify="right" if is_number else "left", no_wrap=name != frame.columns[-1])
    for row in frame.limit(limit).collect():
        table.add_row(*(_cell(value) for value in row))
    console.print(Padding(table, (0, 0, 1, 2)))


def _cell(value: object) -> Text:
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, datetime):
        value = f"{value:%H:%M:%S}"
    text = "" if value is None else f"{value:,.2f}" if isinstance(value, float) else str(value)
    return Text(text, no_wrap=True, overflow="ellipsis")


def rmq(work: Path, *arguments: str) -> None:
    """Run the `rmq` command of this environment in `work`, and print its output."""
    run = [sys.executable, "-c", "from rmq_store.cli import main; main()", *arguments]
    output = subprocess.run(run, check=True, capture_output=True, text=True, cwd=work).stdout
    console.print(Padding(Text(f"$ rmq {' '.join(arguments)}", style="bold"), (1, 0, 0, 2)))
    console.print(Padding(Text(output.rstrip()), (0, 0, 1, 2)))
