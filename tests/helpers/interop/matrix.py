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
    "query by id", "reset", "request-reply", "message too large", "wrong signature", "unknown code", "timeout", "TLS",
)  # fmt: skip

REFUSED: Final = ("message too large", "wrong signature", "unknown code")
"""Columns of what must be refused, with a code or by the client itself."""
BY_THE_CLIENT: Final = "by the client, which has asked for the limit"


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one client and feature. `verdict`: "works", "refused" or "no"; `text`: the code or the reason."""

    verdict: str
    text: str = ""


_NOT_IN_GRPC: Final = Cell("no", "gRPC has none")
_JAVA_4: Final = "rocketmq-client 4.9.8"
_CPP: Final = "librocketmq of rocketmq 0.4.4"
_GO: Final = "rocketmq-client-go 2.1.2"
_RUST: Final = "rocketmq 5.0.0"


def _no(package: str, what: str) -> Cell:
    return Cell("no", f"{package} {what}")


CANNOT_BE: Final[dict[tuple[str, str], Cell]] = {
    ("Java 4.9.8", "recall"): _no(_JAVA_4, "has no `recallMessage`"),
    ("Java 4.9.8", "POP"): _no(_JAVA_4, "has no `setClientRebalance`"),
    ("C++", "send, batch"): _no(_CPP, "writes the flag as 1, which brokers read as no"),
    ("C++", "recall"): _no(_CPP, "has no `Recall...`"),
    ("C++", "SQL92"): _no(_CPP, "has no type of an expression in `Subscribe`"),
    ("C++", "lite pull"): _no(_CPP, "has no `...Lite...`, and `Pull` commits no offsets"),
    ("C++", "POP"): _no(_CPP, "has no `Pop...`"),
    **{
        ("C++", column): _no(_CPP, "has no `CreateTransactionProducer`")
        for column in ("transaction, commit", "transaction, rollback", "transaction, check-back")
    },
    ("C++", "trace topic"): _no(_CPP, "has no `...Trace...`"),
    ("C++", "query by key"): _no(_CPP, "has no `Query...`"),
    ("C++", "query by id"): _no(_CPP, "has no `View...`"),
    ("C++", "request-reply"): _no(_CPP, "has no `...Request...`"),
    ("C++", "unknown code"): _no(_CPP, "has no `...Command...`"),
    ("C++", "TLS"): _no(_CPP, "has no `Set...Ssl...` and no `Set...Tls...`"),
    ("Go", "recall"): _no(_GO, "has no `Recall`"),
    ("Go", "POP"): _no(_GO, "has no `PopMessage`"),
    ("Go", "query by key"): _no(_GO, "has no `QueryMessage`"),
    ("Go", "query by id"): _no(_GO, "has no `ViewMessage`"),
    ("Go", "unknown code"): _no(_GO, "keeps requests in its package `internal`"),
    ("Go", "TLS"): _no(_GO, "has no `crypto/tls`"),
    **{(row, "simple"): Cell("no", "a consumer of gRPC") for row in REMOTING},
    **{
        (row, column): _NOT_IN_GRPC
        for row in GRPC
        for column in ("send, one-way", "delay level", "broadcast", "lite pull", "POP", "trace topic", "query by key",
                       "query by id", "reset", "request-reply")
    },
    **{(row, "unknown code"): Cell("no", "gRPC has methods, and no codes of requests") for row in GRPC},
    ("Java gRPC", "send, batch"): _no("rocketmq-client-java 5.2.0", "sends one message a call"),
    ("Node gRPC", "send, batch"): _no("rocketmq-client-nodejs 1.0.8", "sends one message a call"),
    ("Python gRPC", "send, batch"): _no("rocketmq-python-client 5.1.2", "sends one message a call"),
    ("Go gRPC", "send, batch"): _no("golang/v5 5.1.4", "sends one message a call"),
    **{("Rust gRPC", column): _no(_RUST, "has no `pub struct PushConsumer`") for column in ("concurrent", "ordered")},
    ("Rust gRPC", "recall"): _no(_RUST, "has no `...recall...`"),
    ("Rust gRPC", "TLS"): _no(_RUST, "has the setting, and no `ClientTlsConfig` behind it"),
}  # fmt: skip
"""Cells without a test: the client or the protocol has no such feature. tests/interop/test_reasons.py looks for the
names that a package lacks.
"""


def record(row: str, column: str, cell: Cell, directory: Path = DIRECTORY) -> None:
    """Write down what a test found."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"row": row, "column": column, "verdict": cell.verdict, "text": cell.text})
    _file(row, column, directory).write_text(text + "\n")


def withdraw(row: str, column: str, directory: Path = DIRECTORY) -> None:
    """Forget what a test found."""
    _file(row, column, directory).unlink(missing_ok=True)


def _file(row: str, column: str, directory: Path) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{row} {column}")
    return directory / f"{name}.json"


def recorded(directory: Path = DIRECTORY) -> dict[tuple[str, str], Cell]:
    """What tests have found up to now."""
    found = [json.loads(file.read_text()) for file in sorted(directory.glob("*.json"))]
    return {(one["row"], one["column"]): Cell(one["verdict"], one["text"]) for one in found}
