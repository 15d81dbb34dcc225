"""`python -m crash list | run | again | report`: the proof of docs/reliability.md, as programs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from crash import catalogue, report, run
from crash.part import Part
from crash.state import DEFAULT_SEED, ROOT, State, StateError
from helpers import readme_claims

BUILD = ROOT / "build" / "reliability"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Break stores on purpose, and count what they lost."""


@main.command("list")
def list_parts() -> None:
    """List the parts with their cycles in each scale, and why one cannot run here."""
    parts, missing = catalogue.found()
    table = Table(box=None, header_style="bold")
    for name in ("#", "part", "unit", *run.SCALES, "without", "what"):
        table.add_column(name, justify="right" if name in run.SCALES else "left")
    for part in parts.values():
        reason = part.cannot_run()
        counts = [f"{getattr(part, scale):,}" for scale in run.SCALES]
        what = part.title + (f" [red](not here: {escape(reason)})[/]" if reason else "")
        table.add_row(part.number, part.name, part.unit, *counts, ", ".join(part.protections), what)
    Console(width=None if Console().is_terminal else 200).print(table)
    for module, reason in missing.items():
        click.echo(f"missing: {module}: {reason}", err=True)


@main.command("run")
@click.option("--scale", type=click.Choice(run.SCALES), required=True, help="How many cycles: seconds, an hour, hours.")
@click.option("--part", "names", multiple=True, metavar="NAME", help="Only this part; can be repeated.")
@click.option("--seed", type=click.IntRange(min=0), help=f"Where all randomness comes from; {DEFAULT_SEED}.")
@click.option("--teeth", is_flag=True, help="Each part also without each of its protections: it must then fail.")
@click.option("--without", metavar="PROTECTION", default="", help="Only without this protection of the engine.")
@click.option("--jobs", type=click.IntRange(1, 2), default=1, show_default=True, help="Parts at once.")
@click.option("--state", "path", type=click.Path(path_type=Path, dir_okay=False), help="Where to go on from.")
@click.option("--fresh", is_flag=True, help="Begin anew: forget what the state file says of these parts.")
def run_parts(
    scale: run.Scale, names: tuple[str, ...], seed: int | None, teeth: bool, without: str, jobs: int,
    path: Path | None, fresh: bool,
) -> None:  # fmt: skip
    """Run parts; go on where an earlier run of the same scale was interrupted. Exit status 1: a violation."""
    parts, missing = catalogue.found()
    chosen = choose(parts, names)
    for module, reason in missing.items():
        click.echo(f"missing: {module}: {reason}", err=True)
    begun = BUILD / "crash.json" if scale == "soak" and not fresh else None
    state = State(path or BUILD / f"{scale}.json", begun)
    if fresh:
        state.records = {key: record for key, record in state.records.items() if key[0] not in {p.name for p in chosen}}
    planned = list(run.plan(chosen, state, scale, seed, teeth=teeth, without=without))
    if without and not planned:
        raise click.UsageError(f"no part names the protection {without!r}: `list` shows them")
    for job in planned:
        if reason := job.part.cannot_run():
            job.problem = f"cannot run here: {reason}"
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        with Lines(planned) if not Console().is_terminal else Bars(planned) as display:
            run.Runner(planned, state, jobs, display).run()
    except KeyboardInterrupt:
        click.echo(f"interrupted; the same command goes on from {state.path}", err=True)
        sys.exit(130)
    bad = [job for job in planned if job.problem or not job.record.good]
    for job in bad:
        click.echo(f"{job.label}: {job.problem or verdict(job)}", err=True)
    sys.exit(bool(bad) or (bool(missing) and not names))


