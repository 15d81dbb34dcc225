"""docs/reliability.md: a frame written by hand, and tables of the committed figures of docs/reliability.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from crash import catalogue
from crash.part import Part
from crash.protections import PROTECTIONS
from crash.state import ROOT, Key, Record, load, save

FRAME = Path(__file__).with_name("frame.md")
FIGURES = ROOT / "docs" / "reliability.json"
TARGET = ROOT / "docs" / "reliability.md"

# The test list. What is not a part of the run has its place said.
TEST_LIST = {
    "1": "one writer killed at a random moment, SYNC_FLUSH",
    "2": "the same, ASYNC_FLUSH",
    "3": "producer, deliverer, committer, cleaner and readers killed in random combination",
    "4": "a kill at every operation on a file or a mapped word",
    "5": "power cut: an image of the device at a random instant",
    "6": "simulated disk: any subset of what was not synced is lost or torn",
    "7": "torn tail: the last records cut at every byte",
    "8": "bit flips in the log",
    "9": "bit flips in queues, index, checkpoint, JSON",
    "10": "damage in the middle of the log",
    "11": "full disk, at every step",
    "12": "an operating system call fails, the first, the second, ...",
    "13": "write-back errors and read errors of a real kernel",
    "14": "out of memory, at the first allocation, the second, ...",
    "15": "a stopped lock holder",
    "16": "fork after open",
    "17": "a clock that jumps, creeps back or stands still",
    "18": "readers against retention",
    "19": "random commands against a model",
    "20": "fuzzed decoders",
    "21": "RocketMQ's own classes read our stores, and we theirs",
    "22": "leaks",
    "23": "Spark: tasks that fail",
    "24": "Spark: duplicate and zombie attempts",
    "25": "Spark: the driver killed",
    "26": "Spark: retention overtakes a checkpoint",
    "27": "stores of released versions",
    "28": "a day of all of it, mixed",
    "29": "a business on a database: both sides of `rmq_store.reliable` killed at named points",
}
ELSEWHERE = {
    "21": "`make compat`: 1,000 random messages each way in every run of CI, 100,000 on 2026-11-21",
    "27": "`tests/storage/fixtures`, in every run of CI",
}

VIOLATIONS = ("lost", "duplicated", "reordered", "altered", "broken")


def merge(sources: Iterable[Path]) -> None:
    """Take figures of state files into docs/reliability.json: they replace those of the same part; of two files that
    have the same part, the one with more cycles counts.
    """
    given: dict[Key, Record] = {}
    for source in sources:
        for record in load(source):
            known = given.get(record.key)
            if record.chunks and (known is None or known.cycles < record.cycles):
                given[record.key] = record
    known_figures = {record.key: record for record in figures()}
    save(FIGURES, (known_figures | given).values())


def figures() -> list[Record]:
    return load(FIGURES) if FIGURES.exists() else []


def text() -> str:
    """The page."""
    parts, _ = catalogue.found()
    records = {record.key: record for record in figures()}
    tables = {
        "test list": _test_list(parts.values(), records),
        "teeth": _teeth(parts.values(), records),
        "flips": _flips(records),
        "seen": _seen(parts.values(), records),
    }
    page = FRAME.read_text(encoding="utf-8")
    for name, table in tables.items():
        assert f"<!-- {name} -->\n" in page, name
        page = page.replace(f"<!-- {name} -->\n", table)
    return page


def _test_list(parts: Iterable[Part], records: dict[Key, Record]) -> str:
    heads = ["#", "what", "part", "run", "of", "acknowledged", *VIOLATIONS, "scale, seed", "date"]
    rows = []
    by_number: dict[str, list[Part]] = {number: [] for number in TEST_LIST}
    for part in parts:
        for number in numbers(part):
            by_number[number].append(part)
    for number, what in TEST_LIST.items():
        if number in ELSEWHERE:
            rows.append([number, what, ELSEWHERE[number], *[""] * (len(heads) - 3)])
        for part in by_number[number]:
            record = records.get((part.name, ""))
            rows.append([number, what, f"`{part.name}`", *_figures(part, record)])
            what = ""
    return table(heads, rows, right=range(3, 11))


def numbers(part: Part) -> list[str]:
    """The lines of the test list that a part is about: "8", or "8, 10"."""
    return [number.strip() for number in part.number.split(",")]


def _figures(part: Part, record: Record | None) -> list[str]:
    if record is None:
        return ["not run", f"{part.soak:,}", *[""] * 8]
    counts = [f"{getattr(record, name):,}" for name in VIOLATIONS]
    run = f"{record.cycles:,} {record.unit}"
    return [run, f"{part.soak:,}", f"{record.acknowledged:,}", *counts, f"{record.scale}, {record.seed}", record.date]


def _teeth(parts: Iterable[Part], records: dict[Key, Record]) -> str:
    rows = []
    for part in parts:
        for name in part.protections:
            record = records.get((part.name, name))
            what = PROTECTIONS[name].what
            if record is None:
                rows.append([f"`{name}`", what, f"`{part.name}`", "not run", ""])
            else:
                counted = ", ".join(f"{value:,} {each}" for each in VIOLATIONS if (value := getattr(record, each)))
                rows.append([f"`{name}`", what, f"`{part.name}`", f"{record.cycles:,} {record.unit}", counted])
    return table(["protection taken out", "the engine then", "part", "run", "violations counted"], rows, right=[3])


def _flips(records: dict[Key, Record]) -> str:
    """Of every part that counts them: how many flips of each field were detected, and how many were not."""
    rows = []
    for (part, without), record in sorted(records.items()):
        fields = {name.partition(" ")[2] for name in record.seen if name.startswith(("detected ", "missed "))}
        if without:
            continue
        for field in sorted(fields):
            detected, missed = record.seen.get(f"detected {field}", 0), record.seen.get(f"missed {field}", 0)
            share = f"{100 * detected / (detected + missed):.1f} %"
            rows.append([f"`{part}`", field, f"{detected:,}", f"{missed:,}", share])
    if not rows:
        return "Not run yet.\n"
    return table(["part", "field", "detected", "missed", "share"], rows, right=range(2, 5))


def _seen(parts: Iterable[Part], records: dict[Key, Record]) -> str:
    rows = []
    for part in parts:
        record = records.get((part.name, ""))
        if record is not None:
            each_ms = 1000 * record.seconds / record.cycles
            versions = ", ".join(record.versions)
            rows.append([f"`{part.name}`", _shown(record), f"{record.seconds:,.0f} s", f"{each_ms:,.2f} ms", versions])
    heads = ["part", "seen", "time", "each", "version"]
    return table(heads, rows, right=[2, 3]) if rows else "Not run yet.\n"


def _shown(record: Record) -> str:
    """What a part has seen; of its hundreds of points only how many there are, and the one that came least."""
    points = [count for name, count in record.seen.items() if name.startswith("at ")]
    shown = [
        f"{name} {count:,}"
        for name, count in sorted(record.seen.items())
        if not name.startswith(("at ", "detected ", "missed "))
    ]
    if points:
        shown.append(f"{len(points)} points, each at least {min(points)} times")
    return ", ".join(shown)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table in Markdown."""
    rule = ["--:" if number in set(right) else "---" for number in range(len(heads))]
    lines = [heads, rule, *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
