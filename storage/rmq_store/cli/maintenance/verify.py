"""`rmq verify`: check a store for contradictions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store import real_time
from rmq_store.cli.shared.output import common_options, printable, write_json
from rmq_store.cli.shared.progress import progress_bar
from rmq_store.errors import StoreError

if TYPE_CHECKING:
    from rmq_store.verify import Problem, Report

EXIT_CODES = {"clean": 0, "damaged": 1, "unclean": 3, "kept": 4}
EXIT_UNREADABLE = 2


@click.command(
    short_help="Check a store: compare log, queues and index.",
    epilog="\b\nExample:\n  rmq verify --store /data/rocketmq/store",
)
@common_options
def verify(root: Path, as_json: bool) -> None:
    """Check a store: compare log, queues and index; change nothing.

    Reads every byte of the log and recomputes every checksum; other processes may write meanwhile. The status is
    "clean"; "damaged" (each problem is listed with file and bytes; see `rmq repair`); "unclean" (open now, not closed,
    or in the middle of a repair: the next process that opens the store for writing repairs the listed items); or "kept"
    (no damage except damage that was accepted before). Lines "not seen" name parts of the store that are not checked:
    files of other kinds (docs/stores.md).

    \b
    Exit codes: 0 clean, 1 damaged, 2 the store cannot be read, or wrong arguments, 3 unclean, 4 kept.
    """
    from rmq_store.verify import verify_store

    began = real_time.monotonic()
    try:
        with progress_bar("verify") as progress:
            report = verify_store(root, progress)
    except StoreError as error:  # 1 says that the store is damaged
        click.echo(f"rmq: {printable(str(error))}", err=True)
        sys.exit(EXIT_UNREADABLE)
    seconds = real_time.monotonic() - began
    speed = (report.log_end - report.log_start) / 1e6 / max(seconds, 1e-9)
    if as_json:
        write_json({**report.to_dict(), "seconds": round(seconds, 3), "mb_per_second": round(speed, 1)})
    else:
        _write(report, f"{seconds:.1f} s, {speed:.0f} MB of log per second")
    sys.exit(EXIT_CODES[report.status])


def _write(report: Report, speed: str) -> None:
    def line(name: str, text: str) -> None:
        click.echo(f"{name:<9} {printable(text)}")

    line("store", f"{report.root}: {report.status}")
    line("log", f"bytes {report.log_start} to {report.log_end}: {report.messages} messages, {report.blanks} blanks")
    line("crc", f"{report.messages_with_crc} messages have a checksum of the whole record, all have one of the body")
    line("queues", f"{report.queues} queues: {report.queue_entries} entries are right")
    line("index", f"{report.index_files} files: {report.index_entries} entries")
    if sys.stdout.isatty():
        line("speed", speed)
    for problem in report.problems:
        line("problem", f"{problem.path}: at byte {problem.offset}: {problem.text}{_up_to(problem)}")
    if report.problem_count > len(report.problems):
        line("problem", f"{report.problem_count - len(report.problems)} more")
    if report.status == "damaged":
        line("do", f"`rmq repair {report.root} --dry-run` says what can be put right, and what is lost")
    for bad in report.kept:
        line("kept", f"{bad.path}: bytes {bad.start} to {bad.end} of the log: {bad.text}")
    for text in report.recovery:
        line("recovery", text)
    for text in report.notes:
        line("note", text)
    for text in report.not_looked_at:
        line("not seen", text)


def _up_to(problem: Problem) -> str:
    return f" (bytes {problem.offset} to {problem.end})" if problem.end > problem.offset else ""