@main.command()
@click.argument("part")
@click.argument("seed", type=int)
@click.argument("cycles", type=click.IntRange(min=1))
@click.option("--without", metavar="PROTECTION", default="", help="Without this protection of the engine.")
def again(part: str, seed: int, cycles: int, without: str) -> None:
    """Show the chunk of a violation again: PART SEED CYCLES as the violation names them. Nothing is saved."""
    chosen = choose(catalogue.found()[0], (part,))[0]
    job = run.Job(chosen, run.Record.of(chosen, without, "again", seed, cycles))
    chunk = run.begin_chunk(job, seed, cycles)
    try:
        while chunk.read():
            pass
    finally:
        chunk.end()
    click.echo(chunk.problem or str(chunk.counters))
    sys.exit(bool(chunk.problem) or chunk.counters is None or chunk.counters.violations > 0)


@main.command("report")
@click.option(
    "--from", "sources", multiple=True, metavar="STATE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A state file of a run, whose figures replace those of the same parts; can be repeated.",
)  # fmt: skip
def write_report(sources: tuple[Path, ...]) -> None:
    """Write docs/reliability.md from docs/reliability.json, into which the figures of runs are taken first."""
    report.merge(sources)
    report.TARGET.write_text(report.text(), encoding="utf-8")
    click.echo(f"wrote {report.TARGET.relative_to(ROOT)}")
    sys.exit(readme_claims.tell_stale())


def choose(parts: dict[str, Part], names: Sequence[str]) -> list[Part]:
    if unknown := [name for name in names if name not in parts]:
        raise click.UsageError(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
    return [part for part in parts.values() if not names or part.name in names]


def verdict(job: run.Job) -> str:
    record = job.record
    if record.without:
        return f"noticed nothing in {record.cycles:,} {record.unit} without {record.without}"
    return f"{record.violations:,} violations in {record.cycles:,} {record.unit}; the first: {record.first}"


def summary(job: run.Job) -> str:
    """One line: what was done, and how it went."""
    record = job.record
    if job.problem:
        return f"{record.number:>4} {job.label}: {job.problem.strip().splitlines()[-1]}"
    each_ms = 1000 * record.seconds / max(record.cycles, 1)
    counted = ", ".join(
        f"{value:,} {name}"
        for name in ("lost", "duplicated", "reordered", "altered", "broken")
        if (value := getattr(record, name)) or not record.without
    )
    return (
        f"{record.number:>4} {job.label}: {'ok' if record.good else 'FAILED'}: {record.cycles:,} {record.unit}, "
        f"{record.acknowledged:,} acknowledged, {counted or 'nothing noticed'} "
        f"({record.seconds:.0f} s, {each_ms:.1f} ms each)"
    )


class Lines:
    """For a pipe: one line for each part that ended."""

    def __init__(self, jobs: Sequence[run.Job]) -> None:
        self._jobs = jobs

    def __enter__(self) -> Lines:
        for job in self._jobs:
            if job.ended:
                click.echo(summary(job))
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def started(self, job: run.Job) -> None:
        pass

    def ticked(self, job: run.Job, ticks: int) -> None:
        pass

    def ended(self, job: run.Job) -> None:
        click.echo(summary(job))


class Rate(ProgressColumn):
    """Cycles per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.1f}/s" if task.speed else "")


class Bars:
    """For a terminal: a bar for each part under way, a line for each that ended."""

    def __init__(self, jobs: Sequence[run.Job]) -> None:
        self._jobs = jobs
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            Rate(), TimeRemainingColumn(), speed_estimate_period=120,
        )  # fmt: skip

    def __enter__(self) -> Bars:
        self._progress.start()
        for job in self._jobs:
            if job.ended:
                self.ended(job)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, job: run.Job) -> None:
        done, target = job.record.cycles, job.record.target
        self._tasks[job.label] = self._progress.add_task(job.label, completed=done, total=target)

    def ticked(self, job: run.Job, ticks: int) -> None:
        self._progress.update(self._tasks[job.label], completed=job.record.cycles + ticks)

    def ended(self, job: run.Job) -> None:
        if job.label in self._tasks:
            self._progress.remove_task(self._tasks[job.label])
        style = "green" if job.record.good and not job.problem else "red"
        self._progress.console.print(Text(summary(job), style=style))


def _interrupted(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        main()
    except StateError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
