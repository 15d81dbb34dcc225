"""Screens that are redrawn every few seconds, until q or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rmq_store.cli.shared.output import printable
from rmq_store.cli.shared.tables import Row, columns_of, table_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

_QUIT = (b"q", b"Q", b"\x03", b"\x04")


def watch(frame: Callable[[], RenderableType], every_s: float) -> None:
    """Draw the frames of `frame` on an alternate screen, which disappears afterwards."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    with (
        contextlib.suppress(KeyboardInterrupt),
        _keys() as quits,
        Live(frame(), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        live.refresh()
        while not quits(every_s):
            live.update(frame(), refresh=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Row], *, left: int = 1) -> RenderableType:
    """A table whose first `left` columns are texts; the others are aligned to the right. If there is no room, texts are
    wrapped first, and then lines are cut at the right edge.
    """
    from rich.console import Group
    from rich.text import Text

    known = columns_of(columns, wrap=columns[:left], right=[number >= left for number in range(len(columns))])
    cells = [[printable(str(value)) for value in row] for row in rows]
    head, *lines = table_lines(known, cells, shutil.get_terminal_size().columns, cropped=True)
    found = [Text(line, no_wrap=True, overflow="crop") for line in lines]
    return Group(*([Text(title)] if title else []), Text(head, "bold", no_wrap=True, overflow="crop"), *found)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Waits for some seconds; True if a key that ends the screen was pressed. Keys are not echoed."""
    number = sys.stdin.fileno()
    if not os.isatty(number):
        yield lambda wait_s: bool(select.select([], [], [], wait_s)[0])
        return
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield lambda wait_s: bool(select.select([number], [], [], wait_s)[0]) and os.read(number, 1) in _QUIT
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
