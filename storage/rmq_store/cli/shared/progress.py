"""The progress bar of a long command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int, int, int], None]
"""(messages so far, bytes so far, bytes in all)"""


@contextmanager
def progress_bar(name: str) -> Iterator[Tell | None]:
    """A bar with messages, bytes and the remaining time on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        BarColumn(),
        TextColumn("{task.fields[messages]} messages"),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    with bar:
        task = bar.add_task(name, total=None, messages=0)
        yield lambda messages, done, total: bar.update(task, completed=done, total=total, messages=messages)


@contextmanager
def counting_bar(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for work whose end is unknown: messages, bytes, and the time so far."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        BarColumn(),
        TextColumn("{task.fields[messages]} messages, {task.fields[size]} bytes"),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    with bar:
        task = bar.add_task(name, total=None, messages=0, size=0)
        yield lambda messages, size: bar.update(task, messages=messages, size=size)
