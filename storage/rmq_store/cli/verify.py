"""`rmq verify`: check a store against itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.output import common_options, printable, write_json
from rmq_store.errors import NotAStoreError

if TYPE_CHECKING:
    from rmq_store.verify import Report

Tell = Callable[[int, int, int], None]  # messages, bytes done, bytes in all


@click.command(
    short_help="Check log, queues and index against each other.",
    epilog="\b\nExample:\n  rmq verify --store /data/rocketmq/store",
)
@common_options
def verify(root: Path, as_json: bool) -> None:
    """Check log, queues and index against each other; nothing is changed.

    Reads every byte of the log and recomputes every checksum. The store is "clean", "unclean" (open now, or not closed:
    the next writer repairs what is listed), or "damaged" (exit code 1; each problem with file and byte offset).
    """
    from rmq_store.verify import verify_store

    if not (root / "commitlog").is_dir():
        raise NotAStoreError(str(root), "not a store: it has no commitlog directory")
    with _progress_bar() as progress:
        report = verify_store(root, progress)
    if as_json:
        write_json(report.to_dict())
    else:
        _write(report)
    if report.status == "damaged":
        sys.exit(1)


def _write(report: Report) -> None:
    def line(name: str, text: str) -> None:
        click.echo(f"{name:<9} {printable(text)}")

    line("store", f"{report.root}: {report.status}")
    line("log", f"bytes {report.log_start} to {report.log_end}: {report.messages} messages, {report.blanks} blanks")
    line("crc", f"{report.messages_with_crc} messages have a checksum of the whole record, all have one of the body")
    line("queues", f"{report.queues} queues: {report.queue_entries} entries are right")
    line("index", f"{report.index_files} files: {report.index_entries} entries")
    for problem in report.problems:
        line("problem", f"{problem.path}: at byte {problem.offset}: {problem.text}")
    if report.problem_count > len(report.problems):
        line("problem", f"{report.problem_count - len(report.problems)} more")
    for text in report.recovery:
        line("recovery", text)
    for text in report.notes:
        line("note", text)


@contextmanager
def _progress_bar() -> Iterator[Tell | None]:
    """A bar with messages, bytes and the time to go on stderr, if that is a terminal."""
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
        task = bar.add_task("verify", total=None, messages=0)
        yield lambda messages, done, total: bar.update(task, completed=done, total=total, messages=messages)
