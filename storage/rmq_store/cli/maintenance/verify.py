"""`rmq verify`: check a store for contradictions."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store import real_time
from rmq_store.cli.shared.output import common_options, printable, write_json
from rmq_store.cli.shared.progress import progress_bar
from rmq_store.cli.target.cluster_target import ClusterCommand, settings_of, way_options
from rmq_store.errors import StoreError, UsageError

if TYPE_CHECKING:
    from rmq_store.replica.compare import Comparison
    from rmq_store.verify import Problem, Report

EXIT_CODES = {"clean": 0, "damaged": 1, "unclean": 3, "kept": 4}
EXIT_UNREADABLE = 2


@click.command(
    cls=ClusterCommand,
    short_help="Check a store: compare log, queues and index.",
    epilog="\b\nExamples:\n  rmq verify --store /data/rocketmq/store\n"
    "  rmq verify --store /data/replica --against rmq://ns1:9876",
)
@common_options
@click.option(
    "--against", metavar="rmq://ADDRESSES",
    help="Of a replica: read the log of its master a second time, and compare all bytes.",
)
@click.option("--broker", metavar="NAME", help="The master's name; by default the one that the replica follows.")
@click.option("--ha", "ha_address", metavar="HOST:PORT", default="", help="Its HA port, as in `rmq follow`.")
@way_options
def verify(root: Path, as_json: bool, against: str | None, **given: Any) -> None:
    """Check a store: compare log, queues and index; change nothing.

    Reads every byte of the log and recomputes every checksum; other processes may write meanwhile. The status is
    "clean"; "damaged" (each problem is listed with file and bytes; see `rmq repair`); "unclean" (open now, not closed,
    or in the middle of a repair: the next process that opens the store for writing repairs the listed items); or "kept"
    (no damage except damage that was accepted before). Lines "not seen" name parts of the store that are not checked:
    files of other kinds (docs/stores.md).

    With --against, bytes of the log that the master has as well are compared with it, and the first difference is
    named. A range that only one of them has is no difference: each deletes by its own settings. The master is told
    nothing.

    \b
    Exit codes: 0 clean, 1 damaged, or not as the master, 2 it cannot be read, or
    wrong arguments, 3 unclean, 4 kept.
    """
    from rmq_store.verify import verify_store

    if against is None and (given["broker"] or given["ha_address"]):
        raise UsageError("--broker and --ha say which master: they need --against")
    began = real_time.monotonic()
    try:
        with progress_bar("verify") as progress:
            report = verify_store(root, progress)
        found = None if against is None else _compared(root, against, given)
    except StoreError as error:  # 1 says that the store is damaged
        click.echo(f"rmq: {printable(str(error))}", err=True)
        sys.exit(EXIT_UNREADABLE)
    seconds = real_time.monotonic() - began
    speed = (report.log_end - report.log_start) / 1e6 / max(seconds, 1e-9)
    if as_json:
        more = {} if found is None else {"against": asdict(found) | {"isEqual": found.is_equal}}
        write_json({**report.to_dict(), **more, "seconds": round(seconds, 3), "mb_per_second": round(speed, 1)})
    else:
        _write(report, f"{seconds:.1f} s, {speed:.0f} MB of log per second")
        if found is not None:
            _write_comparison(found)
    sys.exit(EXIT_CODES["damaged" if found is not None and not found.is_equal else report.status])


def _compared(root: Path, against: str, given: dict[str, Any]) -> Comparison:
    """The comparison with the master that the options name. Raises as `LogComparison.run`, and as `Store.open`."""
    from rmq_store import Store
    from rmq_store.replica.compare import LogComparison
    from rmq_store.replica.master import Master

    settings = settings_of(against, given)
    with Store.open(root, read_only=True) as store, contextlib.ExitStack() as stack:
        broker = given["broker"] or (store.replica.broker if store.replica is not None else "")
        if not broker:
            raise UsageError(f"{root} is no replica: say with --broker NAME with which broker it is to be compared")
        master = stack.enter_context(Master(settings, broker=broker, ha_address=given["ha_address"]))
        bar = stack.enter_context(progress_bar("compare"))
        tell = (lambda done, total: None) if bar is None else (lambda done, total: bar(0, done, total))
        return LogComparison(store, master, tell=tell).run()


def _write_comparison(found: Comparison) -> None:
    for one in found.compared:
        click.echo(f"against   bytes {one.start} to {one.end} of the log are the master's")
    for one in found.only_at_replica:
        click.echo(f"against   bytes {one.start} to {one.end} are here alone: the master has deleted them")
    for one in found.only_at_master:
        why = "the replica does not have them yet" if one.start >= found.replica.end else "not here (any more)"
        click.echo(f"against   bytes {one.start} to {one.end} are at the master alone: {why}")
    if found.difference is not None:
        click.echo(f"differs   {printable(found.difference[1])}")


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
