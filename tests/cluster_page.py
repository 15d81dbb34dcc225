"""The table of options in docs/cluster.md, made of the option table: `python tests/cluster_page.py` writes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "cluster.md"
_BEGIN, _END = "<!-- options -->\n", "<!-- /options -->"


def table() -> str:
    """A row for each option: its name, and same, differs, refused or only."""
    from pyspark_rmq.options.option_table import OPTIONS

    rows = []
    for option in OPTIONS:
        verdict, _, sentence = option.cluster.partition(": ")
        rows.append(f"| `{option.name}` | {verdict} | {sentence[:1].upper()}{sentence[1:]} |\n")
    return "| option | with `nameServer` | how |\n|---|---|---|\n" + "".join(rows)


def page_with_table(page: str) -> str:
    """docs/cluster.md with the table between its two marks."""
    before, rest = page.split(_BEGIN)
    return before + _BEGIN + table() + _END + rest.split(_END)[1]


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "connector"), str(ROOT / "storage")]
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
