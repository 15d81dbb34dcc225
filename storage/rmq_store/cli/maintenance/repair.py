"""`rmq repair`: put a damaged store right, and say what was lost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.shared.output import printable, store_argument, write_json
from rmq_store.cli.shared.progress import progress_bar
from rmq_store.errors import StoreError, UsageError

if TYPE_CHECKING:
    from rmq_store.broker.repair.repair_plan import Repair
    from rmq_store.broker.repair.repair_settings import Given
    from rmq_store.verify import Report


@click.command(
    short_help="Put a damaged store right.",
    epilog="\b\nExamples:\n  rmq repair /data/rocketmq/store --dry-run\n  rmq repair /data/rocketmq/store --yes",
)
@store_argument
@click.option("--dry-run", is_flag=True, help="Say what is wrong and what would be done; change nothing.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@click.option("--queues", is_flag=True, help="Build the consume queues again, whatever state they are in.")
@click.option("--index", is_flag=True, help="Build the index again, whatever state it is in.")
@click.option(
    "--removed", type=click.Path(file_okay=False, path_type=Path),
    help="Where to put what is taken out (default: a new directory under pyrmq/removed/).",
)  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE",
    help="A setting that pyrmq/store.json has lost, with RocketMQ's name; may be repeated.",
)  # fmt: skip
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The broker.conf that has the lost settings.",
)  # fmt: skip
@click.option("--defaults", is_flag=True, help="Take the default for every setting that is lost and not given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def repair(
    root: Path,
    dry_run: bool,
    yes: bool,
    queues: bool,
    index: bool,
    removed: Path | None,
    settings: tuple[str, ...],
    config: Path | None,
    defaults: bool,
    as_json: bool,
) -> None:
    """Find out what is wrong with the store in directory PATH, say what will be done, and do it.

    Queues and index are built again from the log; a damaged JSON table comes back from its .bak. Damaged bytes of the
    log stay where they are: they are written down as kept, and the store is used on both sides of them. Nothing is
    deleted: what is taken out, or changed, is kept under pyrmq/removed/. Nobody may have the store open.

    \b
    Exit codes: 0 nothing was wrong, or all of it was put right; 1 messages are lost (or, with --dry-run, something
    would be done); 2 it could not be done: the caller's mistake, a store in use, or changed since it was looked at,
    lost settings, a full disk.
    """
    from rmq_store.broker.repair.repair import carry_out, examine

    with _refusing():
        with progress_bar("look") as tell:
            given = _given(settings, config, defaults)
            found = examine(root, queues=queues, index=index, removed=removed, given=given, progress=tell)
        after = found.report
        if not as_json:
            _write_findings(found)
        if found.is_needed and not dry_run:
            if not yes and not (sys.stdin.isatty() and not as_json):
                raise UsageError("nothing was changed: add --yes to do this, or --dry-run to look only")
            if not yes and not click.confirm("Do this?", default=False):
                raise UsageError("nothing was changed")
            with progress_bar("repair") as tell:
                after = carry_out(found, tell)
    done = found.after is not None
    if as_json:
        write_json(_to_dict(found, after))
    elif done:
        _write_result(found, after)
    sys.exit(1 if after.status in ("damaged", "kept") or (dry_run and found.is_needed) else 0)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Whatever keeps us from repairing ends with exit code 2: 1 says that messages are lost."""
    try:
        yield
    except StoreError as error:
        click.echo(f"rmq: {printable(str(error))}", err=True)
        sys.exit(2)


def _given(settings: tuple[str, ...], config: Path | None, defaults: bool) -> Given:
    from rmq_store.broker.metadata.store_config import StoreConfig, parse_settings
    from rmq_store.broker.repair.repair_settings import Given

    pairs = [text.partition("=") for text in settings]
    for name, separator, _ in pairs:
        if not separator:
            raise UsageError(f"--set {name}: give NAME=VALUE")
    values = parse_settings({name: value for name, _, value in pairs}, "--set")
    return Given(values, StoreConfig.from_broker_conf(config) if config else None, defaults)


def _write_findings(found: Repair) -> None:
    def line(name: str, text: str) -> None:
        click.echo(f"{name:<9} {printable(text)}")

    report = found.report
    line("store", f"{report.root}: {report.status if not found.findings else 'damaged'}")
    for finding in found.findings:
        line("problem", f"{finding.path}: {finding.problem}")
        line("  do", finding.action)
    for problem in report.problems:
        line("problem", f"{problem.path}: bytes {problem.offset} to {problem.end}: {problem.text}")
    if report.problem_count > len(report.problems):
        line("problem", f"{report.problem_count - len(report.problems)} more")
    for text in report.recovery:
        line("recovery", text)
    for bad in report.kept:
        line("kept", f"{bad.path}: bytes {bad.start} to {bad.end} of the log: {bad.text}")
    for text in report.notes:
        line("note", text)
    if report.bad_ranges:
        line("do", "the damaged bytes of the log are kept where they are and passed over from now on")
    for action in found.view_actions():
        line("do", action)
    if found.findings or found.rebuild:
        line("kept in", str(found.trash.target))
    if found.lost_settings:
        line("lost", f"{', '.join(found.lost_settings)}: give them with --set or --config, or take the --defaults")
    if report.recovery and not found.rebuild:
        line("do", "recovery, as by any opener")
    if not found.is_needed:
        line("do", "nothing")


def _write_result(found: Repair, after: Report) -> None:
    for step in found.steps:
        click.echo(f"done      {printable(step)}")
    if found.trash.target.is_dir():
        click.echo(f"removed   {printable(str(found.trash.target))}")
    for bad in after.kept:
        text = f"{bad.path}: bytes {bad.start} to {bad.end} of the log: {bad.text}"
        click.echo(f"kept      {printable(text)}")
    for problem in after.problems:
        click.echo(f"problem   {printable(f'{problem.path}: at byte {problem.offset}: {problem.text}')}")
    click.echo(f"store     {printable(str(found.root))}: {after.status}, {after.messages} messages")


def _to_dict(found: Repair, after: Report) -> dict[str, object]:
    findings = [{name: getattr(f, name) for name in ("area", "path", "problem", "action")} for f in found.findings]
    return {
        "needed": found.is_needed, "done": found.after is not None, "findings": findings,
        "rebuild": sorted(found.rebuild), "lost_settings": found.lost_settings, "steps": found.steps,
        "removed": str(found.trash.target), "before": found.report.to_dict(),
        "after": after.to_dict() if found.after is not None else None,
    }  # fmt: skip
