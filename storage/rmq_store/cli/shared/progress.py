"""The progress bar of a long command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

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


class Behind(Protocol):
    """How far a copy of something that grows has come (`rmq_store.replica.follow.Progress`)."""

    @property
    def messages(self) -> int:
        """How many were copied."""

    @property
    def received_bytes(self) -> int:
        """How many came."""

    @property
    def behind_bytes(self) -> int:
        """How many are not copied yet."""

    @property
    def behind_messages(self) -> int | None:
        """About how many messages these are; None: that is not known."""

    @property
    def behind_ms(self) -> int:
        """The age of the newest message that was copied, while there are more."""

    @property
    def is_connected(self) -> bool:
        """Whether more can come."""


@contextmanager
def behind_bar() -> Iterator[Callable[[Behind], None] | None]:
    """A line for work that never ends: messages and bytes so far, and how far it is behind, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[messages]} messages, {task.fields[size]} bytes"),
        TextColumn("{task.fields[behind]}"),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    with bar:
        task = bar.add_task("follow", total=None, messages=0, size=0, behind="connecting")

        def tell(known: Behind) -> None:
            messages = "" if known.behind_messages is None else f"about {known.behind_messages} messages, "
            behind = f"behind by {known.behind_bytes} bytes, {messages}{known.behind_ms / 1000:.1f} s"
            bar.update(
                task, messages=known.messages, size=known.received_bytes,
                behind=behind if known.is_connected else f"not connected, {behind}",
            )  # fmt: skip

        yield tell
