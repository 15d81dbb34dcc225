"""`rmq repair`: repair a damaged store, and report what was lost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.shared.parameters import store_options
from rmq_store.cli.shared.progress import progress_bar
from rmq_store.errors import StoreError, UsageError

if TYPE_CHECKING:
    from rmq_store.broker.repair.repair_plan import Repair
    from rmq_store.broker.repair.repair_settings import Given
    from rmq_store.verify import Report


@click.command(
    short_help="Repair a damaged store.",
    epilog="\b\nExamples:\n  rmq repair /data/rocketmq/store --dry-run\n  rmq repair /data/rocketmq/store --yes",
)
@store_options()
@click.option("--dry-run", is_flag=True, help="Show what is wrong and what would be done; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--queues", is_flag=True, help="Rebuild the consume queues, even if they are sound.")
@click.option("--index", is_flag=True, help="Rebuild the index, even if it is sound.")
@click.option(
    "--removed", type=click.Path(file_okay=False, path_type=Path),
    help="Directory for files that are removed or changed (default: a new directory under "
         "pyrmq/removed/).",
)  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE",
    help="Value of a setting that pyrmq/store.json has lost, with RocketMQ's name; may be repeated.",
)  # fmt: skip
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A broker.conf with the lost settings.",
)  # fmt: skip
@click.option("--defaults", is_flag=True, help="Use the default for each lost setting that is not given.")
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
    """Find the damage of the store in directory PATH, show what will be done, and repair it.

    Queues and index are rebuilt from the log; a damaged JSON table is restored from its .bak. Damaged bytes of the log
    stay where they are: their range is recorded as accepted (kept), and the messages before and after it stay readable.
    Nothing is deleted: files that are removed or changed are saved under pyrmq/removed/. No process may have the store
    open.

    \b
    Exit codes: 0 nothing was wrong, or everything was repaired; 1 messages are lost, or a dry run found work;
    2 repair was not possible: wrong arguments, a store in use or changed meanwhile, lost settings, a full disk.
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
    """End with exit code 2 if the repair cannot begin: 1 says that messages are lost."""
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
