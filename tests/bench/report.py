"""docs/performance.md and its plots: a frame written by hand, and tables of the figures of docs/performance.json."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import measure
from bench.case import GROUPS, Case, Target
from bench.catalogue import Catalogue
from bench.curve import Curve
from bench.measure import ROOT, Figures, Plotted, Result

FRAME = Path(__file__).with_name("frame.md")
FIGURES = ROOT / "docs" / "performance.json"
TARGET = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"
HEADS = ("what", "body B", "ours", "yardstick", "ratio (min..max)", "target", "reached?")
NOT_RUN = "not run"


def write(catalogue: Catalogue, figures_path: Path = FIGURES, target: Path = TARGET, plots: Path = PLOTS) -> None:
    """The page, and one SVG for each curve that was measured."""
    figures = measure.load(figures_path)
    target.write_text(text(catalogue, figures), encoding="utf-8")
    for curve in catalogue.curves.values():
        if plotted := figures.curves.get(curve.name):
            plots.mkdir(exist_ok=True)
            draw(curve, plotted, plots / f"{curve.name}.svg")


def text(catalogue: Catalogue, figures: Figures) -> str:
    """The page."""
    page = FRAME.read_text(encoding="utf-8")
    parts = {
        "tables": "\n".join(_section(group, catalogue.cases.values(), figures) for group in GROUPS),
        "curves": "\n".join(_plot(curve, figures) for curve in catalogue.curves.values()),
    }
    for name, part in parts.items():
        assert f"<!-- {name} -->\n" in page, name
        page = page.replace(f"<!-- {name} -->\n", part or "Not run yet.\n")
    return page


def _section(group: str, cases: Iterable[Case], figures: Figures) -> str:
    mine = [case for case in cases if case.group == group]
    lines = [line for case in mine for line in _lines(case, figures)]
    if not lines:
        return ""
    shown = table(HEADS, lines, right=(1, 2, 4))
    return f"### {group.capitalize()}\n\n{shown}\n{_notes(mine)}{_taken(mine, figures)}"


def _notes(cases: Sequence[Case]) -> str:
    """The settings and the limits of a section, each once, with the lines that it is about."""
    said: dict[str, dict[str, None]] = {}
    for case in cases:
        namesakes = [other for other in cases if other.title == case.title]
        label = case.title
        if any(other.yardstick != case.yardstick for other in namesakes):
            label += f", beside {case.yardstick}"
        for kind, text in (("settings", case.settings), ("limit", case.limit)):
            differs = any(getattr(other, kind) != text for other in namesakes if other.yardstick == case.yardstick)
            if text:
                size = f", {case.body_bytes:,} B" if differs and case.body_bytes is not None else ""
                said.setdefault(f"{kind}: {text}", {})[label + size] = None
    return "".join(f"* *{'; '.join(labels)}*: {text}\n" for text, labels in said.items())


def _lines(case: Case, figures: Figures) -> list[list[str]]:
    body = "" if case.body_bytes is None else f"{case.body_bytes:,}"
    target = "" if case.target is None else target_text(case.target, case.unit)
    lines = []
    for name, title in case.lines():
        result = figures.results.get(name)
        if result is None:
            lines.append([title, body, NOT_RUN, case.yardstick, "", target, ""])
            continue
        ratio = f"{result.ratio:.2f} ({min(result.ratios):.2f}..{max(result.ratios):.2f})"
        ours, yardstick = (f"{number(statistics.median(side))} {case.unit}" for side in (result.ours, result.yardstick))
        beside = f"{yardstick}: {case.yardstick}"
        lines.append([title, body, ours, beside, ratio, target, verdict(case.target, result)])
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
    place = "" if plotted is None else f" Taken on {_place(plotted)}."
    return f"### {curve.title}\n\n{shown}\n\n{curve.settings} {curve.limit}".rstrip() + f"{place}\n"


def _taken(cases: Iterable[Case], figures: Figures) -> str:
    names = [name for case in cases for name, _ in case.lines()]
    places = dict.fromkeys(_place(figures.results[name]) for name in names if name in figures.results)
    return f"\nTaken on {'; '.join(places)}.\n" if places else ""


def _place(taken: Result | Plotted) -> str:
    place = taken.place
    versions = ", ".join(f"{name} {version}" for name, version in place.versions.items())
    return f"{place.date} with commit {place.commit}, {place.cores} cores, {versions}"


def _within(ratio: float, limit: float, at_least: bool) -> bool:
    return ratio >= limit if at_least else ratio <= limit
