"""What a verification counts and finds, and the one place where it is decided what counts as damage."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from .records import Bytes, map_file

FINDINGS_KEPT, MAPS_KEPT = 100, 256


class Problem(NamedTuple):
    """One contradiction: `offset` is the byte position in the file `path` (relative to the store)."""

    path: str
    offset: int
    text: str


@dataclass
class Report:
    """Counts and findings. Offsets of the log are bytes, half open; `problems` holds the first 100 of `problem_count`.

    problems    damage: bytes that contradict each other and that no crash explains
    recovery    what an unclean stop leaves (`abort`, views behind or ahead of the log, a torn last record) and the next
                opening for writing repairs
    notes       unusual but allowed: keys that no index file covers, messages of a deleted topic
    """

    root: str
    log_start: int = 0
    log_end: int = 0
    messages: int = 0
    messages_with_crc: int = 0
    blanks: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_entries: int = 0
    unindexed_keys: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)
    recovery: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """`"damaged"`, else `"unclean"` (needs recovery), else `"clean"`."""
        return "damaged" if self.problem_count else "unclean" if self.recovery else "clean"

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON, `status` included."""
        return {"status": self.status, **asdict(self), "problems": [problem._asdict() for problem in self.problems]}


class Ledger:
    """The report in the making, with what the checks of log, queues and index share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.report = Report(str(root))
        self.unclean = (root / "abort").exists()
        self.bad_ranges: list[tuple[int, int]] = []  # of the log; reported once, so views into them are no news
        self.map = lru_cache(MAPS_KEPT)(self._map)

    def _map(self, path: str) -> Bytes:
        return map_file(self.root / path)

    def problem(self, path: str, offset: int, text: str) -> None:
        """Note damage."""
        self.report.problem_count += 1
        if len(self.report.problems) < FINDINGS_KEPT:
            self.report.problems.append(Problem(path, offset, text))

    def repairable(self, path: str, offset: int, text: str) -> None:
        """Note what an unclean stop explains; in a store that was closed cleanly it is damage."""
        if not self.unclean:
            self.problem(path, offset, text)
        elif len(self.report.recovery) < FINDINGS_KEPT:
            self.report.recovery.append(f"{path}: at byte {offset}: {text}")

    def is_gone(self, log_offset: int) -> bool:
        """Whether no message can be expected there: retention took it, or its bytes were reported as bad."""
        return log_offset < self.report.log_start or any(start <= log_offset < end for start, end in self.bad_ranges)
