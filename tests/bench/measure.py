"""A case is measured as a warm-up and pairs of ours and the yardstick, one right after the other."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.case import Case, Measurement, Pair
from bench.curve import Curve, Point
from bench.scratch import Progress, Scratch

ROOT = Path(__file__).resolve().parents[2]
PAIRS = 5
# A change here that is not committed is shown by a "+" behind the commit.
MEASURED = ("storage", "connector", "tests/bench")


@dataclass(frozen=True, slots=True)
class Place:
    """Of which commit the figures are, and with what they were taken."""

    commit: str
    date: str
    cores: int
    versions: dict[str, str]

    @classmethod
    def here(cls) -> Place:
        packages = {name: importlib.metadata.version(name) for name in ("numpy", "pyarrow", "pyspark")}
        changed = bool(_git("status", "--porcelain", "-uno", *MEASURED))
        return cls(
            commit=_git("rev-parse", "--short", "HEAD") + "+" * changed,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            cores=len(os.sched_getaffinity(0)),
            versions={"python": platform.python_version()} | packages,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one line of the table, `ours[n]` and `yardstick[n]` taken one right after the other."""

    name: str
    ours: list[float]
    yardstick: list[float]
    place: Place

    @property
    def ratios(self) -> list[float]:
        return [ours / yardstick for ours, yardstick in zip(self.ours, self.yardstick, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def ratio_text(self) -> str:
        return f"{self.ratio:.2f} ({min(self.ratios):.2f}..{max(self.ratios):.2f})"


@dataclass(frozen=True, slots=True)
class Plotted:
    """The points of one plot."""

    name: str
    points: list[Point]
    place: Place


@dataclass(slots=True)
class Figures:
    """What is kept in docs/performance.json: of every line and plot what its last run said."""

    results: dict[str, Result] = field(default_factory=dict)
    curves: dict[str, Plotted] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        lists = {"results": self.results, "curves": self.curves}
        # One line for each, so that a commit shows which of them changed.
        texts = {
            name: ",\n".join(json.dumps(asdict(one)) for _, one in sorted(figures.items()))
            for name, figures in lists.items()
        }
        staged = path.with_name(path.name + ".new")
        body = ",\n".join(f'"{name}": [\n{text}\n]' for name, text in texts.items())
        staged.write_text(f"{{\n{body}\n}}\n", encoding="utf-8")
        staged.replace(path)


def load(path: Path) -> Figures:
    """What `Figures.save` wrote; nothing if there is no such file."""
    if not path.exists():
        return Figures()
    content = json.loads(path.read_text(encoding="utf-8"))
    results = [Result(**one | {"place": Place(**one["place"])}) for one in content["results"]]
    curves = [
        Plotted(one["name"], [Point(*point) for point in one["points"]], Place(**one["place"]))
        for one in content["curves"]
    ]
    return Figures({one.name: one for one in results}, {one.name: one for one in curves})


def measure(
    case: Case, scratch: Scratch, progress: Progress, place: Place, pairs_wanted: int = PAIRS
) -> list[Result]:
    """One result for each line of the case.

    The order changes from pair to pair: what comes second finds warmer caches, or the first one's pages being written.
    """
    pairs = 1 if scratch.quick else pairs_wanted
    progress.total(2 * (pairs + (not scratch.quick)))
    ours: list[tuple[float, ...]] = []
    yardstick: list[tuple[float, ...]] = []
    with case.prepare(scratch) as pair:
        if not scratch.quick:
            _measure_pair(pair, ([], []), progress, ours_first=True)
        for number in range(pairs):
            _measure_pair(pair, (ours, yardstick), progress, ours_first=number % 2 == 0)
    return [
        Result(name, [each[at] for each in ours], [each[at] for each in yardstick], place)
        for at, (name, _) in enumerate(case.lines())
    ]


def plot(curve: Curve, scratch: Scratch, progress: Progress, place: Place) -> Plotted:
    return Plotted(curve.name, curve.points(scratch, progress), place)


def _measure_pair(
    pair: Pair, into: tuple[list[tuple[float, ...]], list[tuple[float, ...]]], progress: Progress, *, ours_first: bool
) -> None:
    sides: Iterable[tuple[Measurement, list[tuple[float, ...]]]] = [(pair.ours, into[0]), (pair.yardstick, into[1])]
    for take, figures in sides if ours_first else reversed(list(sides)):
        figure = take()
        figures.append(figure if isinstance(figure, tuple) else (figure,))
        progress.step()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()
