"""What a run has done so far, in one JSON file that is replaced after every chunk: an interrupted run goes on from it.

It says nothing about whose machine it was: kernel, Python and number of processors, no name and no path.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from crash.part import Counters, Part

FORMAT = 1
DEFAULT_SEED = 20261121
ROOT = Path(__file__).parents[2]

Key = tuple[str, str]
"""(part, protection that was taken out; "" = none)."""


class StateError(Exception):
    """A state file that this run cannot go on from."""


@dataclass(slots=True)
class Record:
    """One part's figures: `cycles` of `target`, all chunks together. Counters as in `Counters`.

    `last`: `version`, `scale` and `cycles` (None: not recorded) of a later run that was shorter and had no violation.
    """

    part: str
    without: str
    number: str
    title: str
    unit: str
    scale: str
    seed: int
    target: int
    chunks: int = 0
    cycles: int = 0
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    altered: int = 0
    broken: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    first: str = ""
    seconds: float = 0.0
    date: str = ""
    versions: list[str] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=dict)
    last: dict[str, str | int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, part: Part, without: str, scale: str, seed: int, target: int) -> Record:
        return cls(part.name, without, part.number, part.title, part.unit, scale, seed, target)

    @property
    def key(self) -> Key:
        return self.part, self.without

    @property
    def violations(self) -> int:
        return self.lost + self.duplicated + self.reordered + self.altered + self.broken

    @property
    def done(self) -> bool:
        return self.cycles >= self.target

    @property
    def good(self) -> bool:
        """No violations; or, without a protection, some."""
        return (self.violations > 0) == bool(self.without)

    def add(self, counters: Counters, seconds: float) -> None:
        """Count one more chunk in."""
        self.chunks += 1
        for name in ("cycles", "acknowledged", "lost", "duplicated", "reordered", "altered", "broken"):
            setattr(self, name, getattr(self, name) + getattr(counters, name))
        self.seen = dict(Counter(self.seen) + counters.seen)
        self.first = self.first or counters.first
        self.seconds = round(self.seconds + seconds, 1)
        self.date = time.strftime("%Y-%m-%d", time.gmtime())
        self.versions = sorted({*self.versions, version()})
        self.machine = machine()


class State:
    """Records by key, and the file they are kept in. Records of `begun`, the file of a run at a smaller scale, are gone
    on with where they have the same seed: the larger run has the same chunks first, and need not repeat them.
    """

    def __init__(self, path: Path, begun: Path | None = None) -> None:
        self.path = path
        self.records = _by_key(path)
        self._begun = _by_key(begun) if begun else {}

    def record(self, part: Part, without: str, scale: str, seed: int | None, target: int) -> Record:
        """The record to go on with; StateError if it belongs to another run."""
        known = self.records.get((part.name, without))
        if known is None:
            fresh = Record.of(part, without, scale, DEFAULT_SEED if seed is None else seed, target)
            begun = self._begun.get(fresh.key)
            known = fresh if begun is None or begun.seed != fresh.seed else replace(begun, scale=scale)
            self.records[known.key] = known
        if known.scale != scale or seed not in (None, known.seed):
            raise StateError(
                f"{self.path}: {part.name} was begun at scale {known.scale} with seed {known.seed}: "
                "name another file by --state, or say --fresh"
            )
        known.target = target
        return known

    def save(self) -> None:
        """Replace the file, so that it is whole at every moment."""
        save(self.path, self.records.values())


def _by_key(path: Path) -> dict[Key, Record]:
    return {record.key: record for record in load(path)} if path.exists() else {}


def load(path: Path) -> list[Record]:
    """The records of a state file; StateError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise StateError(f"{path}: format {data['format']}, we know {FORMAT}")
        return [Record(**record) for record in data["records"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path}: no state of a run: {error}") from error


def save(path: Path, records: Iterable[Record]) -> None:
    """Write records, sorted, one line for each figure: the file is compared and committed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "format": FORMAT,
        "records": [asdict(record) for record in sorted(records, key=lambda record: record.key) if record.chunks],
    }
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def counters_of(data: dict[str, Any]) -> Counters:
    """Counters from their JSON form."""
    known = {each.name for each in fields(Counters)}
    assert data.keys() == known, data.keys() ^ known
    return Counters(**{**data, "seen": Counter(data["seen"])})


def version() -> str:
    """The commit that is checked out, with "+" if files were changed; "unknown" outside of a repository."""
    try:
        answers = [
            subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "storage", "connector"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answers[0] + ("+" if answers[1] else "")


def machine() -> dict[str, str]:
    """What the figures depend on."""
    return {
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "processors": str(os.cpu_count()),
    }
