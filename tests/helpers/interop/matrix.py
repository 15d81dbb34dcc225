"""The matrix of clients and features: its rows and columns, the cells that cannot be, and what tests have found.

A test of a cell leaves its result below build/interop; tests/interop_page.py makes docs/interop.md of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
DIRECTORY: Final = ROOT / "build" / "interop"

JAVA: Final = ("Java 4.9.8", "Java 5.5.0")
GRPC: Final = ("Java gRPC", "Node gRPC", "Python gRPC", "Go gRPC", "Rust gRPC")
REMOTING: Final = (*JAVA, "C++", "Go")
ROWS: Final = (*REMOTING, *GRPC)

COLUMNS: Final = (
    "send, sync", "send, async", "send, one-way", "send, batch", "send, ordered", "delay level", "timer", "recall",
    "tags", "SQL92", "concurrent", "ordered", "broadcast", "lite pull", "simple", "POP", "retries to DLQ",
    "transaction, commit", "transaction, rollback", "transaction, check-back", "trace topic", "query by key",
    "query by id", "reset", "request-reply", "message too large", "wrong signature",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one client and feature. `verdict`: "works", "refused" or "no"; `text`: the code or the reason."""

    verdict: str
    text: str = ""


_NOT_IN_GRPC: Final = Cell("no", "gRPC has none")
_NOT_IN_4: Final = Cell("no", "since 5.x")
_LEVELS_ONLY: Final = Cell("no", "its clients know delay levels only")
_HAS_NONE: Final = Cell("no", "it has none")

CANNOT_BE: Final[dict[tuple[str, str], Cell]] = {
    ("Java 4.9.8", "recall"): _NOT_IN_4,
    ("Java 4.9.8", "timer"): _LEVELS_ONLY,
    ("Java 4.9.8", "POP"): _NOT_IN_4,
    **{(row, column): _NOT_IN_4 for row in ("C++", "Go") for column in ("recall", "POP")},
    **{(row, "timer"): _LEVELS_ONLY for row in ("C++", "Go")},
    ("C++", "send, batch"): Cell("no", "it writes the flag as 1, which brokers read as no"),
    **{("Go", column): _HAS_NONE for column in ("query by key", "query by id")},
    **{
        ("C++", column): _HAS_NONE
        for column in ("SQL92", "lite pull", "transaction, commit", "transaction, rollback", "transaction, check-back",
                       "trace topic", "query by key", "query by id", "request-reply")
    },
    **{(row, "simple"): Cell("no", "a consumer of gRPC") for row in REMOTING},
    **{
        (row, column): _NOT_IN_GRPC
        for row in GRPC
        for column in ("send, one-way", "delay level", "broadcast", "lite pull", "POP", "trace topic", "query by key",
                       "query by id", "reset", "request-reply")
    },
    **{(row, "send, batch"): _HAS_NONE for row in GRPC if row != "Rust gRPC"},
    **{("Rust gRPC", column): Cell("no", "it has simple consumers only") for column in ("concurrent", "ordered")},
    ("Rust gRPC", "recall"): _HAS_NONE,
}  # fmt: skip
"""Cells without a test: the client or the protocol has no such feature."""


def record(row: str, column: str, cell: Cell, directory: Path = DIRECTORY) -> None:
    """Write down what a test found."""
    directory.mkdir(parents=True, exist_ok=True)
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{row} {column}")
    text = json.dumps({"row": row, "column": column, "verdict": cell.verdict, "text": cell.text})
    (directory / f"{name}.json").write_text(text + "\n")


def recorded(directory: Path = DIRECTORY) -> dict[tuple[str, str], Cell]:
    """What tests have found up to now."""
    found = [json.loads(file.read_text()) for file in sorted(directory.glob("*.json"))]
    return {(one["row"], one["column"]): Cell(one["verdict"], one["text"]) for one in found}
