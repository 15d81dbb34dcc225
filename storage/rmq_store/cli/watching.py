"""Screens that are drawn again every few seconds, until q or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rmq_store.cli.output import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_QUIT = (b"q", b"Q", b"\x03", b"\x04")


def watch(frame: Callable[[], RenderableType], every_s: float) -> None:
    """Draw what `frame` returns on a screen of its own, which is gone afterwards."""
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


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | int]], *, left: int = 1) -> Table:
    """A table whose first `left` columns are texts; the others are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        made.add_column(name, justify="left" if number < left else "right", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(printable(str(cell)), overflow="ellipsis") for cell in row))
    return made


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Waits so many seconds, and says whether somebody pressed a key that ends it. Keys are not echoed meanwhile."""
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
