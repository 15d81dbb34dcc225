"""`python -m bench list | run | report`: the figures of docs/performance.md, as programs."""

from __future__ import annotations

import compileall
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import pyspark_rmq
import rmq_store
from bench import catalogue, measure, report
from bench.case import Case
from bench.curve import Curve
from bench.measure import ROOT, Result
from bench.peer import PeerError
from bench.scratch import Shared, scratch
from helpers import readme_claims


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure store, source and sink, each beside its yardstick in the same run."""


@main.command("list")
def list_rows() -> None:
    """List the lines of the table and the plots."""
    known = catalogue.found()
    shown = Table(box=None, header_style="bold")
    for name in ("name", "what", "yardstick", "target", "needs"):
        shown.add_column(name)
    for case in known.cases.values():
        target = "" if case.target is None else report.target_text(case.target, case.unit)
        for name, title in case.lines():
            shown.add_row(name, escape(title), escape(case.yardstick), target, "jars" if case.peers else "")
    for curve in known.curves.values():
        shown.add_row(curve.name, escape(curve.title), "", "plot", "jars" if curve.peers else "")
    Console(width=None if Console().is_terminal else 200).print(shown)
    _tell_missing(known)


@main.command("run")
@click.option("--peers", is_flag=True, help="Also what needs the jars of the released RocketMQ or Kafka.")
@click.option("--row", "prefixes", multiple=True, metavar="NAME", help="Only names that begin so; can be repeated.")
@click.option("--quick", is_flag=True, help="Few messages, one pair: only see whether it works. Nothing is kept.")
@click.option("--pairs", type=click.IntRange(measure.PAIRS), default=measure.PAIRS, help="Of ours and the yardstick.")
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False), help="Where figures are kept.")
def run_rows(peers: bool, prefixes: tuple[str, ...], quick: bool, pairs: int, path: Path | None) -> None:
    """Measure, and keep the figures in docs/performance.json. Exit status 1: something could not be measured."""
    known = catalogue.found()
    chosen = choose(known, prefixes, peers=peers)
    compile_packages([*rmq_store.__path__, *pyspark_rmq.__path__, str(Path(__file__).parent)])
    kept = path or (None if quick else report.FIGURES)
    figures = measure.load(kept) if kept else measure.Figures()
    place = measure.Place.here()
    failed = []
    with Shared() as shared, (Bar if Console().is_terminal else Lines)(len(chosen)) as display:
        for one in chosen:
            display.begins(one.name)
            try:
                with scratch(shared, display, quick=quick) as space:
                    if isinstance(one, Curve):
                        figures.curves[one.name] = measure.plot(one, space, display, place)
                        said = [f"{one.name}: {len(figures.curves[one.name].points)} points"]
                    else:
                        results = measure.measure(one, space, display, place, pairs)
                        figures.results |= {result.name: result for result in results}
                        said = [summary(one, result) for result in results]
            except PeerError as error:
                failed.append(one.name)
                said = [f"{one.name}: not measured: {error}"]
            except Exception:
                failed.append(one.name)
                said = [f"{one.name}: FAILED\n{traceback.format_exc()}"]
            else:
                if kept:
                    figures.save(kept)
            display.ends(said)
    _tell_missing(known)
    if failed:
        click.echo(f"not measured: {', '.join(failed)}", err=True)
    sys.exit(bool(failed) or (bool(known.missing) and not prefixes))


@main.command("report")
def write_report() -> None:
    """Write docs/performance.md and its plots from docs/performance.json.

    Exit status 1: a line cannot be measured here, or the README has other figures than these (it is written by hand).
    """
    known = catalogue.found()
    _tell_missing(known)
    report.write(known)
    click.echo(f"wrote {report.TARGET.relative_to(ROOT)}")
    sys.exit(readme_claims.tell_stale() or bool(known.missing))


def compile_packages(directories: Sequence[str]) -> None:
    """Write the bytecode of all modules in these directories, as `pip install` does.

    Spark starts a Python process for each stream; where PYTHONDONTWRITEBYTECODE is set, it would compile every module
    of a checkout again.
    """
    for directory in directories:
        compileall.compile_dir(directory, quiet=1)


def choose(known: catalogue.Catalogue, prefixes: Sequence[str], *, peers: bool) -> list[Case | Curve]:
    """What begins with one of the prefixes, or everything; what needs jars only with `peers`."""
    everything: list[Case | Curve] = [*known.cases.values(), *known.curves.values()]
    names = {one.name for one in everything}
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise click.UsageError(f"nothing begins with {prefix!r}: `list` shows the names")
    chosen = [one for one in everything if not prefixes or one.name.startswith(tuple(prefixes))]
    if prefixes and not peers and (needy := [one.name for one in chosen if one.peers]):
        click.echo(f"left out, as --peers is not given: {', '.join(needy)}", err=True)
    return [one for one in chosen if peers or not one.peers]


def summary(case: Case, result: Result) -> str:
    ours, yardstick = (report.number(statistics.median(side)) for side in (result.ours, result.yardstick))
    reached = report.verdict(case.target, result)
    return (
        f"{result.name}: {ours} {case.unit} beside {yardstick}: {result.ratio:.2f} "
        f"({min(result.ratios):.2f}..{max(result.ratios):.2f})"
        + (f", target {report.target_text(case.target, case.unit)}: {reached}" if case.target else "")
    )


def _tell_missing(known: catalogue.Catalogue) -> None:
    for module, reason in known.missing.items():
        click.echo(f"missing: {module}: {reason}", err=True)


class Lines:
    """For a pipe: one line for each figure that was taken."""

    def __init__(self, count: int) -> None:
        self._begun_s = 0.0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begins(self, name: str) -> None:
        self._begun_s = time.monotonic()

    def ends(self, said: Sequence[str]) -> None:
        click.echo("\n".join(said) + f"  [{time.monotonic() - self._begun_s:.0f} s]")

    def total(self, steps: int) -> None:
        pass

    def step(self) -> None:
        pass

    def tick(self, note: str = "") -> None:
        pass


class Bar:
    """For a terminal: how many of the lines are measured, and how far the one under way is."""

    def __init__(self, count: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )  # fmt: skip
        self._all = self._progress.add_task("all", total=count, note="")
        self._one: TaskID | None = None

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begins(self, name: str) -> None:
        self._one = self._progress.add_task(name, total=None, note="preparing")

    def ends(self, said: Sequence[str]) -> None:
        assert self._one is not None
        self._progress.remove_task(self._one)
        self._progress.advance(self._all)
        for line in said:
            self._progress.console.print(escape(line), highlight=False)

    def total(self, steps: int) -> None:
        assert self._one is not None
        self._progress.update(self._one, total=steps)

    def step(self) -> None:
        assert self._one is not None
        self._progress.update(self._one, advance=1, note="")

    def tick(self, note: str = "") -> None:
        assert self._one is not None
        self._progress.update(self._one, note=note)


if __name__ == "__main__":
    main()
