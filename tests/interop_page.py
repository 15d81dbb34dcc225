"""The tables of docs/interop.md, from what the tests of `make interop` have found: `python tests/interop_page.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from helpers.interop.matrix import CANNOT_BE, COLUMNS, ROWS, Cell, recorded

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "interop.md"
MARKS: Final = "<!-- matrix -->", "<!-- /matrix -->"
ADMIN_MARKS: Final = "<!-- mqadmin -->", "<!-- /mqadmin -->"
DASHBOARD_MARKS: Final = "<!-- dashboard -->", "<!-- /dashboard -->"


def matrix(found: dict[tuple[str, str], Cell]) -> str:
    """A line for each feature, a column for each client."""
    lines = [f"| | {' | '.join(ROWS)} |", f"|---{'|---' * len(ROWS)}|"]
    for column in COLUMNS:
        cells = [_text(CANNOT_BE.get((row, column)) or found.get((row, column))) for row in ROWS]
        lines.append(f"| {column} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def commands_of(tool: str, found: dict[tuple[str, str], Cell]) -> str:
    """A line for each command of mqadmin or method of the dashboard's client, a column for each version."""
    rows = sorted({row for row, _ in found if row.startswith(f"{tool} ")})
    commands = sorted({column for row, column in found if row in rows})
    lines = [f"| | {' | '.join(rows)} |", f"|---{'|---' * len(rows)}|"]
    lines += [f"| `{one}` | {' | '.join(_text(found.get((row, one))) for row in rows)} |" for one in commands]
    return "\n".join(lines) + "\n"


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "not tested"
    return {"works": "works", "refused": f"refused, {cell.text}", "no": f"- ({cell.text})"}[cell.verdict]


def page(old: str, found: dict[tuple[str, str], Cell]) -> str:
    """The page with new tables."""
    tables = (
        (MARKS, matrix(found)), (ADMIN_MARKS, commands_of("mqadmin", found)),
        (DASHBOARD_MARKS, commands_of("dashboard", found)),
    )  # fmt: skip
    for (begin, end), table in tables:
        before, rest = old.split(begin)
        old = f"{before}{begin}\n{table}{end}{rest.split(end)[1]}"
    return old


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    PAGE.write_text(page(PAGE.read_text(), recorded()))
