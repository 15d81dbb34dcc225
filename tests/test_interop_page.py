"""docs/interop.md has a cell for each client and feature, and each of them was tried."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.interop.matrix import CANNOT_BE, COLUMNS, ROWS
from interop_page import ADMIN_MARKS, MARKS, PAGE

TESTS = Path(__file__).parent / "interop"


def test_each_feature_has_a_test() -> None:
    marked = [
        name for path in TESTS.glob("test_*.py") for name in re.findall(r'mark\.column\("(.+?)"\)', path.read_text())
    ]
    assert sorted(marked) == sorted(COLUMNS)


def test_the_page_has_each_command_of_mqadmin() -> None:
    begin, end = ADMIN_MARKS
    table = PAGE.read_text(encoding="utf-8").split(begin)[1].split(end)[0]
    tried = re.findall(r'^(?:REFUSED = \[| +)\("(\w+)[ "]', (TESTS / "test_mqadmin.py").read_text(), re.MULTILINE)
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == sorted(set(tried))
    assert "not tested" not in table


def test_the_page_has_a_result_for_each_client_and_feature() -> None:
    begin, end = MARKS
    lines = PAGE.read_text(encoding="utf-8").split(begin)[1].split(end)[0].strip().splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert head[1:] == list(ROWS)
    assert [column for column, *_ in rows] == list(COLUMNS)
    for column, *cells in rows:
        for row, cell in zip(ROWS, cells, strict=True):
            if (row, column) in CANNOT_BE:
                assert cell == f"- ({CANNOT_BE[row, column].text})"
            else:
                assert cell == "works", f"{row}, {column}: {cell}; `make interop` writes the page"
