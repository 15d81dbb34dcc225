"""Nothing refers to what a clone of the repository lacks.

The specification pages and the articles from which this project was written lie beside the working copies of its
authors. Docstrings named them, and a reader of the public repository could not look anything up. They name RocketMQ's
class, a statement of docs/conformance.md or a page of docs/ instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ABSENT = re.compile(
    r"store-format|broker-semantics|\bsemantics \d|\bseeds? 00\d|\bseeds/|\.\./shared\b|shared material"
    r"|\b(statements|house|users|anchors|style|peers-next)\.md|\breliability\.md,? (test|method|finding)"
    r"|section \d[\d.]* of the documents?\b",
    re.IGNORECASE,
)
# Each of them has one of these. The pattern takes a hundred times as long.
SIGNS = ("-format", "semantics", "seed", "shared", ".md", "of the document")
# Built, fetched or made by a run; none of it is under version control.
LEFT_OUT = {"__pycache__", "target", "build", "dist", "artifacts", "spark-warehouse"}
BINARY = {".xz", ".so", ".svg", ".png", ".pyc"}


def texts(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in LEFT_OUT or path.suffix == ".egg-info" or (path.name.startswith(".") and path.name != ".ci"):
            continue
        if path.is_dir():
            yield from texts(path)
        elif path.suffix not in BINARY and path != Path(__file__):
            yield path


def references(text: str) -> list[str]:
    if not any(sign in text.lower() for sign in SIGNS):
        return []
    lines = zip(text.splitlines(), text.lower().splitlines(), strict=True)
    return [line for line, small in lines if any(sign in small for sign in SIGNS) and ABSENT.search(line)]


def test_no_file_refers_to_what_a_clone_lacks() -> None:
    read = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8", errors="replace") for path in texts(ROOT)}
    assert {"README.md", "Makefile", ".ci/run", "docs/design.md", "storage/rmq_store/__init__.py"} <= read.keys()
    assert {name: lines for name, text in read.items() if (lines := references(text))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "Source: IndexFile.java (selectPhyOffset); store-format.md 3.6.",
        '"""Seed 002, 8.2: no retry in broadcasting."""',
        "progress (seeds 000, 002; semantics 3.2)",
        "(docs/design.md 8.2, reliability.md test 11)",
        "Redis before the database (section 6.3.1 of the document).",
        'ROOT.parent / "../shared/golden"',
    ],
)
def test_such_references_are_recognised(line: str) -> None:
    assert references(line) == [line]


def test_the_same_words_in_another_sense_are_not_taken_for_them() -> None:
    assert references("chunk seed 20261121000000, 20 cycles\nsee [reliability.md](reliability.md), 4 parts") == []
