"""What older Sparks gave in rows of the benchmark, each beside a null source and sink of the same Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench import measure
from bench.catalogue import Catalogue
from bench.measure import Figures, Result

KEPT = measure.ROOT / "docs" / "performance"
_BEGINNING = "spark-"


def load(directory: Path = KEPT) -> dict[str, Figures]:
    """What `make bench-spark` kept, by the first two numbers of the Spark."""
    paths = sorted(directory.glob(f"{_BEGINNING}*.json"))
    return {path.stem.removeprefix(_BEGINNING): measure.load(path) for path in paths}


def rows(catalogue: Catalogue, newest: Figures, older: Mapping[str, Figures]) -> list[list[str]]:
    """Lines of a table: title, bytes of a body, and the ratio with each Spark, the newest one last."""
    found = []
    for case in catalogue.cases.values():
        for name, title in case.lines():
            if not any(name in figures.results for figures in older.values()):
                continue
            sides = [figures.results.get(name) for figures in (*older.values(), newest)]
            body = "" if case.body_bytes is None else f"{case.body_bytes:,}"
            found.append([title, body, *map(_ratio, sides)])
    return found


def _ratio(result: Result | None) -> str:
    return "" if result is None else result.ratio_text
