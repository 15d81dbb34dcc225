"""docs/performance.md and its plots: a frame written by hand, and tables of the figures of docs/performance.json."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench import measure, older_sparks
from bench.case import GROUPS, Case, Target
from bench.catalogue import Catalogue
from bench.curve import Curve
from bench.measure import ROOT, Figures, Place, Plotted, Result

FRAME = Path(__file__).with_name("frame.md")
FIGURES = ROOT / "docs" / "performance.json"
TARGET = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"
HEADS = ("what", "body B", "ours", "yardstick", "ratio (min..max)", "target", "reached?", "notes")
MISSED_HEADS = ("section", "what", "body B", "beside", "ratio", "target", "reached?", "note")
# Where the attempts to improve the figures of a section are recorded.
ATTEMPTS = {
    "read": "0021-reads.md",
    "write": "0020-writes.md",
    "append": "0020-writes.md",
    "queue read": "0021-reads.md",
    "one message": "0022-one-message-and-group-commit.md",
    "delivery": "0024-delivery-and-clients.md",
    "push consumer": "0024-delivery-and-clients.md",
    "replica": "0039-replica.md",
    "lookup": "0023-look-ups.md",
    "open": "0026-opening-a-store.md",
    "trigger": "0025-spark-overhead.md",
    "latency": "0025-spark-overhead.md",
    "memory": "0021-reads.md",
}
NOT_RUN = "not run"


def write(catalogue: Catalogue, figures_path: Path = FIGURES, target: Path = TARGET, plots: Path = PLOTS) -> None:
    """The page, and one SVG for each curve that was measured."""
    figures = measure.load(figures_path)
    target.write_text(text(catalogue, figures, older_sparks.load(plots)), encoding="utf-8")
    for curve in catalogue.curves.values():
        if plotted := figures.curves.get(curve.name):
            plots.mkdir(exist_ok=True)
            draw(curve, plotted, plots / f"{curve.name}.svg")


class Notes:
    """The numbered notes of the page: [s1], [s2] ... say how a row was measured, [r1], [r2] ... what bounds it."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._numbers: dict[tuple[str, str], str] = {}
        counts = {"s": 0, "r": 0}
        for case in cases:
            for kind, text in self._of(case):
                if (case.group, text) not in self._numbers:
                    counts[kind] += 1
                    self._numbers[case.group, text] = f"[{kind}{counts[kind]}]"

    def cell(self, case: Case, kinds: str = "sr") -> str:
        """The numbers of a row's notes."""
        return " ".join(self._numbers[case.group, text] for kind, text in self._of(case) if kind in kinds)

    def section(self, group: str) -> str:
        """The notes of a section as a list, those on its measurements first."""
        found = [f"* {number} {text}\n" for (of, text), number in self._numbers.items() if of == group]
        return "".join(sorted(found, key=lambda line: line[:3] != "* [" or line[3] != "s"))

    @staticmethod
    def _of(case: Case) -> list[tuple[str, str]]:
        return [*(("s", text) for text in case.setup()), *([("r", case.limit)] if case.limit else [])]


def text(catalogue: Catalogue, figures: Figures, older: Mapping[str, Figures] | None = None) -> str:
    """The page. `older`: the figures of other Sparks, by their version."""
    page = FRAME.read_text(encoding="utf-8")
    cases = catalogue.cases.values()
    notes = Notes(sorted(cases, key=lambda case: GROUPS.index(case.group)))
    parts = {
        "missed": _missed(cases, figures, notes),
        "tables": "\n".join(filter(None, (_section(group, cases, figures, notes) for group in GROUPS))),
        "older": _older(catalogue, figures, older or {}),
        "curves": "\n".join(_plot(curve, figures) for curve in catalogue.curves.values()),
    }
    for name, part in parts.items():
        assert f"<!-- {name} -->\n" in page, name
        page = page.replace(f"<!-- {name} -->\n", part or "Not run yet.\n")
    return page


def _missed(cases: Iterable[Case], figures: Figures, notes: Notes) -> str:
    """Every row below its target, from the figures and the targets of the rows."""
    missed = []
    for case in cases:
        for name, title in case.lines():
            result = figures.results.get(name)
            if result is None or case.target is None or (reached := verdict(case.target, result)) == "yes":
                continue
            target, note = target_text(case.target, case.unit), notes.cell(case, "r")
            ratio = f"{result.ratio:.2f}"
            missed.append([case.group, title, _body(case), case.yardstick, ratio, target, reached, note])
    return table(MISSED_HEADS, missed, right=(2, 4)) if missed else "None.\n"


def _section(group: str, cases: Iterable[Case], figures: Figures, notes: Notes) -> str:
    mine = [case for case in cases if case.group == group]
    lines = [line for case in mine for line in _lines(case, figures, notes)]
    if not lines:
        return ""
    shown = table(HEADS, lines, right=(1, 2, 4))
    tried = f"\nAttempts to improve these figures: {_decision(group)}.\n" if group in ATTEMPTS else ""
    return f"### {group.capitalize()}\n\n{shown}\n{notes.section(group)}{tried}{_taken(mine, figures)}"


