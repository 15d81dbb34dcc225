"""docs/reliability.md: a frame written by hand, and tables of the committed figures of docs/reliability.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from crash import catalogue
from crash.part import Part
from crash.state import ROOT, Key, Record, load, save

FRAME = Path(__file__).with_name("frame.md")
FIGURES = ROOT / "docs" / "reliability.json"
TARGET = ROOT / "docs" / "reliability.md"

# The test list: what happens to the store. `ELSEWHERE`: the numbers that are no parts of a run, and what tests them.
TEST_LIST = {
    "1": "one writer killed at a random moment, SYNC_FLUSH",
    "2": "one writer killed at a random moment, ASYNC_FLUSH",
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
    "30": "a served store: the server killed at each point of a request",
}
ELSEWHERE = {
    "21": "`make compat`: 1,000 random messages each way with every commit, 100,000 on 2026-11-21",
    "27": "tests/storage/fixtures, with every commit",
}

VIOLATIONS = ("lost", "duplicated", "reordered", "altered", "broken")

# Flipped bits are counted by what was hit: (part, first word in `seen`) by the name of it.
FLIPPED = {
    "a record with our checksum": [("flips", "crc")],
    "a record without it, as a broker writes": [("flips", "plain")],
    "queues, index, checkpoint, tables and our own files": [
        ("view flips", state) for state in ("broker", "clean", "killed", "rebooted")
    ],
}


def merge(sources: Iterable[Path]) -> None:
    """Take figures of state files into docs/reliability.json; of two files that have the same part, the one with more
    cycles counts.

    A run replaces the figures of the same part. A shorter run without a violation does not: it becomes their `last`.
    """
    given: dict[Key, Record] = {}
    for source in sources:
        for record in load(source):
            known = given.get(record.key)
            if record.chunks and (known is None or known.cycles < record.cycles):
                given[record.key] = record
    known_figures = {record.key: record for record in figures()}
    for key, record in given.items():
        longer = known_figures.get(key)
        if longer is None or record.without or record.violations or record.cycles >= longer.cycles:
            known_figures[key] = record
        else:
            longer.last = {"version": ", ".join(record.versions), "scale": record.scale, "cycles": record.cycles}
    save(FIGURES, known_figures.values())


def figures() -> list[Record]:
    return load(FIGURES) if FIGURES.exists() else []


def text() -> str:
    """The page."""
    parts, _ = catalogue.found()
    records = {record.key: record for record in figures()}
    tables = {
        "parts": _parts(parts.values(), records),
        "flips": _flips(records),
    }
    page = FRAME.read_text(encoding="utf-8")
    for name, table in tables.items():
        assert f"<!-- {name} -->\n" in page, name
        page = page.replace(f"<!-- {name} -->\n", table)
    return page


def _parts(parts: Iterable[Part], records: dict[Key, Record]) -> str:
    heads = ["#", "part", "what happens", "cycles", "violations", "commit", "last commit", "fails without"]
    rows = []
    by_number: dict[str, list[Part]] = {number: [] for number in TEST_LIST}
    for part in parts:
        for number in numbers(part):
            by_number[number].append(part)
    for number, what in TEST_LIST.items():
        if number in ELSEWHERE:
            rows.append([number, "", what, ELSEWHERE[number], *[""] * (len(heads) - 4)])
        for part in by_number[number]:
            figures_of = _figures(part, records.get((part.name, "")))
            rows.append([number, f"`{part.name}`", what, *figures_of, _teeth(part, records)])
    return table(heads, rows, right=(3, 4))


def numbers(part: Part) -> list[str]:
    """The lines of the test list that a part is about: "8", or "8, 10"."""
    return [number.strip() for number in part.number.split(",")]


def _figures(part: Part, record: Record | None) -> list[str]:
    if record is None:
        return ["not run", "", "", ""]
    cycles = f"{record.cycles:,} {record.unit}" + (f" of {part.soak:,}" if record.cycles < part.soak else "")
    return [cycles, f"{record.violations:,}", ", ".join(record.versions), _last(record)]


def _last(record: Record) -> str:
    if not record.last:
        return ""
    cycles = record.last["cycles"]
    return f"{record.last['version']}, {record.last['scale']} scale" + ("" if cycles is None else f", {cycles:,}")


def _teeth(part: Part, records: dict[Key, Record]) -> str:
    """The protections of a part; behind each how many violations a run without it had."""
    shown = []
    for name in part.protections:
        record = records.get((part.name, name))
        shown.append(f"`{name}` ({'not run' if record is None else f'{record.violations:,}'})")
    return ", ".join(shown)


def _flips(records: dict[Key, Record]) -> str:
    """How many flipped bits were detected, and in which fields of a record the others were."""
    rows = []
    for what, sources in FLIPPED.items():
        found = {"detected": 0, "missed": 0}
        missed = []
        for part, kind in sources:
            record = records.get((part, ""))
            for name, count in sorted(record.seen.items() if record else ()):
                verdict, _, place = name.partition(f" {kind}")
                if place.startswith((" ", ",")):
                    found[verdict] += count
                    missed += [f"{place.strip(' ,')} {count:,}"] if verdict == "missed" and part == "flips" else []
        where = ", ".join(missed) if "flips" in dict(sources) else "in any of these files, without effect"
        rows.append([what, f"{sum(found.values()):,}", f"{found['detected']:,}", f"{found['missed']:,}", where])
    return table(["bits flipped in", "flips", "detected", "not detected", "of these"], rows, right=(1, 2, 3))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table in Markdown."""
    rule = ["--:" if number in set(right) else "---" for number in range(len(heads))]
    lines = [heads, rule, *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