def _decision(group: str) -> str:
    return f"[ADR {ATTEMPTS[group][:4]}](adr/{ATTEMPTS[group]})"


def _body(case: Case) -> str:
    return "" if case.body_bytes is None else f"{case.body_bytes:,}"


def _older(catalogue: Catalogue, figures: Figures, older: Mapping[str, Figures]) -> str:
    if not older:
        return ""
    heads = ("what", "body B", *(f"Spark {spark}" for spark in older), "the newest Spark")
    shown = table(heads, older_sparks.rows(catalogue, figures, older), right=(1, *range(2, len(heads))))
    places = [result.place for each in older.values() for result in each.results.values()]
    return f"{shown}\nThose of the older Sparks were taken on {_when(places)}.\n"


def _lines(case: Case, figures: Figures, notes: Notes) -> list[list[str]]:
    target = "" if case.target is None else target_text(case.target, case.unit)
    lines = []
    for name, title in case.lines():
        result = figures.results.get(name)
        if result is None:
            lines.append([title, _body(case), NOT_RUN, case.yardstick, "", target, "", notes.cell(case)])
            continue
        ours, yardstick = (f"{number(statistics.median(side))} {case.unit}" for side in (result.ours, result.yardstick))
        beside = f"{yardstick}: {case.yardstick}"
        reached = verdict(case.target, result)
        lines.append([title, _body(case), ours, beside, result.ratio_text, target, reached, notes.cell(case)])
    return lines


def target_text(target: Target, unit: str) -> str:
    text = f"{'>=' if target.at_least else '<='} {target.limit:g}"
    if target.floor is not None:
        text += f" (floor {target.floor:g})"
    return text if target.ours_at_most is None else f"{text}, ours <= {number(target.ours_at_most)} {unit}"


def verdict(target: Target | None, result: Result) -> str:
    """`yes`, `no`, or `floor` for what is below the target and still acceptable; empty without a target."""
    if target is None:
        return ""
    if target.ours_at_most is not None and statistics.median(result.ours) > target.ours_at_most:
        return "no"
    if _within(result.ratio, target.limit, target.at_least):
        return "yes"
    return "floor" if target.floor is not None and _within(result.ratio, target.floor, target.at_least) else "no"


def number(value: float) -> str:
    """Three significant digits at least; thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table in Markdown."""
    rule = ["--:" if column in set(right) else "---" for column in range(len(heads))]
    lines = [heads, rule, *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def draw(curve: Curve, plotted: Plotted, path: Path) -> None:
    """The points as lines, one for each series. The file has no date in it, so that equal points are equal bytes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = curve.name
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for series in dict.fromkeys(point.series for point in plotted.points):
        points = sorted((point.x, point.y) for point in plotted.points if point.series == series)
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=4, label=series)
    if curve.log_x:
        axes.set_xscale("log")
        measured = sorted({point.x for point in plotted.points})
        axes.set_xticks(measured, labels=[_short(x) for x in measured])
        axes.minorticks_off()
    axes.set(title=curve.title, xlabel=curve.x_label, ylabel=curve.y_label, ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _short(x: float) -> str:
    """As the label of a place on an axis."""
    for unit, size in (("Mi", 1 << 20), ("Ki", 1 << 10)):
        if x >= size and x % size == 0:
            return f"{x / size:g} {unit}"
    return f"{x:,g}"


def _plot(curve: Curve, figures: Figures) -> str:
    plotted = figures.curves.get(curve.name)
    shown = f"![{curve.title}](performance/{curve.name}.svg)" if plotted else "Not run yet."
    place = "" if plotted is None else f" Taken on {_when([plotted.place])}."
    return f"### {curve.title}\n\n{shown}\n\n{curve.settings} {curve.limit}".rstrip() + f"{place}\n"


def _taken(cases: Iterable[Case], figures: Figures) -> str:
    names = [name for case in cases for name, _ in case.lines()]
    places = [figures.results[name].place for name in names if name in figures.results]
    return f"\nTaken on {_when(places)}.\n" if places else ""


def _when(places: Iterable[Place]) -> str:
    """The dates and commits, once for each machine and its versions."""
    commits: dict[str, dict[str, None]] = {}
    for place in places:
        versions = ", ".join(f"{name} {version}" for name, version in place.versions.items())
        commits.setdefault(f"{place.cores} cores, {versions}", {})[f"{place.date} ({place.commit})"] = None
    return "; ".join(f"{', '.join(sorted(when))} with {machine}" for machine, when in commits.items())


def _within(ratio: float, limit: float, at_least: bool) -> bool:
    return ratio >= limit if at_least else ratio <= limit
